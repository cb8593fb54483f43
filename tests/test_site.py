"""The site: nothing is fetched from elsewhere, every public name has its docstring, links go where they should."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import pytest

import bngrad
from site_build import ROOT, build
from test_docs import DOC_PAGES, DOCS

sys.path.append(str(DOCS / "generate"))  # for site_hooks

pytest.importorskip("mkdocs", reason="needs MkDocs: pip install 'bngrad[docs]'")
pytest.importorskip("mkdocstrings", reason="needs mkdocstrings: pip install 'bngrad[docs]'")


class Page(HTMLParser):
    """The links of a page, and what its reader's browser loads."""

    def __init__(self, path):
        super().__init__()
        self.path, self.loaded, self.links, self.ids, self.meta = path, [], [], set(), {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        if tag == "link" and attrs.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(attrs["href"])
        elif tag == "meta":
            self.meta[attrs.get("name") or attrs.get("property")] = attrs.get("content")
        elif tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        elif tag != "a" and attrs.get("src"):
            self.loaded.append(attrs["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = build(tmp_path_factory.mktemp("site"))
    pages = {str(path.relative_to(folder)): Page(path) for path in sorted(folder.rglob("*.html"))}
    pages.pop("examples/browser/index.html", None)  # there with npm's packages only: tests/web
    return pages


def test_every_page_is_there(site):
    pages = {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOC_PAGES}
    assert pages | {"404.html"} == set(site)


def test_each_page_has_a_description_and_a_card(site):
    pages = {name: page.meta for name, page in site.items() if name != "404.html"}
    descriptions = [meta["description"] for meta in pages.values()]
    assert len(set(descriptions)) == len(descriptions)
    assert all(20 <= len(text) <= 160 for text in descriptions)
    for name, meta in pages.items():
        assert meta["og:description"] == meta["description"], name
        assert meta["og:url"].endswith(name) or name == "index.html"
        image = meta["og:image"].removeprefix("https://bngrad.github.io/bngrad/")
        assert (site["index.html"].path.parent / image).exists()
    assert pages["index.html"]["og:title"] == "bngrad: Training on stock ONNX Runtime"
    assert pages["guides/gpu.html"]["og:title"].endswith(" - bngrad")


def test_landmarks_and_tables_are_named(site):
    for name, page in site.items():
        text = page.path.read_text(encoding="utf-8")
        assert not re.search(r"<th[^>]*></th>", text), name
        assert 'role="dialog">' not in text, name
        assert 'class="md-nav" data-md-level="1" aria-labelledby' not in text, name


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = {(name, url) for name, page in site.items() for url in page.loaded}
    assert loaded
    assert [
        (name, url) for name, url in loaded if re.match(r"(?:[a-z]+:)?//", url) and not url.startswith("data:")
    ] == []
    for name, url in loaded:
        if name != "404.html" and not url.startswith("data:"):
            assert (site[name].path.parent / url.partition("?")[0]).exists(), (name, url)


def test_styles_load_nothing_from_elsewhere(site):
    folder = site["index.html"].path.parent
    for path in folder.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", path.read_text(encoding="utf-8")), path


def test_links_to_the_code_host_are_files_of_this_tree(site):
    base = "https://github.com/bngrad/bngrad/"
    links = {url for page in site.values() for url in page.links if url.startswith((f"{base}blob", f"{base}tree"))}
    assert f"{base}blob/main/SECURITY.md" in links
    for url in links:
        kind, _, path = url.removeprefix(base).partition("/main/")
        target = ROOT / path.partition("#")[0]
        assert target.is_dir() if kind == "tree" else target.is_file(), url


def test_links_to_other_sites_are_addresses(site):
    links = {url for page in site.values() for url in page.links if re.match(r"[a-z]+:", url)}
    address = re.compile(r"https://[\w.-]+\.[a-z]{2,}(/[^\s<>\"]*)?|http://localhost:\d+/\S*")
    assert [url for url in links if not address.fullmatch(url)] == []


def test_every_public_name_has_its_docstring(site):
    ids = site["reference/python-api.html"].ids
    assert {f"bngrad.{name}" for name in bngrad.__all__} - {"bngrad.__version__"} <= ids
    for module, names in {
        "torch": [
            "training_step",
            "differentiate",
            "import_joint",
            "export",
            "load_into",
            "compare",
            "state_tensors",
        ],
        "keras": ["training_step", "differentiate", "export", "load_into"],
    }.items():
        assert {f"bngrad.{module}.{name}" for name in names} <= ids


INDEX = """# Title

- [Not in a section](no.md)

## Getting started

- [Getting started](getting-started.md): text

## Guides

- **[A door](door.md)**
- [One](guides/one.md): text
- [Two](guides/two.md)
    - [Inside](guides/inside.md)
- [Outside](../SECURITY.md)

## Empty
"""


def test_the_navigation_is_the_list_of_the_index():
    from site_hooks import navigation

    inside = {"Two": ["guides/two.md", {"Inside": "guides/inside.md"}]}
    guides = [{"One": "guides/one.md"}, inside]
    assert navigation(INDEX) == [
        {"Home": "index.md"},
        {"Getting started": "getting-started.md"},
        {"Guides": guides},
    ]


BROKEN_LINKS = {
    "[Gone](gone.md)": "'gone.md'",
    "[Gone](index.md#nowhere)": "no such anchor",
    "[Gone](../SECURITY_GONE.md)": "SECURITY_GONE.md",
    "![Gone](gone.svg)": "'gone.svg'",
}


@pytest.mark.parametrize(
    "links", [BROKEN_LINKS, {"<!-- api: bngrad.gone -->": "bngrad.gone"}], ids=["links", "public-name"]
)
def test_each_broken_link_fails_the_build(tmp_path, links):
    page = "\n\n".join(links)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/style.css").touch()
    (tmp_path / "docs/index.md").write_text(f"# Title\n\n{page}\n", encoding="utf-8")
    for name in ("mkdocs.yml", "bngrad", "docs/generate"):
        (tmp_path / name).symlink_to(ROOT / name)
    with pytest.raises(AssertionError) as error:
        build(tmp_path / "site", tmp_path)
    assert [complaint for complaint in links.values() if complaint not in str(error.value)] == []
