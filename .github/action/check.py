"""Inspects and validates models, and writes a report of each in every format.

A step of action.yml, which runs with the Python that bngrad is installed for; it runs elsewhere, too. It prints
the output of the commands, and annotations of GitHub Actions. Exit codes: 0 if every model passed, 1 if one did
not, 2 if one could not be checked, 3 if a check that decides could not be run for one.
"""  # noqa: INP001

from __future__ import annotations

import argparse
import glob
import os
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from bngrad.reports.annotations import annotation
from bngrad.reports.summary import error_summary, inspection_summary

FAILED, ERROR, INCOMPLETE = 1, 2, 3
_BY_SEVERITY = (0, INCOMPLETE, FAILED, ERROR)
FORMATS = {"junit": "xml", "html": "html", "sarif": "sarif"}
"""The ending of each format of a report, by its option of `validate`."""

INSPECTION = "inspect"
"""The name of the report of `inspect`."""


def main() -> int:
    """Checks the models; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", required=True, help="paths or patterns, one on each line")
    parser.add_argument("--against", default="ort", help="reference of `validate`, or none")
    parser.add_argument("--arguments", default="", help="more options of `validate`")
    parser.add_argument("--fail-on", default="none", help="as of `inspect`")
    parser.add_argument("--reports", type=Path, default=Path("bngrad-reports"), help="folder for the reports")
    parser.add_argument("--summary", type=Path, help="file to append a summary in Markdown to")
    options = parser.parse_args()
    try:
        return check(options)
    except (ValueError, OSError) as error:
        say(annotation("error", str(error), title="bngrad"))
        return ERROR


def check(options: argparse.Namespace) -> int:
    """Checks the models; returns the exit code.

    Raises:
        ValueError: A pattern names no model, or the options are not well-formed.
        OSError: A report or the summary cannot be written.
    """
    models, more = expanded(options.models), shlex.split(options.arguments)
    options.reports.mkdir(parents=True, exist_ok=True)
    codes = []
    if options.fail_on != "none" or options.against == "none":
        code, summary = inspect(models, options.fail_on, options.reports)
        codes.append(code)
        append(options.summary, summary)
    if options.against != "none":
        for model, name in zip(models, names(models), strict=True):
            code, summary = validate(model, options.against, more, options.reports / name)
            codes.append(code)
            append(options.summary, summary)
    return max(codes, key=_BY_SEVERITY.index)


def append(path: Path | None, summary: str) -> None:
    """Appends a section to the summary of the job, if there is one."""
    if path is not None and summary:
        with path.open("a", encoding="utf-8") as file:
            file.write(summary)


def expanded(lines: str) -> list[str]:
    """Returns the models that the paths and patterns name, each once.

    Raises:
        ValueError: One names none.
    """
    models: dict[str, None] = {}
    patterns = [line.strip() for line in lines.splitlines() if line.strip()]
    for pattern in patterns:
        # Path.glob takes no absolute patterns.
        found = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        if not found:
            raise ValueError(f"no model matches {pattern!r}")
        models |= dict.fromkeys(Path(one).as_posix() for one in found)
    if not models:
        raise ValueError("no model is named")
    return list(models)


def names(models: list[str]) -> list[str]:
    """Returns a name without ending for the reports of each model; no two are equal, also on Windows."""
    found = [INSPECTION]
    for model in models:
        name = re.sub(r"[^\w.-]+", "-", model.removesuffix(".onnx")).strip("-.") or "model"
        taken = {one.casefold() for one in found}
        numbered = (f"{name}-{number}" for number in range(2, len(models) + 3))
        found.append(next(one for one in (name, *numbered) if one.casefold() not in taken))
    return found[1:]


def inspect(models: list[str], fail_on: str, reports: Path) -> tuple[int, str]:
    """Runs ``bngrad inspect``; returns its exit code, and a summary if it failed."""
    code, errors = run(["inspect", f"--fail-on={fail_on}", f"--sarif={reports / INSPECTION}.sarif"], models)
    named = [re.match("bngrad: (?:failed|error): (.*)", line) for line in errors]
    return code, inspection_summary([one[1] for one in named if one]) if code else ""


def validate(model: str, against: str, more: list[str], report: Path) -> tuple[int, str]:
    """Runs ``bngrad validate``; returns its exit code and a summary.

    Args:
        model: The model.
        against: The reference.
        more: More options.
        report: The path of the reports, without ending.
    """
    with tempfile.TemporaryDirectory() as scratch:
        summary = Path(scratch, "summary.md")
        files = [f"--{kind}={report}.{ending}" for kind, ending in FORMATS.items()]
        code, errors = run(["validate", f"--against={against}", *more, *files, f"--summary={summary}"], [model])
        if summary.exists():
            return code, summary.read_text(encoding="utf-8")
        message = last(errors)
        if not code:  # as with --help
            message = "nothing was validated"
            say(annotation("error", message, title="bngrad", file=model))
        return ERROR, error_summary(model, message)


def run(command: list[str], models: list[str]) -> tuple[int, list[str]]:
    """Runs a command of bngrad, prints what it prints and its annotations.

    Returns:
        The exit code: 0, `FAILED`, `INCOMPLETE` or `ERROR`; and the lines on stderr.
    """
    # Nothing that a command prints, such as a name in a model, is a command of GitHub's runner.
    token = secrets.token_hex(16) if os.environ.get("GITHUB_ACTIONS") == "true" else ""
    with tempfile.TemporaryDirectory() as scratch:
        annotations = Path(scratch, "annotations.txt")
        command = [*command, f"--annotations={annotations}", "--", *models]
        say(f"::stop-commands::{token}" if token else "")
        say(f"$ bngrad {shlex.join(command)}")
        done = subprocess.run([sys.executable, "-m", "bngrad", *command], stderr=subprocess.PIPE, check=False)
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        say("\n".join(errors))
        say(f"::{token}::" if token else "")
        if annotations.exists():
            say(annotations.read_text(encoding="utf-8").rstrip())
        elif done.returncode != 0:
            message = last(errors) or f"exit code {done.returncode}"
            say(annotation("error", message, title="bngrad", file=models[0]))
    return done.returncode if done.returncode in _BY_SEVERITY else ERROR, errors


def last(errors: list[str]) -> str:
    """Returns the message of the last line on stderr."""
    return errors[-1].removeprefix("bngrad: error: ") if errors else ""


def say(text: str) -> None:
    """Prints text, before what a command prints next."""
    if text:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
