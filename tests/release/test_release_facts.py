"""The texts of a release agree, and what would not is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import yaml

from project_metadata import ROOT, project
from release_facts import (
    changelog_problem,
    citation_problem,
    npm_problem,
    recipe_problem,
    remote_problem,
    tag_problem,
    version_problem,
)

URLS = {"Homepage": "https://host/o/p", "Documentation": "https://docs/", "Issues": "https://host/o/p/issues"}
CITATION = {
    "version": "1.2.3",
    "license": "MIT",
    "repository-code": URLS["Homepage"],
    "url": URLS["Documentation"],
}
PACKAGE = {
    "version": "1.2.3",
    "license": "MIT",
    "homepage": "https://docs/guides/javascript.html",
    "bugs": URLS["Issues"],
    "repository": {"type": "git", "url": "git+https://host/o/p.git", "directory": "docs/examples/step"},
}
SECTION = "# Changelog\n\n## 1.2.3 (2026-01-31)\n\n### Added\n\n- A.\n\n## 1.2.2 (2026-01-30)\n\n- B.\n"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_this_tree_is_a_candidate():
    version, urls = project()["version"], project()["urls"]
    assert not version_problem(version)
    assert not changelog_problem(read("CHANGELOG.md"), version, candidate=True)
    assert not citation_problem(read("CITATION.cff"), version, urls, project()["license"])


def test_the_address_is_the_same_everywhere():
    """Every address of the project in a tracked text begins with one of pyproject.toml."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    urls = project()["urls"]
    starts = (f"{urls['Homepage']}/", urls["Documentation"])
    owner = urls["Homepage"].removeprefix("https://github.com/")
    site = r"https://(?:github\.com/[\w-]+/bngrad|[\w-]*\.github\.io/bngrad)"
    files, others = set(), []
    for name in listed.splitlines():
        text = (ROOT / name).read_bytes().decode("utf-8", "ignore") if (ROOT / name).is_file() else ""
        addresses = re.findall(rf"{site}\b[^\s'\")<>@]*", text)
        actions = re.findall(r"uses: ([\w-]+/bngrad)@", text)
        files |= {name} if addresses or actions else set()
        others += [f"{name}: {url}" for url in addresses if not f"{url.removesuffix('.git')}/".startswith(starts)]
        others += [f"{name}: {action}" for action in actions if action != owner]
    assert others == []
    assert {"CITATION.cff", "mkdocs.yml", "recipe/recipe.yaml", ".github/ISSUE_TEMPLATE/config.yml"} <= files


def test_the_example_of_pre_commit_has_the_hook_of_this_version():
    (repository,) = yaml.safe_load(read("docs/examples/ci/pre-commit-config.yaml"))["repos"]
    assert repository["rev"] == f"v{project()['version']}"


@pytest.mark.parametrize("version", ["0.1.0", "1.2.3", "10.0.1", "1.2.3rc1"])
def test_a_version(version):
    assert not version_problem(version)


@pytest.mark.parametrize("version", ["1.2", "1.2.3.dev0", "1.2.3+local", "01.2.3", "1.2.3-rc1", "next", ""])
def test_no_version_of_a_release(version):
    assert "expected one like 1.2.3" in version_problem(version)


@pytest.mark.parametrize(
    ("text", "candidate"),
    [
        (SECTION, False),
        (SECTION, True),
        (SECTION.replace("1.2.3 (2026-01-31)", "Unreleased"), True),
    ],
)
def test_a_changelog(text, candidate):
    assert not changelog_problem(text, "1.2.3", candidate=candidate)


@pytest.mark.parametrize(
    ("text", "candidate", "problem"),
    [
        ("# Changelog\n", True, "has no section"),
        (SECTION.replace("1.2.3 (2026-01-31)", "Unreleased"), False, "begins with '## Unreleased'"),
        (SECTION.replace(" (2026-01-31)", ""), False, "expected '## 1.2.3 (YYYY-MM-DD)'"),
        (SECTION.replace("- A.\n", ""), False, "the section 1.2.3 is empty"),
        (SECTION.replace("1.2.3", "1.2.4"), True, "begins with '## 1.2.4 (2026-01-31)'"),
        ("## Unreleased\n\n" + SECTION, False, "the section Unreleased is empty"),
    ],
)
def test_a_changelog_that_is_not_ready(text, candidate, problem):
    assert problem in changelog_problem(text, "1.2.3", candidate=candidate)


