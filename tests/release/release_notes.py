"""Prints the notes of a release: the section of CHANGELOG.md on the version of pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from project_metadata import ROOT, project
from release_facts import changelog_problem, first_section


def main() -> int:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if problem := changelog_problem(changelog, project()["version"], candidate=False):
        sys.exit(problem)
    print(first_section(changelog))
    return 0


if __name__ == "__main__":
    sys.exit(main())
