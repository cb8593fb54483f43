"""Parts shared by the platforms: folders, commands, Debian roots, wheels, programs compiled for a target."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "platforms"
ZIG = [sys.executable, "-m", "ziglang"]
SECONDS = 1800

PACKAGES = {
    "bullseye": ["ca-certificates"],
    "bookworm": ["ca-certificates", "musl", "python3", "python3-venv"],
    "trixie": ["ca-certificates", "musl", "python3", "python3-venv", "qemu-user", "wine", "wine64"],
}
"""The Debian releases that are installed, with their packages."""


class PlatformError(Exception):
    """A check cannot be run here; the message goes to the page."""


@dataclass
class Seen:
    """A check on a platform: where it ran, what ran, what was seen, and whether that is right."""

    where: str
    what: str
    seen: str
    good: bool


@dataclass
class Row:
    """The record of one target."""

    target: str
    wheel: str = ""
    runs: list[Seen] = field(default_factory=list)
    not_run: str = ""
    reference: dict[str, str] = field(default_factory=dict)
    """The results of linux-x86_64, which others are compared with."""

    def add(self, where: str, what: str, seen: str, *, good: bool) -> None:
        """Adds a record, and shows it."""
        self.runs.append(Seen(where, what, seen, good))
        print(f"  {'ok ' if good else 'BAD'} {where}: {what}: {seen}", flush=True)


def run(
    *command: str | Path, check: bool = True, seconds: int = SECONDS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns its result; output that is not UTF-8 is replaced."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,  # by pipes: Wine's Python refuses a file
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=seconds,
            env=os.environ | environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlatformError(f"{command[0]}: {error}") from error
    if check and done.returncode != 0:
        raise PlatformError(
            f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return done


def need(*programs: str) -> None:
    """Raises `PlatformError` unless this is root's Debian with these programs."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        raise PlatformError(f"needs root and these programs, which Debian has: {', '.join(missing or programs)}")


@functools.cache
def debian(release: str, architecture: str = "amd64") -> Path:
    """A folder with a Debian release, installed at the first use."""
    need("debootstrap", "dpkg-deb", "unshare")
    place = WORK / "roots" / f"{release}-{architecture}"
    if (place / ".complete").is_file():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    foreign = [] if architecture == "amd64" else ["--foreign", f"--arch={architecture}"]
    packages = ",".join(PACKAGES[release])
    run("debootstrap", *foreign, "--variant=minbase", f"--include={packages}", release, place, seconds=1800)
    if foreign:  # its programs cannot configure it, but Python runs from the files alone
        for package in sorted(place.glob("var/cache/apt/archives/*.deb")):
            run("dpkg-deb", "-x", package, place)
    for settings in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(settings).is_file():  # this machine's way to the package index
            (place / settings[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(settings, place / settings[1:])
    (place / ".complete").touch()
    return place


def inside(
    root: Path, *command: str | Path, folder: Path, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a root, where `folder` is /trial; the mounts last as long as the command."""
    (root / "trial").mkdir(exist_ok=True)
    script = (
        'mount --bind "$2" "$1/trial" && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && '
        'root=$1 && shift 2 && exec chroot "$root" "$@"'
    )
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", **environment}
    env = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
    return run("unshare", "--mount", "sh", "-ec", script, "sh", root, folder, *env, *command, check=check)


def find_wheel(folder: Path, tag: str) -> Path:
    """The wheel of a platform tag."""
    wheels = sorted(folder.glob(f"bngrad-*-{tag}.whl"))
    if len(wheels) != 1:
        raise PlatformError(f"{len(wheels)} wheels for {tag} in {folder}: run `make wheels` first")
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpacks a wheel anew; returns the folder of the library."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    return folder / "bngrad" / "lib"


def compile_program(target: str, source: Path, library: Path, folder: Path) -> Path:
    """Compiles a C program for zig's `target` against a library, which it finds in its own folder."""
    program = folder / (source.stem + (".exe" if library.suffix == ".dll" else ""))
    link: list[str | Path] = [library, "-Wl,-rpath,$ORIGIN"]
    if library.suffix == ".dll":
        names = re.findall(r"\bbngrad_\w+(?=\()", (ROOT / "ops" / "bngrad.h").read_text(encoding="utf-8"))
        definition, stub = folder / "bngrad.def", folder / "bngrad.lib"
        definition.write_text("\n".join(["LIBRARY bngrad.dll", "EXPORTS", *sorted(set(names))]) + "\n")
        run(*ZIG, "dlltool", "-m", "i386:x86-64", "-d", definition, "-l", stub, "-D", "bngrad.dll")
        link = [stub]
    run(*ZIG, "cc", "-target", target, "-O1", f"-I{ROOT / 'ops'}", source, *link, "-o", program)
    if library.parent != folder:
        shutil.copyfile(library, folder / library.name)
    return program
