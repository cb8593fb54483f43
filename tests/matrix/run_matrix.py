"""`make matrix`: tries the wheel with other releases of its dependencies, and writes docs/reference/versions.md.

Environments are kept under build/matrix, so that the next run only puts a new wheel into them. Exit code 1 if a
row is not as expected.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import report
import trial
from project_metadata import ROOT
from rows import REFUSED, Refusal, Row, rows

DOCUMENT = ROOT / "docs" / "reference" / "versions.md"
RESULTS = trial.KEPT / "report.json"
BASE = "onnxruntime 1.31.1"
"""The row whose environment tries the refusals."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="ROW", help="try these rows anew; all by default")
    parser.add_argument("--report-only", action="store_true", help="write the table from the last run's results")
    options = parser.parse_args()
    everything = {row.name: row for row in (*rows(), *REFUSED)}
    if unknown := set(options.names) - everything.keys():
        parser.error(f"no row {', '.join(sorted(unknown))}; there are: {', '.join(everything)}")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    if not options.report_only:
        trial.KEPT.mkdir(parents=True, exist_ok=True)
        wheel = trial.build_wheel()
        for name in options.names or everything:
            results[name] = _try(everything[name], wheel)
            RESULTS.write_text(json.dumps(results, indent=2), encoding="utf-8")
    shown = [results.get(name) or _untried(row) for name, row in everything.items()]
    report.write(DOCUMENT, shown)
    wrong = [result for result in shown if not is_as_expected(result)]
    print(f"{len(shown) - len(wrong)} of {len(shown)} rows are as expected; {DOCUMENT}")
    for result in wrong:
        print(f"not as expected: {result['name']}: {result['outcome']}")
    return 1 if wrong else 0


def is_as_expected(result: dict) -> bool:
    """Returns whether a row worked or was refused, as expected; a release that the index lacks does neither."""
    return result["outcome"] == {"works": "passed", "refused": "refused"}[result["expected"]]


def _untried(row: Row | Refusal) -> dict:
    expected = "works" if isinstance(row, Row) else "refused"
    python = row.python if isinstance(row, Row) else ""
    rest = {"packages": {}, "outcome": "not tried", "remarks": []}
    return {"name": row.name, "expected": expected, "python": python, **rest}


def _try(row: Row | Refusal, wheel: Path) -> dict:
    begun = time.monotonic()
    print(f"{row.name}: ", end="", file=sys.stderr, flush=True)
    if isinstance(row, Row):
        result = trial.try_row(row, wheel)
    else:
        (base,) = (row for row in rows() if row.name == BASE)
        result = trial.try_refusal(row, trial.prepare(base, wheel))
    print(f"{result['outcome']}, {time.monotonic() - begun:.0f} s", file=sys.stderr)
    for remark in result["remarks"]:
        print(f"    {remark}", file=sys.stderr)
    return result


if __name__ == "__main__":
    sys.exit(main())
