"""The documentation in Chromium.

Read from files: pages fit, nothing is fetched, and the search finds. Over HTTP: the page that trains.
"""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from serve_examples import served_folder
from site_build import build
from web.conftest import absent


@pytest.fixture(scope="module")
def site(node, tmp_path_factory):  # noqa: ARG001 - npm's packages are there
    if importlib.util.find_spec("mkdocs") is None:
        absent("no MkDocs: pip install 'bngrad[docs]'")
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def seen(node, chromium, site):
    return json.loads(node("site.mjs", site, chromium))


def test_no_error_is_shown(seen):
    assert seen["pages"] > 50
    assert seen["console"] == []


def test_nothing_is_fetched(seen):
    assert seen["external"] == []


def test_pages_fit(seen):
    assert seen["wide"] == []
    assert seen["code"] == []


def test_axe_finds_no_violation(seen):
    assert seen["examined"] == 22
    assert seen["axe"] == []


def test_copying_takes_the_commands_of_a_console_block(seen):
    lines = seen["copied"].splitlines()
    assert lines[-1] == "bngrad --version"
    assert lines[0].startswith("make wheels ")
    assert not any(line.startswith("$ ") for line in lines)


def test_the_search_finds(seen):
    for paths in seen["found"]:
        assert any(path.endswith("/reference/commands.html") for path in paths)


def test_a_page_of_the_site_trains(node, chromium, site):
    with served_folder(site) as url:
        seen = json.loads(node("site_demo.mjs", url, chromium))
    assert (seen["errors"], seen["axe"]) == ([], [])
    assert len(seen["losses"]) == 2
    assert 2 < seen["losses"][0] < 4  # ten classes, untrained


def test_the_page_has_its_files_for_webgpu(site):
    folder = site / "examples" / "browser"
    runtime = folder / "node_modules" / "onnxruntime-web" / "dist"
    bundle = (runtime / "ort.webgpu.bundle.min.mjs").read_text(encoding="utf-8")
    loaded = set(re.findall(r"\bort-wasm[\w.-]*\.wasm\b", bundle))
    assert loaded
    assert [name for name in loaded if not (runtime / name).exists()] == []
