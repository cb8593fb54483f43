"""The licenses of what zig links into the library statically, as one text for all wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.wheels.components import COMPONENTS

if TYPE_CHECKING:
    from pathlib import Path

_INTRODUCTION = """\
The native library in this wheel contains compiled parts of the following projects.
Their licenses follow, as the compiler's distribution has them.
"""


def write_notices(path: Path, ziglang: Path) -> None:
    """Writes the text to a file.

    Args:
        path: The file.
        ziglang: The folder of the package ziglang.
    """
    texts = [_INTRODUCTION]
    for component in COMPONENTS:
        if component.license_file is not None:
            line = "=" * len(component.title)
            text = (ziglang / component.license_file).read_text(encoding="utf-8")
            texts += [f"{line}\n{component.title}\n{line}\n", text.strip() + "\n"]
    path.write_text("\n".join(texts), encoding="utf-8", newline="\n")
