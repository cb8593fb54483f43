"""Renders a template into one HTML file with its style and script inside, and writes it atomically."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bngrad.io.writing import write_text
from bngrad.reports.visible import LINES, visible

_HERE = Path(__file__).parent

_SCRIPTS = ("elements", "theme", "copy", "table", "scatter", "start")
"""The files of the script, in order."""


def write_page(path: Path, template: str, **content: object) -> None:
    """Writes a page, see `render_page`.

    Raises:
        InputError: The file cannot be written.
    """
    write_text(path, render_page(template, **content))


def render_page(template: str, **content: object) -> str:
    """Returns a page.

    All values are escaped. The page's Content-Security-Policy allows its own style and script, by their hashes,
    and nothing else: no request, no other script.

    Args:
        template: The name of a file in ``templates``, without ``.html.j2``.
        content: The values of the template's variables.
    """
    style, script = _text("report.css"), _script()
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    # Both are ours; neither contains a closing tag.
    inline = {"policy": policy, "style": Markup(style), "script": Markup(script)}  # noqa: S704
    return _environment().get_template(f"{template}.html.j2").render(**inline, **content)


@cache
def _text(name: str) -> str:
    # One form of newlines, so that the hash is the browser's.
    return (_HERE / name).read_text(encoding="utf-8")


def _script() -> str:
    """Returns the files of the script as one, in a block of its own: the page gets no global names."""
    parts = "\n".join(_text(f"script/{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n{{\n{parts}}}\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = _dumps
    environment.filters["breakable"] = breakable
    environment.filters["grouped"] = lambda number: f"{number:,}"
    environment.filters["x"] = lambda sizes: "x".join(map(str, sizes)) or "scalar"
    environment.filters["size"] = byte_text
    environment.filters["number"] = number_text
    environment.filters["duration"] = duration_text
    return environment


def _shown(value: object) -> object:
    """Returns a value with escapes for what is not printable in its texts; markup is ours."""
    if isinstance(value, dict):
        return {_shown(key): _shown(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(content) for content in value]
    return visible(value, keep=LINES) if isinstance(value, str) and not isinstance(value, Markup) else value


def _dumps(value: object, **options: Any) -> str:  # noqa: ANN401 - those of `json.dumps`
    return json.dumps(_shown(value), **options)


def breakable(text: str) -> Markup:
    """Returns a name, escaped, that may be broken into lines after its separators; the script does the same."""
    return Markup("<wbr>").join(re.split(r"(?<=[./_:])", visible(text)))


def number_text(value: float | None) -> str:
    """Returns a number with three significant digits, as the pages show it; ``-`` for None."""
    if value is None:
        return "-"
    return f"{value:.3g}".replace("inf", "∞").replace("nan", "NaN")


def duration_text(seconds: float) -> str:
    """Returns a time, such as ``12.3 s`` or ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def byte_text(count: int) -> str:
    """Returns a size, such as ``1.4 MB``."""
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{count} bytes" if units[0] == "bytes" else f"{size:.3g} {units[0]}"
