"""Checks that the facts of a release, which several files state, agree.

Each check returns the fault as one line; an empty string if there is none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HEADING = re.compile(r"^## (?P<version>\S+)(?: \((?P<date>\d{4}-\d{2}-\d{2})\))?$", re.MULTILINE)


def version_problem(version: str) -> str:
    """Checks that a version is one that a package index takes, in its canonical form and with three numbers."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return f"pyproject.toml: {version!r} is not a version; expected one like 1.2.3 or 1.2.3rc1"
    if str(parsed) != version or len(parsed.release) != 3 or parsed.is_devrelease or parsed.local:
        return f"pyproject.toml: version {version}; expected one like 1.2.3 or 1.2.3rc1"
    return ""


def changelog_problem(changelog: str, version: str, *, candidate: bool) -> str:
    """Checks that the first section of the changelog is that of the version, with a date and entries.

    Args:
        changelog: The text of CHANGELOG.md.
        version: The version to release.
        candidate: Whether the section may still be called "Unreleased".
    """
    headings = list(HEADING.finditer(changelog))
    if not headings:
        return "CHANGELOG.md has no section; expected '## VERSION (YYYY-MM-DD)'"
    first = headings[0]
    if not re.search(r"^- ", first_section(changelog), re.MULTILINE):
        return f"CHANGELOG.md: the section {first['version']} is empty"
    if candidate and first["version"] == "Unreleased":
        return ""
    if first["version"] != version or first["date"] is None:
        return f"CHANGELOG.md begins with {first.group()!r}; expected '## {version} (YYYY-MM-DD)'"
    return ""


def first_section(changelog: str) -> str:
    """Returns the text of the first section of the changelog, without its heading."""
    headings = [*HEADING.finditer(changelog), None]
    end = headings[1].start() if headings[1] else len(changelog)
    return changelog[headings[0].end() : end].strip()


def citation_problem(citation: str, version: str, urls: Mapping[str, str], license_name: str) -> str:
    """Checks that CITATION.cff has the version, the license and the addresses of pyproject.toml."""
    got = yaml.safe_load(citation)
    expected = {
        "version": version,
        "license": license_name,
        "repository-code": urls["Homepage"],
        "url": urls["Documentation"],
    }
    for key, value in expected.items():
        if str(got.get(key)) != value:
            return f"CITATION.cff: {key} is {got.get(key)!r}; expected {value!r}, as in pyproject.toml"
    return ""


def npm_problem(package: Mapping[str, Any], version: str, urls: Mapping[str, str], license_name: str) -> str:
    """Checks that the npm package has the version, the license and the addresses of pyproject.toml.

    Args:
        package: The document package.json.
        version: The version to release; a pre-release as 1.2.3rc1 is 1.2.3-rc1 for npm.
        urls: The table ``project.urls``.
        license_name: The license of pyproject.toml.
    """
    expected = {
        "version": re.sub(r"(?<=\d)(?=[a-z])", "-", version),
        "license": license_name,
        "homepage": f"{urls['Documentation']}guides/javascript.html",
        "bugs": urls["Issues"],
        "repository": {"type": "git", "url": f"git+{urls['Homepage']}.git", "directory": "docs/examples/step"},
    }
    for key, value in expected.items():
        if package.get(key) != value:
            return f"package.json: {key} is {package.get(key)!r}; expected {value!r}, as in pyproject.toml"
    return ""


def recipe_problem(recipe: Mapping[str, Any], metadata: Mapping[str, Any], build_requires: Iterable[str]) -> str:
    """Checks that the recipe for conda-forge has the version, requirements and addresses of pyproject.toml.

    Args:
        recipe: The document recipe.yaml.
        metadata: The table ``project``.
        build_requires: The requirements of the table ``build-system``.
    """
    urls, requirements = metadata["urls"], recipe["requirements"]
    run = [f"python {metadata['requires-python']}", *map(_conda_name, metadata["dependencies"])]
    facts = {
        "version": (recipe["context"]["version"], metadata["version"]),
        "requirements of run": (requirements["run"], run),
        "requirements of host": (requirements["host"], ["python", "pip", *map(_conda_name, build_requires)]),
        "license": (recipe["about"]["license"], metadata["license"]),
        "homepage": (recipe["about"]["homepage"], urls["Homepage"]),
        "repository": (recipe["about"]["repository"], urls["Homepage"]),
        "documentation": (recipe["about"]["documentation"], urls["Documentation"]),
    }
    for name, (actual, expected) in facts.items():
        if actual != expected:
            return f"recipe.yaml: {name} is {actual!r}; expected {expected!r}, as in pyproject.toml"
    return ""


def _conda_name(requirement: str) -> str:
    """Returns a requirement as conda-forge spells it."""
    parsed = Requirement(requirement)
    name = {"flatbuffers": "python-flatbuffers"}.get(parsed.name, parsed.name)
    return f"{name} {parsed.specifier}"


def tag_problem(tags: Iterable[str], version: str) -> str:
    """Checks that the commit has the version's tag.

    Args:
        tags: The annotated tags of the commit.
        version: The version to release.
    """
    tags = sorted(tags)
    if f"v{version}" in tags:
        return ""
    listed = ", ".join(tags) or "none"
    return f"the annotated tags of this commit are: {listed}; expected v{version} (git tag -a v{version})"


def remote_problem(remote: str, urls: Mapping[str, str]) -> str:
    """Checks that the project's address is that of the repository that is released.

    Args:
        remote: The address of the remote `origin`; empty if there is none.
        urls: The table ``project.urls``.
    """
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote).removesuffix(".git").rstrip("/")
    if address == urls["Homepage"]:
        return ""
    return (
        f"the remote origin is {remote or 'not set'}; expected Homepage of pyproject.toml, {urls['Homepage']}: "
        "publish from there, or correct the addresses (pyproject.toml, CITATION.cff, mkdocs.yml, .github)"
    )
