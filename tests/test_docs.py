"""The documentation: links, commands and public names are those of the package."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import click
import pytest

import bngrad
from bngrad.cli import cli
from test_import_order import ORDER

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "models/README.md")),
    DOCS / "examples/step/README.md",
]
DOC_PAGES = {path for path in DOCS.rglob("*.md") if "examples" not in path.parts}
PAGES += sorted(DOC_PAGES)
OPTION = re.compile(r"(?<![\w-])--?[a-z](?:[a-z0-9-]*[a-z0-9])?(?![\w-])")


def page_id(path):
    return str(path.relative_to(ROOT))


def blocks(path):
    """The fenced blocks of a page, in order: language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def prose(path):
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(path):
    """The links of a page, except those to other sites."""
    targets = re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


@cache
def anchors(path):
    """The anchors that GitHub gives the headings of a page."""
    seen = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return names


def destination(path, link):
    return (path.parent / link.partition("#")[0]).resolve() if not link.startswith("#") else path


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_resolve(path):
    for link in links(path):
        target = destination(path, link)
        assert target.exists(), link
        if "#" in link:
            assert link.partition("#")[2] in anchors(target), link


def test_no_section_is_there_twice():
    for path in PAGES:
        headings = Counter(re.findall(r"^## .+$", prose(path), re.MULTILINE))
        assert [heading for heading, count in headings.items() if count > 1] == [], path


def test_every_page_can_be_reached_from_the_index():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for link in links(page) if (target := destination(page, link)).suffix == ".md"]
    assert reached >= DOC_PAGES


def leaves(command, name=()):
    """Each command without subcommands, by its name."""
    if isinstance(command, click.Group):
        for key, child in command.commands.items():
            yield from leaves(child, (*name, key))
    else:
        yield " ".join(name), command


def options(command):
    opts = {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)}
    return {opt for opt in opts if opt.startswith("-")} | {"-h", "--help"}


CLI = dict(leaves(cli))


def command_lines(path):
    """The lines of a page that call bngrad, as lists of words."""
    text = "\n".join(text for language, text in blocks(path) if language == "console").replace("\\\n", " ")
    for line in text.splitlines():
        if match := re.match(r"\$ (?:\S*/)?bngrad (.*)", line):
            yield shlex.split(match.group(1).split(" | ")[0], comments=True)


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_shown_commands_exist(path):
    for words in command_lines(path):
        if words[0] != "--version":
            (name,) = (name for name in CLI if words[: len(name.split())] == name.split())
            assert {word for word in words if OPTION.fullmatch(word)} <= options(CLI[name]), words


def test_public_names_are_documented():
    text = (DOCS / "reference" / "python-api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\bbngrad\.(\w+)", text)) >= set(bngrad.__all__)


@pytest.mark.parametrize("path", [ROOT / "README.md", DOCS / "contributing" / "tree.md"], ids=page_id)
def test_the_order_of_imports_is_that_of_the_test(path):
    rows = [[name for name in row if not name.startswith("__")] for row in ORDER]
    order = " <- ".join(", ".join(row) for row in rows if row)
    assert order in " ".join(path.read_text(encoding="utf-8").split())


def test_the_tree_has_every_package():
    text = (DOCS / "contributing" / "tree.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "bngrad").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`(?:\w+/)*(\w+)/`", text))


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_named_files_exist(path):
    for name in re.findall(r"`((?:bngrad|docs|models|ops|tests)/[\w./-]+)`", prose(path)):
        assert (ROOT / name).exists(), name


def test_silent_errors_name_tests():
    text = (DOCS / "contributing" / "silent-errors.md").read_text(encoding="utf-8")
    for file, test in re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text):
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in source, f"{file}::{test}"
