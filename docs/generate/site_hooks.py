"""Changes that MkDocs makes to the pages: they are written for the code host, where they are read as they are.

- The navigation is the list of docs/index.md.
- Links out of docs/ go to the code host.
- A comment ``<!-- api: NAME -->`` becomes the signature and the docstring of NAME.
- The first paragraph of a page is its description. The search has guides before tables and measurements.
- A table without headings has no row for them. Landmarks and dialogs of the theme have names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_SECTION = re.compile(r"^## (.+)$")
_ENTRY = re.compile(r"^( *)- \[([^]]+)\]\(([^)#]+\.md)\)")
_LINK = re.compile(r"(\]\()([^()\s:#]+)((?:#[^()\s]*)?\))")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[`*]")
_MAX_DESCRIPTION = 160
_BOOSTS = {"guides": 3.0, "explanation": 1.5, "measurements": 0.5, "contributing": 0.5, "reference/coverage": 0.3}
"""The weights of pages in the search, by folder; 1 for others."""

_EMPTY_HEAD = re.compile(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>")
_EMPTY_HEADING = re.compile(r"<th([^>]*)></th>")
_LONG_CODE = re.compile(r"<code>(?=[^<]{33,}</code>)")
"""Code that style.css breaks into lines in the first column of a table."""

_UNNAMED_LIST = re.compile(
    r"""aria-labelledby="\w+"([^>]*>\s*<label class="md-nav__title"[^>]*>.*?</span>\s*(.*?)\s*</label>)""",
    re.DOTALL,
)
"""A list of pages. If its section has a page of its own, the label that it refers to is empty."""

_API = re.compile(r"^<!-- api: ([\w. ]+) -->$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Reads the navigation from docs/index.md."""
    config.nav = navigation(Path(config.docs_dir, "index.md").read_text(encoding="utf-8"))
    return config


def navigation(index: str) -> list[dict[str, Any]]:
    """Returns the navigation of MkDocs.

    A heading of the second level that has a list of pages is a section. An entry with an indented list below it is
    a section inside, and its first page.
    """
    nav: list[dict[str, Any]] = [{"Home": "index.md"}]
    section: list[dict[str, Any]] = []
    for line in index.splitlines():
        if heading := _SECTION.match(line):
            section = []
            nav.append({heading[1]: section})
        elif (entry := _ENTRY.match(line)) and not entry[3].startswith("../"):
            _add(section, indented=bool(entry[1]), title=entry[2], page=entry[3])
    return [
        {title: _page_or_section(title, content)} for part in nav for title, content in part.items() if content
    ]


def _page_or_section(title: str, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A section with one page of its name is that page."""
    if isinstance(content, list) and [*content[0]] == [title] and len(content) == 1:
        return content[0][title]
    return content


def _add(section: list[dict[str, Any]], *, indented: bool, title: str, page: str) -> None:
    if not indented:
        section.append({title: page})
        return
    ((parent, content),) = section[-1].items()
    if isinstance(content, str):
        content = [content]
        section[-1][parent] = content
    content.append({title: page})


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links out of the site into links to the code host, and comments into docstrings."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]  # the page itself lists all pages
    elif folder.startswith("reference") and not re.search("^## ", markdown, re.MULTILINE):
        page.meta["hide"] = ["toc"]  # tables have the width of an empty column

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        inside = target.removeprefix("docs/")
        file = files.get_file_from_path(inside)
        if inside != target and file is not None and file.inclusion.is_included():
            return match[0]
        path = Path(config.docs_dir).parent / target
        if not path.exists():
            return match[0]  # a broken link, which MkDocs reports
        kind = "tree" if path.is_dir() else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{target}{match[3]}"

    page.meta.setdefault("description", description(markdown))
    page.meta.setdefault("search", {"boost": _BOOSTS.get(folder, 1.0)})
    fences = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    text = "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in fences)
    return _API.sub(_docstring, text)


def on_page_content(html: str, **_: object) -> str:
    """Removes headings without text, which screen readers announce, and marks long code."""
    html = _EMPTY_HEADING.sub(r"<td\1></td>", _EMPTY_HEAD.sub("", html))
    return _LONG_CODE.sub('<code class="long">', html)


def on_post_page(output: str, **_: object) -> str:
    """Names the theme's search dialog and lists of pages, by which screen readers tell them apart."""
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return _UNNAMED_LIST.sub(r'aria-label="\2"\1', output)


def on_post_template(output_content: str, **_: object) -> str:
    """The same for 404.html."""
    return on_post_page(output_content)


def description(markdown: str) -> str:
    """Returns the first paragraph of a page as plain text, cut after a word."""
    blocks = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    paragraphs = [block for block in blocks if re.match(r"[\w`\[*]", block.strip())]
    text = " ".join(_MARKUP.sub(lambda match: match[1] or "", paragraphs[0] if paragraphs else "").split())
    text = text.replace('"', "'")  # the theme does not escape it
    if len(text) <= _MAX_DESCRIPTION:
        return re.sub(r":$", ".", text)
    return text[: _MAX_DESCRIPTION - 1].rpartition(" ")[0].rstrip(",;:") + "…"


def _docstring(match: re.Match[str]) -> str:
    title = "Signature and docstring"
    return f'??? api "{title}"\n' + "".join(f"\n    ::: {name}\n" for name in match[1].split())