def test_a_citation():
    assert not citation_problem(yaml.safe_dump(CITATION), "1.2.3", URLS, "MIT")


@pytest.mark.parametrize("key", CITATION)
@pytest.mark.parametrize("other", ["9.9.9", None])
def test_a_citation_that_disagrees(key, other):
    text = yaml.safe_dump(CITATION | {key: other})
    assert f"CITATION.cff: {key} is {other!r}" in citation_problem(text, "1.2.3", URLS, "MIT")


@pytest.mark.parametrize(("npm", "version"), [("1.2.3", "1.2.3"), ("1.2.3-rc1", "1.2.3rc1")])
def test_an_npm_package(npm, version):
    assert not npm_problem(PACKAGE | {"version": npm}, version, URLS, "MIT")


@pytest.mark.parametrize("key", PACKAGE)
@pytest.mark.parametrize("other", ["9.9.9", None])
def test_an_npm_package_that_disagrees(key, other):
    assert f"package.json: {key} is {other!r}" in npm_problem(PACKAGE | {key: other}, "1.2.3", URLS, "MIT")


def test_the_example_locks_the_npm_package_of_this_tree():
    package = json.loads(read("docs/examples/step/package.json"))
    locked = json.loads(read("docs/examples/node/package-lock.json"))["packages"]["../step"]
    assert {key: locked[key] for key in ("version", "peerDependencies")} == {
        key: package[key] for key in ("version", "peerDependencies")
    }


METADATA = {
    "version": "1.2.3",
    "license": "MIT",
    "requires-python": ">=3.11",
    "dependencies": ["click>=8.1", "flatbuffers>=23.5"],
    "urls": URLS,
}
RECIPE = {
    "context": {"version": "1.2.3"},
    "requirements": {
        "host": ["python", "pip", "scikit-build-core >=0.10"],
        "run": ["python >=3.11", "click >=8.1", "python-flatbuffers >=23.5"],
    },
    "about": {
        "license": "MIT",
        "homepage": URLS["Homepage"],
        "repository": URLS["Homepage"],
        "documentation": URLS["Documentation"],
    },
}


def test_a_recipe():
    assert not recipe_problem(RECIPE, METADATA, ["scikit-build-core>=0.10"])


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [(group, key, [] if group == "requirements" else "9.9") for group in RECIPE for key in RECIPE[group]],
)
def test_a_recipe_that_disagrees(group, key, value):
    recipe = RECIPE | {group: RECIPE[group] | {key: value}}
    problem = recipe_problem(recipe, METADATA, ["scikit-build-core>=0.10"])
    assert problem.startswith("recipe.yaml: ")
    assert f"{key} is {value!r}; expected" in problem


@pytest.mark.parametrize("tags", [["v1.2.3"], ["latest", "v1.2.3"]])
def test_the_tag_of_a_release(tags):
    assert not tag_problem(tags, "1.2.3")


@pytest.mark.parametrize(("tags", "listed"), [([], "none"), (["1.2.3"], "1.2.3"), (["v1.2.2"], "v1.2.2")])
def test_a_commit_without_the_tag(tags, listed):
    assert f"are: {listed}; expected v1.2.3" in tag_problem(tags, "1.2.3")


@pytest.mark.parametrize(
    "remote", ["https://host/o/p", "https://host/o/p.git", "git@host:o/p.git", "ssh://git@host/o/p.git"]
)
def test_the_remote_of_a_release(remote):
    assert not remote_problem(remote, URLS)


@pytest.mark.parametrize("remote", ["", "https://host/fork/p.git", "git@other:o/p.git", "/home/me/p"])
def test_another_remote(remote):
    assert "expected Homepage of pyproject.toml" in remote_problem(remote, URLS)


SCHEMAS = {
    "CITATION.cff": "vendor.citation-file-format",
    ".github/ISSUE_TEMPLATE/bug.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/wrong-gradient.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_for_the_code_host_has_its_schema(name):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name], str(ROOT / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_issue_form_is_checked():
    assert {path.name for path in (ROOT / ".github/ISSUE_TEMPLATE").iterdir()} == {
        name.rpartition("/")[2] for name in SCHEMAS if name.startswith(".github/ISSUE_TEMPLATE/")
    }
