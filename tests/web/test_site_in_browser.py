"""The documentation in Chromium, read from files: pages fit, nothing is fetched, and the search finds."""

from __future__ import annotations

import importlib.util
import json

import pytest

from site_build import build
from web.conftest import absent


@pytest.fixture(scope="module")
def seen(node, chromium, tmp_path_factory):
    if importlib.util.find_spec("mkdocs") is None:
        absent("no MkDocs: pip install 'bngrad[docs]'")
    folder = build(tmp_path_factory.mktemp("site"))
    return json.loads(node("site.mjs", folder, chromium))


def test_no_error_is_shown(seen):
    assert seen["pages"] > 50
    assert seen["console"] == []


def test_nothing_is_fetched(seen):
    assert seen["external"] == []


def test_pages_fit(seen):
    assert seen["wide"] == []
    assert seen["code"] == []


def test_copying_takes_the_commands_of_a_console_block(seen):
    lines = seen["copied"].splitlines()
    assert lines[-1] == "bngrad --version"
    assert lines[0].startswith("pip install ")
    assert not any(line.startswith("$ ") for line in lines)


def test_the_search_finds(seen):
    for paths in seen["found"]:
        assert any(path.endswith("/reference/commands.html") for path in paths)
