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
import stat
import subprocess
import sys
import zipfile
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ops.wheels.check_library import library_problems
from ops.wheels.sbom import NAME as SBOM
from ops.wheels.sbom import sbom_problems
from ops.wheels.targets import TARGETS, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SIZE = 3_000_000
"""Bytes that a wheel may have."""

_NATIVE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"!<arch>")
"""The first bytes of programs, libraries and archives."""

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
    # RuntimeError: encrypted; NotImplementedError: compressed in another way; ValueError: not UTF-8.
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError) as error:
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
        name, version, build, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        yield str(error)
        return
    if build or tags != parse_tag(f"py3-none-{target.tag}"):
        yield f"the tag is {path.stem.split('-', 2)[2]}, expected py3-none-{target.tag}"
    if path.stat().st_size > MAX_SIZE:
        yield f"has {path.stat().st_size} bytes, more than {MAX_SIZE}"
    info = f"{name}-{version}.dist-info"
    files = archive.namelist()
    if odd := list(_path_problems(archive)):
        yield from odd  # other tools would follow these paths
        return
    missing = {f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")} - set(files)
    if missing:
        yield f"has no {', '.join(sorted(missing))}"
        return
    yield from _record_problems(archive, f"{info}/RECORD")
    yield from _metadata_problems(archive, info, str(version), target)
    yield from _content_problems(files, info)
    yield from _native_problems(archive, f"bngrad/lib/{target.library}")

    header, library = "bngrad/include/bngrad.h", f"bngrad/lib/{target.library}"
    if header not in files or library not in files:
        yield f"has no {header if header not in files else library}"
        return
    names = re.findall(r"^BNGRAD_EXPORT[^(]*?(\w+)\(", archive.read(header).decode(), re.MULTILINE)
    functions = {"RegisterCustomOps", *names}
    content = archive.read(library)
    problems = list(library_problems(content, target, functions))
    yield from (f"{library} {problem}" for problem in problems)
    if f"{info}/{SBOM}" not in files:
        yield f"has no {info}/{SBOM}"
    else:
        bill = archive.read(f"{info}/{SBOM}")
        yield from (f"{SBOM} {problem}" for problem in sbom_problems(bill, target, str(version), content))
    if not problems and target.tag.startswith("manylinux"):
        yield from _policy_problems(path, target)


def _path_problems(archive: zipfile.ZipFile) -> Iterator[str]:
    """The archive is the whole file, and every entry a regular file, at a path that is one on every system."""
    if min((info.header_offset for info in archive.infolist()), default=0):
        yield "has something in front of the archive"
    seen: dict[str, str] = {}
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        plain = path.as_posix() == info.filename and not path.is_absolute()
        if not plain or ".." in path.parts or re.search(r"[\\:\x00-\x1f]", info.filename):
            yield f"has the path {info.filename!r}; expected one inside of the package"
        elif stat.S_ISLNK(info.external_attr >> 16):
            yield f"{info.filename} is a symbolic link"
        elif (other := seen.setdefault(info.filename.casefold(), info.filename)) != info.filename:
            yield f"{info.filename} and {other} are one file on some systems"


def _record_problems(archive: zipfile.ZipFile, record: str) -> Iterator[str]:
    """Every file has to be listed with its hash and size, except RECORD, which is listed without."""
    rows = [row for row in csv.reader(io.StringIO(archive.read(record).decode())) if row]
    listed = {row[0]: row[1:] for row in rows}
    files = archive.namelist()
    twice = sorted(file for file, count in Counter(row[0] for row in rows).items() if count > 1)
    yield from (f"RECORD lists {file} twice" for file in twice)
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
        values = metadata.get_all(key, [])
        if values != [expected]:
            yield f"METADATA has {key}: {', '.join(values) or 'nothing'}, expected {expected}"
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
    ours = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", SBOM)}
    for file in files:
        is_ours = file.startswith(("bngrad/", f"{info}/licenses/")) or file in ours
        if not is_ours or file.endswith(".pyc"):
            yield f"has {file}, which is no part of the package"
    libraries = [file for file in files if _is_library(file)]
    if len(libraries) > 1:
        yield f"has {len(libraries)} libraries: {', '.join(libraries)}"


def _native_problems(archive: zipfile.ZipFile, library: str) -> Iterator[str]:
    """The library is the only native code."""
    for file in archive.namelist():
        if file != library and archive.read(file).startswith(_NATIVE):
            yield f"{file} is native code; expected none but {library}"


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
    policy, newest = (re.search(r"manylinux_2_(\d+)_", text) for text in (tag, target.tag))
    if policy is None or newest is None or int(policy[1]) > int(newest[1]):
        yield f"auditwheel finds {tag}, expected {target.tag}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
