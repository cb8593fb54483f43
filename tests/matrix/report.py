"""The matrix as a table of docs/reference/versions.md, from the JSON document of a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

COLUMNS = ("onnxruntime", "onnx", "onnx-ir", "onnxscript", "onnxruntime-extensions", "numpy")
STAND_INS = {"onnxruntime": ("onnxruntime-training-cpu", "onnxruntime-training")}
BEGIN, END = "<!-- `make matrix` writes what follows -->", "<!-- `make matrix` wrote what is above -->"


def tables(results: Iterable[Mapping]) -> str:
    """The tables of the rows that must work, and of those that must be refused."""
    works, refused = [], []
    for result in results:
        (works if result["expected"] == "works" else refused).append(result)
    heading = ["environment", "Python", *COLUMNS, "ops", "package", "outcome"]
    text = [_table(heading, [_works(result) for result in works])]
    remarks = [(result["name"], remark) for result in works for remark in result["remarks"]]
    if remarks:
        text.append("Skipped tests, and messages of pip:")
        text.append("\n".join(f"- {name}: {_quoted(remark)}" for name, remark in remarks))
    rows = [[r["name"], _outcome(r), "<br>".join(map(_quoted, r["remarks"]))] for r in refused]
    text += ["Unsupported releases, and the messages:", _table(["release", "outcome", "message"], rows)]
    return "\n\n".join(text) + "\n"


def write(path: Path, results: Iterable[Mapping]) -> None:
    """Puts the tables between their marks in a document."""
    document = path.read_text(encoding="utf-8")
    head, rest = document.split(BEGIN)
    _, tail = rest.split(END)
    path.write_text(f"{head}{BEGIN}\n\n{tables(results)}\n{END}{tail}", encoding="utf-8")


def _works(result: Mapping) -> list[str]:
    packages = result["packages"]
    suites = [_counts(result.get("suites", {}).get(name)) for name in ("ops", "package")]
    versions = [_version(packages, name) for name in COLUMNS]
    return [result["name"], result["python"], *versions, *suites, _outcome(result)]


def _version(packages: Mapping[str, str], name: str) -> str:
    for stand_in in STAND_INS.get(name, ()):
        if stand_in in packages:
            return f"{packages[stand_in]} ({stand_in.removeprefix(name + '-')})"
    return packages.get(name, "-")


def _counts(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return "-"
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n or what == "passed")


def _outcome(result: Mapping) -> str:
    outcome = result["outcome"]
    return outcome if outcome in {"passed", "refused"} else f"**{outcome}**"


def _quoted(text: str) -> str:
    """A message as code, in one line, without the paths of the machine."""
    text = re.sub(r"(?:/[\w.+-]+)+/(?=[\w.-]+\.(?:so|py|xml)\b)", "", " ".join(text.split()))
    return f"`{text.replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
