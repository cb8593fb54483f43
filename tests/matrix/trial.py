"""One environment of the matrix, which is built once and kept under build/matrix, and its tests."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from bngrad.oracle import interpreter
from environments import interpreter_of, make_environment, run
from project_metadata import ROOT

if TYPE_CHECKING:
    from rows import Refusal, Row

KEPT = ROOT / "build" / "matrix"
SUITES = {"ops": ROOT / "tests/ops/test_ort_op.py", "package": ROOT / "tests/matrix/test_in_environment.py"}
"""Test files that import only packages that every environment has."""

DESCRIBE = """
import json, platform, re, sys
from importlib.metadata import distributions
import bngrad
names = {re.sub("[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in distributions()}
print(json.dumps({"python": platform.python_version(), "packages": names, "bngrad": bngrad.__file__}))
"""
USE = "from bngrad import register; import onnxruntime; register(onnxruntime.SessionOptions(), 'python')"
REGISTER = "import sys, onnxruntime as o; o.SessionOptions().register_custom_ops_library(sys.argv[1])"


class NotMadeError(Exception):
    """An environment cannot be built; the message is pip's."""


def find_python(release: str) -> Path:
    """The interpreter of a Python version, from the search path or from pyenv; else the running one."""
    version = tuple(map(int, release.split(".")))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = ([str(path)] for path in sorted(pyenv.glob(f"{release}.*/bin/python")))
    candidates = (interpreter._ask(command, version) for command in (*kept, *interpreter._candidates(version)))
    return next(filter(None, candidates), Path(sys.executable))


def build_wheel() -> Path:
    """The wheel of this tree, built again if a source file is newer."""
    folder = KEPT / "wheel"
    sources = [ROOT / "pyproject.toml", *(ROOT / "bngrad").rglob("*.py"), *(ROOT / "ops").rglob("*")]
    newest = max(path.stat().st_mtime for path in sources)
    for wheel in folder.glob("*.whl"):
        if wheel.stat().st_mtime > newest:
            return wheel
        wheel.unlink()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def prepare(row: Row, wheel: Path) -> Path:
    """The interpreter of a row's environment, with the wheel in it.

    An environment is kept as long as the row's requirements stay the same. Without pins, it is upgraded.

    Raises:
        NotMadeError: pip refuses.
    """
    folder = KEPT / row.name.replace(" ", "-").replace(",", "")
    base = find_python(row.python)
    asked = json.dumps([str(base), *row.requirements()])
    record = folder / "made.json"
    requirements = ["pytest>=8", *row.requirements()]
    try:
        if not record.is_file() or record.read_text(encoding="utf-8") != asked:
            make_environment(folder, requirements, base)
        elif not row.pins:
            _pip(folder, "install", "--quiet", "--upgrade", "--upgrade-strategy=eager", *requirements)
        record.write_text(asked, encoding="utf-8")
        _pip(folder, "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
        if row.replaced is None:
            _pip(folder, "check")
    except AssertionError as error:  # a command failed; its output is the message
        raise NotMadeError(_error_line(str(error))) from error
    return interpreter_of(folder)


def try_row(row: Row, wheel: Path) -> dict:
    """A row of the report: the packages of its environment and the tests that passed there."""
    result: dict = {"name": row.name, "expected": "works", "python": row.python, "packages": {}}
    try:
        python = prepare(row, wheel)
    except NotMadeError as error:
        return result | {"outcome": "not installable", "remarks": [str(error)]}
    done = call(python, "-c", DESCRIBE)
    if done.returncode != 0:
        return result | {"outcome": "failed", "remarks": [done.stderr.strip().splitlines()[-1]]}
    described = json.loads(done.stdout)
    assert Path(described.pop("bngrad")).is_relative_to(KEPT), "the tree was tested, not the wheel"
    suites, remarks = run_suites(python, KEPT / f"{row.name}.xml")
    failed = any(counts["failed"] for counts in suites.values())
    return result | described | {"suites": suites, "outcome": "failed" if failed else "passed", "remarks": remarks}


def try_refusal(refusal: Refusal, python: Path) -> dict:
    """A row of the report: the message that refuses a release, which precedes the packages of an environment."""
    result: dict = {"name": refusal.name, "expected": "refused", "packages": {refusal.package: refusal.version}}
    folder = KEPT / "refused" / refusal.name.replace(" ", "-")
    if not folder.is_dir():
        target = ("--target", folder, "--no-deps", "--no-compile")
        try:
            run(python, "-m", "pip", "install", "--quiet", *target, f"{refusal.package}=={refusal.version}")
        except AssertionError as error:
            return result | {"outcome": "not installable", "remarks": [_error_line(str(error))]}
    ways = {"-c": call(python, "-c", USE, before=folder)}
    if refusal.package != "onnxruntime-extensions":  # which no other use needs
        ways["bngrad"] = call(python, "-m", "bngrad", "inspect", "model.onnx", before=folder)
    lines = [done.stderr.strip().splitlines()[-1] for done in ways.values()]
    expected = ["bngrad.errors.VersionError: " + refusal.says, "bngrad: error: " + refusal.says]
    refused = [line.startswith(want) for line, want in zip(lines, expected, strict=False)]
    if "bngrad" in ways:
        refused.append(ways["bngrad"].returncode == 2 and len(ways["bngrad"].stderr.splitlines()) == 1)
    remarks = [lines[0].removeprefix("bngrad.errors.VersionError: ")]
    if refusal.native is not None:
        library = call(
            python, "-c", "import bngrad.runtime.native_library as n; print(n.library_path())"
        ).stdout.strip()
        said = call(python, "-c", REGISTER, library, before=folder).stderr.strip().splitlines()[-1]
        refused.append(refusal.native in said)
        remarks.append(f"the library, registered: {said}")
    return result | {"outcome": "refused" if all(refused) else "failed", "remarks": remarks}


def run_suites(python: Path, report: Path) -> tuple[dict, list[str]]:
    """Runs the test files; returns counts by file, and messages of tests that failed or were skipped."""
    options = ["--noconftest", "--rootdir", ROOT / "tests", "-c", os.devnull, "-p", "no:cacheprovider"]
    done = call(python, "-m", "pytest", "-q", *options, f"--junit-xml={report}", *SUITES.values(), tests=True)
    suites = {name: {"passed": 0, "failed": 0, "skipped": 0} for name in SUITES}
    files = {path.stem: name for name, path in SUITES.items()}
    said: dict[str, list[str]] = {}
    cases = ET.parse(report).iter("testcase") if report.is_file() else ()  # noqa: S314 - pytest wrote it
    for case in cases:
        suite = next((name for stem, name in files.items() if stem in case.get("classname", "")), "package")
        bad = [child for child in case if child.tag in {"failure", "error"}]
        skips = [child for child in case if child.tag == "skipped"]
        suites[suite]["failed" if bad else "skipped" if skips else "passed"] += 1
        for child in (*bad, *skips):
            kind = "skipped" if child in skips else "failed"
            said.setdefault(f"{kind}: {_first_line(child.get('message', ''))}", []).append(case.get("name", ""))
    if not any(sum(counts.values()) for counts in suites.values()) or (done.returncode != 0 and not said):
        suites["package"]["failed"] += 1  # pytest itself ended: a crash of the process, say
        said[f"pytest ended with {done.returncode}: {_first_line(done.stderr or done.stdout[-500:])}"] = ["pytest"]
    report.unlink(missing_ok=True)
    return suites, [f"{message} ({len(names)}: {', '.join(names[:2])})" for message, names in said.items()]


def call(
    python: Path, *arguments: object, before: Path | None = None, tests: bool = False
) -> subprocess.CompletedProcess:
    """Runs the Python of an environment, which sees no file of this tree except tests/."""
    paths = [before] * (before is not None) + [ROOT / "tests"] * tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BNGRAD_", "PYTHON"))}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths))} if paths else {}
    command = [str(part) for part in (python, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=KEPT)


def _pip(folder: Path, *arguments: object) -> str:
    return run(interpreter_of(folder), "-m", "pip", *arguments)


def _error_line(output: str) -> str:
    """The error that pip prints, without the places that it searched."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "WARNING" not in line]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return " ".join(itertools.islice(errors or lines[-1:], 2))


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]
