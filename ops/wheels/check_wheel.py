"""Checks wheels before a release: `python -m ops.wheels.check_wheel dist/*.whl`.

Prints one line for each problem, and exits with 1 if there is any; otherwise prints a table of sizes.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ops.wheels.check_library import library_problems
from ops.wheels.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SIZE = 3_000_000
"""Bytes that a wheel may have."""

LICENSES = ("LICENSE", "LICENSE-THIRD-PARTY.txt")


def main(arguments: list[str]) -> int:
    """Runs the program; returns its exit code."""
    wheels = [Path(argument) for argument in arguments]
    if not wheels:
        print("usage: python -m ops.wheels.check_wheel WHEEL...", file=sys.stderr)
        return 2
    problems = [problem for wheel in wheels for problem in wheel_problems(wheel)]
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    if problems:
        return 1
    print(size_table(wheels))
    return 0


def size_table(wheels: list[Path]) -> str:
    """Returns a table in Markdown: the size of each wheel, and of the library in it."""
    lines = ["| wheel | size | library |", "|---|---|---|"]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            library = next(info for info in archive.infolist() if _is_library(info.filename))
        lines.append(f"| {wheel.name} | {wheel.stat().st_size / 1e6:.2f} MB | {library.file_size / 1e6:.2f} MB |")
    return "\n".join(lines)


def wheel_problems(path: Path) -> Iterator[str]:
    """Yields what is wrong with a wheel, each in one line that begins with its name."""
    try:
        with zipfile.ZipFile(path) as archive:
            for problem in _problems(path, archive):
                yield f"{path.name}: {problem}"
    except (OSError, zipfile.BadZipFile) as error:
        yield f"{path.name}: cannot be read as a wheel: {error}"


def target_of(name: str) -> Target | None:
    """Returns the platform whose tag a wheel has, by the wheel's file name."""
    platforms = set(name.removesuffix(".whl").rpartition("-")[2].split("."))
    return next((target for target in TARGETS.values() if set(target.tag.split(".")) == platforms), None)


def _problems(path: Path, archive: zipfile.ZipFile) -> Iterator[str]:
    target = target_of(path.name)
    if target is None:
        yield f"no platform of targets.py has the tag of this name; expected one of {[*TARGETS]}"
        return
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        yield str(error)
        return
    if tags != parse_tag(f"py3-none-{target.tag}"):
        yield f"the tag is {path.stem.split('-', 2)[2]}, expected py3-none-{target.tag}"
    if path.stat().st_size > MAX_SIZE:
        yield f"has {path.stat().st_size} bytes, more than {MAX_SIZE}"
    info = f"{name}-{version}.dist-info"
    files = archive.namelist()
    missing = {f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")} - set(files)
    if missing:
        yield f"has no {', '.join(sorted(missing))}"
        return
    yield from _record_problems(archive, f"{info}/RECORD")
    yield from _metadata_problems(archive, info, str(version), target)
    yield from _content_problems(files, info)

    header, library = "bngrad/include/bngrad.h", f"bngrad/lib/{target.library}"
    if header not in files or library not in files:
        yield f"has no {header if header not in files else library}"
        return
    names = re.findall(r"^BNGRAD_EXPORT[^(]*?(\w+)\(", archive.read(header).decode(), re.MULTILINE)
    functions = {"RegisterCustomOps", *names}
    found = list(library_problems(archive.read(library), target, functions))
    yield from (f"{library} {problem}" for problem in found)
    if not found and target.tag.startswith("manylinux"):
        yield from _policy_problems(path, target)


def _record_problems(archive: zipfile.ZipFile, record: str) -> Iterator[str]:
    """Every file has to be listed with its hash and size, except RECORD, which is listed without."""
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode())) if row}
    files = archive.namelist()
    yield from (f"RECORD lists {file}, which is not there" for file in sorted(listed.keys() - set(files)))
    yield from (f"{file} is there twice" for file in sorted({file for file in files if files.count(file) > 1}))
    for file in files:
        content = archive.read(file)
        encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        expected = ["", ""] if file == record else [f"sha256={encoded}", str(len(content))]
        if listed.get(file) != expected:
            yield f"{file} is not in RECORD, or has another hash or size"


def _metadata_problems(archive: zipfile.ZipFile, info: str, version: str, target: Target) -> Iterator[str]:
    metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    for key, expected in {"Name": "bngrad", "Version": version, "License-Expression": "Apache-2.0"}.items():
        if metadata[key] != expected:
            yield f"METADATA has {key}: {metadata[key]}, expected {expected}"
    for license_file in LICENSES:
        if license_file not in metadata.get_all("License-File", []):
            yield f"METADATA has no License-File: {license_file}"
        if not archive.NameToInfo.get(f"{info}/licenses/{license_file}"):
            yield f"has no {info}/licenses/{license_file}"
    wheel = email.message_from_bytes(archive.read(f"{info}/WHEEL"))
    if wheel["Root-Is-Purelib"] != "false":
        yield f"WHEEL has Root-Is-Purelib: {wheel['Root-Is-Purelib']}, expected false"
    tags = {tag for line in wheel.get_all("Tag", []) for tag in parse_tag(line)}
    if tags != parse_tag(f"py3-none-{target.tag}"):
        yield f"WHEEL has the tags {sorted(map(str, tags))}, expected py3-none-{target.tag}"


def _content_problems(files: list[str], info: str) -> Iterator[str]:
    for file in files:
        if not file.startswith(("bngrad/", f"{info}/")) or file.endswith(".pyc"):
            yield f"has {file}, which is no part of the package"
    libraries = [file for file in files if _is_library(file)]
    if len(libraries) > 1:
        yield f"has {len(libraries)} libraries: {', '.join(libraries)}"


def _is_library(file: str) -> bool:
    return file.endswith((".so", ".dylib", ".dll", ".a", ".lib", ".pyd"))


def _policy_problems(path: Path, target: Target) -> Iterator[str]:
    """Asks auditwheel for the oldest glibc whose symbols suffice."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"auditwheel: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}"
        return
    tag = json.loads(done.stdout)["overall_tag"]
    found, newest = (re.search(r"manylinux_2_(\d+)_", text) for text in (tag, target.tag))
    if found is None or newest is None or int(found[1]) > int(newest[1]):
        yield f"auditwheel finds {tag}, expected {target.tag}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
