"""`make release-check`: whether this commit can be released, from its texts to its wheels in new environments.

Everything is made in build/release from a clean clone. Prints a line for each step; exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "matrix")]

import distributions
import fresh_install
import release_facts
from project_metadata import ROOT, build_requirements, project

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER = ROOT / "build" / "release"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidate", action="store_true", help="check a commit that has no tag yet")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    return 1 if failures(steps(FOLDER, candidate=options.candidate)) else 0


def steps(folder: Path, *, candidate: bool) -> Mapping[str, Callable[[], str]]:
    """The steps in their order: each returns its fault, and uses the results of the steps before it."""
    metadata = project()
    version, urls = metadata["version"], metadata["urls"]
    clone, dist = folder / "clone", folder / "dist"
    return {
        "work tree": lambda: (
            f"uncommitted: {changed.splitlines()[0]}" if (changed := _git("status", "-s")) else ""
        ),
        "version": lambda: release_facts.version_problem(version),
        "changelog": lambda: release_facts.changelog_problem(_text("CHANGELOG.md"), version, candidate=candidate),
        "citation": lambda: release_facts.citation_problem(
            _text("CITATION.cff"), version, urls, metadata["license"]
        ),
        "npm package": lambda: release_facts.npm_problem(
            json.loads(_text("docs/examples/step/package.json")), version, urls, metadata["license"]
        ),
        "recipe": lambda: release_facts.recipe_problem(
            yaml.safe_load(_text("recipe/recipe.yaml")), metadata, build_requirements()
        ),
        "tag": lambda: "" if candidate else release_facts.tag_problem(_annotated_tags(), version),
        "remote": lambda: "" if candidate else release_facts.remote_problem(_remote(), urls),
        "distributions": lambda: distributions.build_problem(clone, dist),
        "source distribution": lambda: distributions.content_problem(clone, dist),
        "newest": lambda: fresh_install.wheel_problem(dist, "all newest", folder / "newest"),
        "oldest": lambda: fresh_install.wheel_problem(dist, "all oldest", folder / "oldest"),
        "from source": lambda: fresh_install.source_problem(dist, folder / "source"),
    }


def failures(checks: Mapping[str, Callable[[], str]]) -> list[str]:
    """Runs all steps, prints a line for each, and returns the names of those that failed."""
    failed = []
    for name, check in checks.items():
        begun = time.monotonic()
        try:
            problem = check()
        except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
            problem = (str(error).strip() or type(error).__name__).splitlines()[-1]
        print(f"{name}: {problem or 'ok'} ({time.monotonic() - begun:.0f} s)", flush=True)
        if problem:
            failed.append(name)
    print(f"not ready: {', '.join(failed)}" if failed else "ready to release")
    return failed


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _annotated_tags() -> list[str]:
    listed = _git("for-each-ref", "--points-at=HEAD", "--format=%(objecttype) %(refname:short)", "refs/tags")
    return [line.removeprefix("tag ") for line in listed.splitlines() if line.startswith("tag ")]


def _remote() -> str:
    return _git("remote", "get-url", "origin") if "origin" in _git("remote").splitlines() else ""


if __name__ == "__main__":
    sys.exit(main())
