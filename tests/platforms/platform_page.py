"""The record of a run as tables of docs/reference/platforms.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BEGIN, END = "<!-- `make platforms` writes what follows -->", "<!-- `make platforms` wrote what is above -->"
SYSTEMS = {
    "linux": "Linux, glibc 2.17 or newer",
    "musl": "Linux, musl 1.2 or newer",
    "macos": "macOS 11 or newer",
    "windows": "Windows 10 or newer",
}


def tables(rows: Iterable[Mapping]) -> str:
    """A summary with one row for each target, then the checks of each."""
    rows = list(rows)
    text = [_table(["platform", "CPU", "wheel", "compiled with", "run", "not run"], map(_summary, rows))]
    for row in rows:
        if row["runs"]:
            seen = [[run["where"], run["what"], _seen(run)] for run in row["runs"]]
            text += [f"### {row['target']}", _table(["where", "what was run", "what was seen"], seen)]
    return "\n\n".join(text) + "\n"


def write(path: Path, rows: Iterable[Mapping]) -> None:
    """Puts the tables between their marks in a document."""
    head, rest = path.read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    path.write_text(f"{head}{BEGIN}\n\n{tables(rows)}\n{END}{tail}", encoding="utf-8")


def _summary(row: Mapping) -> list[str]:
    system, _, machine = row["target"].partition("-")
    bad = sum(not run["good"] for run in row["runs"])
    places = list(dict.fromkeys(run["where"] for run in row["runs"]))
    ran = "; ".join(places) + (f" (**{bad} not as expected**)" if bad else "")
    return [SYSTEMS[system], machine, row["wheel"] or "-", row["compiler"], ran or "-", row["not_run"] or "-"]


def _seen(run: Mapping) -> str:
    return run["seen"] if run["good"] else f"**not as expected:** {run['seen']}"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
