"""Builds the source distribution and a wheel for each platform, on one Linux machine: `make wheels`.

    python -m ops.wheels.build_wheels [--output dist] [--only linux-x86_64] [--twice]

scikit-build-core builds each wheel from the unpacked source distribution, with zig as the compiler (zig.cmake).
Files depend on the sources and the pinned tools alone: times are that of the last commit, and --twice builds
everything in two folders and compares. Nothing is written to the output folder unless every wheel passes
check_wheel.py.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from ops.wheels.check_wheel import size_table, wheel_problems
from ops.wheels.macho import hide_exports
from ops.wheels.notices import write_notices
from ops.wheels.sbom import NAME as SBOM
from ops.wheels.sbom import bill_of_materials
from ops.wheels.targets import TARGETS

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "wheels"

QUIET = 10.0
"""Seconds between two lines about one stage."""

ZIG_EXPORTS = frozenset({"__mh_dylib_header", "___dso_handle"})
"""Names that zig's linker exports from every Mach-O library."""


def main() -> int:
    """Runs the program; returns its exit code."""
    parser = argparse.ArgumentParser(description="Build the source distribution and the wheels of all platforms.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the results (default: dist)")
    parser.add_argument(
        "--only", action="append", choices=TARGETS, help="a platform; may be repeated (default: all)"
    )
    parser.add_argument("--twice", action="store_true", help="build in two folders and compare the files")
    options = parser.parse_args()
    os.umask(0o022)  # wheels keep the modes of files
    names = options.only or list(TARGETS)

    built = build(WORK / "first", names, zig_cache=None)
    say(f"checking {', '.join(names)}")
    problems = [problem for path in built[1:] for problem in wheel_problems(path)]
    if options.twice:
        say("the second build, with an empty cache")
        again = build(WORK / "second", names, zig_cache=WORK / "second" / "zig")
        problems += [
            f"{first.name}: two builds differ: {digest(first)} and {digest(second)}"
            for first, second in zip(built, again, strict=True)
            if digest(first) != digest(second)
        ]
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    for path in built:
        temporary = options.output / f".{path.name}"
        shutil.copyfile(path, temporary)
        temporary.replace(options.output / path.name)
    print(size_table(built[1:]))
    return 0


def build(folder: Path, names: list[str], *, zig_cache: Path | None) -> list[Path]:
    """Builds the source distribution and the wheels in a folder; returns their paths, the former first.

    Args:
        folder: The folder, which is emptied first.
        names: The platforms.
        zig_cache: Where zig keeps what it compiles, the C++ library among it. By default the user's cache.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if zig_cache is not None:
        os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(zig_cache)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT]
    run("source distribution", *command)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    write_notices(source / "LICENSE-THIRD-PARTY.txt", zig().parent)
    wheels = []
    for name in names:
        began = time.monotonic()
        wheels.append(build_wheel(name, source, folder / name))
        say(f"{name}: {wheels[-1].name}, {time.monotonic() - began:.0f} s")
    return [sdist, *wheels]


def build_wheel(name: str, source: Path, folder: Path) -> Path:
    """Builds the wheel of the platform `name` in a folder; returns its path."""
    target = TARGETS[name]
    compiling, packing = f"{name}: compiling", f"{name}: packing"
    settings = {
        "build-dir": folder / "build",
        "install.strip": "false",  # the linker did
        "cmake.define.CMAKE_TOOLCHAIN_FILE": source / "ops" / "wheels" / "zig.cmake",
        "cmake.define.BNGRAD_ZIG": zig(),
        "cmake.define.BNGRAD_ZIG_TARGET": target.zig,
        "cmake.define.BNGRAD_WERROR": "ON",
        "cmake.define.BNGRAD_CUDA": "OFF" if target.file_format == "MACHO" else "ON",
    }
    arguments = [f"--config-setting={name}={value}" for name, value in settings.items()]
    run(
        compiling,
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        *arguments,
        source,
    )
    (wheel,) = folder.glob("*.whl")
    run(packing, sys.executable, "-m", "wheel", "unpack", "--dest", folder / "unpacked", wheel)
    (unpacked,) = (folder / "unpacked").iterdir()
    library = unpacked / "bngrad" / "lib" / target.library
    if target.file_format == "MACHO":
        library.write_bytes(hide_exports(library.read_bytes(), ZIG_EXPORTS))
    version = wheel.name.split("-")[1]
    bill = unpacked / f"bngrad-{version}.dist-info" / SBOM
    bill.parent.mkdir()
    version_of_zig = importlib.metadata.version("ziglang")
    bill.write_bytes(bill_of_materials(target, version, library.read_bytes(), zig().parent, version_of_zig))
    run(packing, sys.executable, "-m", "wheel", "pack", "--dest-dir", folder, unpacked)
    # scikit-build-core tags it for the machine that builds.
    run(packing, sys.executable, "-m", "wheel", "tags", "--remove", f"--platform-tag={target.tag}", wheel)
    (wheel,) = folder.glob("*.whl")
    return wheel


def zig() -> Path:
    """Returns the path of the compiler, which the package ziglang brings."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        sys.exit("ziglang is not installed: run `make wheels`, or pip install '.[wheels]'")
    return Path(package.origin).parent / "zig"


def run(stage: str, *command: object) -> None:
    """Runs a command, and says which stage it is, how many steps of ninja are done, and since when it runs.

    If it fails, its output is shown, and this program ends.
    """
    began = said = time.monotonic()
    say(stage)
    output = []
    environment = {"SOURCE_DATE_EPOCH": epoch(), "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    ) as process:
        for line in process.stdout or ():
            output.append(line)
            now = time.monotonic()
            if now - said >= QUIET and (steps := re.match(r"\[(\d+)/(\d+)\]", line)):
                said = now
                say(f"{stage}, {steps[1]} of {steps[2]} steps, {now - began:.0f} s")
    if process.returncode:
        sys.exit(f"{''.join(output)}\nfailed: {' '.join(map(str, command))}")


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def epoch() -> str:
    """Returns the time that all files get: SOURCE_DATE_EPOCH if it is set, else that of the last commit."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return os.environ["SOURCE_DATE_EPOCH"]
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{ROOT} is no git repository: set SOURCE_DATE_EPOCH to the time that the files shall have")
    return done.stdout.strip()


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
