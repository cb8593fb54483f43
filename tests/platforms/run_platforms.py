"""`make platforms`: runs the wheels of dist/ where they can be run, and writes docs/reference/platforms.md.

Needs Debian, root, and the wheels of `make wheels`; Debian roots and downloads are kept under build/platforms.
Exit code 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import emulated
import linux
import platform_page
import wine
from harness import ROOT, WORK, PlatformError, Row, find_wheel
from ops.wheels.targets import TARGETS

DOCUMENT = ROOT / "docs" / "reference" / "platforms.md"
RESULTS = WORK / "results.json"
REFERENCE = "linux-x86_64"
"""The target that the others are compared with."""

TRIALS = {
    "linux-x86_64": linux.try_glibc,
    "linux-aarch64": emulated.try_glibc,
    "musl-x86_64": linux.try_musl,
    "musl-aarch64": emulated.try_musl,
    "windows-x86_64": wine.try_x86_64,
}
NOT_RUN = {
    "macos-arm64": "all: nothing here runs macOS programs",
    "macos-x86_64": "all: nothing here runs macOS programs",
    "windows-arm64": "all: nothing here runs Windows programs for arm64",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="TARGET", help="try these anew; all by default")
    parser.add_argument(
        "--wheels", type=Path, default=ROOT / "dist", help="the folder of the wheels; dist by default"
    )
    parser.add_argument("--report-only", action="store_true", help="write the page from the last run's results")
    options = parser.parse_args()
    if unknown := set(options.names) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    if not options.report_only:
        WORK.mkdir(parents=True, exist_ok=True)
        for name in options.names or TARGETS:
            print(name, flush=True)
            result = _try(name, options.wheels, _results().get(REFERENCE, {}).get("reference", {}))
            RESULTS.write_text(json.dumps(_results() | {name: result}, indent=2), encoding="utf-8")
    results = _results()
    rows = [results.get(name) or asdict(Row(name, not_run="not tried")) | {"compiler": "zig"} for name in TARGETS]
    platform_page.write(DOCUMENT, rows)
    bad = [run for row in rows for run in row["runs"] if not run["good"]]
    print(f"{len(bad)} of {sum(len(row['runs']) for row in rows)} records are not as expected; {DOCUMENT}")
    return 1 if bad else 0


def _results() -> dict:
    """The results of earlier runs, by target."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}


def _require_reference(row: Row) -> None:
    """Raises `PlatformError` if there is nothing to compare with."""
    if row.target != REFERENCE and not {"digest", "training"} <= row.reference.keys():
        raise PlatformError(f"nothing to compare with: try {REFERENCE} first")


def _try(name: str, wheels: Path, reference: dict[str, str]) -> dict:
    from ops.wheels.check_wheel import wheel_problems

    target = TARGETS[name]
    row = Row(name, not_run=NOT_RUN.get(name, ""))
    row.reference = {} if name == REFERENCE else dict(reference)
    try:
        wheel = find_wheel(wheels, target.tag)
        row.wheel = wheel.name
        problems = list(wheel_problems(wheel))
        what = "the wheel's file, by ops/wheels/check_wheel.py"
        facts = (
            f"{wheel.stat().st_size / 1e6:.2f} MB; tag, format, exports, needed libraries and licences are right"
        )
        row.add("static", what, "; ".join(problems) or facts, good=not problems)
        if name in TRIALS:
            _require_reference(row)
            TRIALS[name](row, target, wheel)
    except PlatformError as error:
        row.add("here", "preparation", str(error), good=False)
    return asdict(row) | {"compiler": f"zig {metadata.version('ziglang')}"}


if __name__ == "__main__":
    sys.exit(main())
