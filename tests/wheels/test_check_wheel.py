"""The checks of wheels: a sound wheel of each platform passes, and each fault is refused by name."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile

import lief
import pytest

import small_wheel
from ops.wheels.build_wheels import ZIG_EXPORTS
from ops.wheels.check_wheel import MAX_SIZE, main, wheel_problems
from ops.wheels.macho import hide_exports
from ops.wheels.targets import TARGETS

NAME = "linux-x86_64"
TARGET = TARGETS[NAME]
LIBRARY = f"bngrad/lib/{TARGET.library}"
INFO = small_wheel.INFO
BILL = f"{INFO}/sboms/bngrad.cdx.json"


def long_unless_linux(cases):
    """The cases of a table whose first column is a platform: zig builds its runtime once for each."""
    return [
        pytest.param(*case, id=name, marks=[] if case[0].startswith("linux-") else pytest.mark.long)
        for name, case in cases.items()
    ]


@pytest.mark.parametrize("name", long_unless_linux({name: (name,) for name in TARGETS}))
def test_a_sound_wheel_passes(library, tmp_path, name):
    target = TARGETS[name]
    wheel = small_wheel.write(tmp_path, target, small_wheel.files(target, sound_library(library, name)))
    assert list(wheel_problems(wheel)) == []


def sound_library(library, name):
    content = library(name)
    return hide_exports(content, ZIG_EXPORTS) if TARGETS[name].file_format == "MACHO" else content


def replaced(file, old, new):
    def change(contents):
        assert old in contents[file]
        contents[file] = contents[file].replace(old, new)

    return change


def removed(file):
    return lambda contents: contents.pop(file)


def executable_stack(contents):
    binary = lief.ELF.parse(list(contents[LIBRARY]))
    binary.get(lief.ELF.Segment.TYPE.GNU_STACK).add(lief.ELF.Segment.FLAGS.X)
    contents[LIBRARY] = binary.write_to_bytes()


def added(file, content=b""):
    return lambda contents: contents.update({file: content})


CONTENTS = {
    "no-license": (removed(f"{INFO}/licenses/LICENSE"), f"has no {INFO}/licenses/LICENSE"),
    "no-third-party-license": (
        removed(f"{INFO}/licenses/LICENSE-THIRD-PARTY.txt"),
        f"has no {INFO}/licenses/LICENSE-THIRD-PARTY.txt",
    ),
    "license-not-in-metadata": (
        replaced(f"{INFO}/METADATA", b"License-File: LICENSE\n", b""),
        "METADATA has no License-File: LICENSE",
    ),
    "other-version": (
        replaced(f"{INFO}/METADATA", b"Version: 0.1.0", b"Version: 0.2.0"),
        "METADATA has Version: 0.2.0, expected 0.1.0",
    ),
    "purelib": (
        replaced(f"{INFO}/WHEEL", b"Purelib: false", b"Purelib: true"),
        "WHEEL has Root-Is-Purelib: true, expected false",
    ),
    "tag-of-another-machine": (
        replaced(f"{INFO}/WHEEL", b"manylinux_2_17_x86_64", b"manylinux_2_17_aarch64"),
        "expected py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64",
    ),
    "no-library": (removed(LIBRARY), f"has no {LIBRARY}"),
    "no-header": (removed("bngrad/include/bngrad.h"), "has no bngrad/include/bngrad.h"),
    "a-test-is-packaged": (added("tests/test_api.py"), "has tests/test_api.py, which is no part of the package"),
    "path-out-of-the-package": (
        added("bngrad/../../a.py"),
        "has the path 'bngrad/../../a.py'; expected one inside",
    ),
    "path-of-windows": (added("bngrad/a\\..\\b.py"), "expected one inside of the package"),
    "absolute-path": (added("/etc/a"), "has the path '/etc/a'; expected one inside of the package"),
    "folder": (added("bngrad/empty/"), "has the path 'bngrad/empty/'; expected one inside of the package"),
    "paths-that-differ-in-case": (
        added("bngrad/__INIT__.py"),
        "bngrad/__INIT__.py and bngrad/__init__.py are one file on some systems",
    ),
    "program": (added("bngrad/a.bin", b"MZ"), f"bngrad/a.bin is native code; expected none but {LIBRARY}"),
    "versioned-library": (added("bngrad/lib/a.so.1", b"\x7fELF"), "bngrad/lib/a.so.1 is native code"),
    "script": (added("bngrad-0.1.0.data/scripts/a"), "data/scripts/a, which is no part of the package"),
    "two-names": (
        replaced(f"{INFO}/METADATA", b"Name: bngrad", b"Name: bngrad\nName: other"),
        "METADATA has Name: bngrad, other, expected bngrad",
    ),
    "header-that-is-no-text": (added("bngrad/include/bngrad.h", b"\xff"), "cannot be read as a wheel: 'utf-8'"),
    "bytecode": (added("bngrad/a.pyc"), "has bngrad/a.pyc, which is no part of the package"),
    "import-library": (added("bngrad/lib/bngrad.lib"), "has 2 libraries"),
    "too-large": (added("bngrad/big", bytes(MAX_SIZE)), f"more than {MAX_SIZE}"),
    "unlisted-file": (added(f"{INFO}/RECORD", b""), "bngrad/__init__.py is not in RECORD"),
    "no-WHEEL": (removed(f"{INFO}/WHEEL"), f"has no {INFO}/WHEEL"),
    "no-bill-of-materials": (removed(BILL), f"has no {BILL}"),
    "bill-that-is-no-json": (added(BILL, b"{"), "bngrad.cdx.json is no document of CycloneDX: JSONDecodeError"),
    "bill-without-components": (
        replaced(
            BILL, b'"components": [\n    {\n      "type": "library"', b'"parts": [\n    {\n      "type": "library"'
        ),
        "bngrad.cdx.json is no document of CycloneDX: KeyError: 'components'",
    ),
    "bill-of-another-format": (replaced(BILL, b'"1.6"', b'"1.2"'), "has the format CycloneDX 1.2, expected"),
    "bill-of-another-version": (
        replaced(BILL, b'"0.1.0"', b'"0.2.0"'),
        "describes another package or library than bngrad 0.1.0",
    ),
    "bill-of-another-library": (
        lambda contents: contents.update({BILL: small_wheel.bill(TARGET, contents[LIBRARY] + b" ")}),
        "describes another package or library than bngrad 0.1.0",
    ),
    "bill-of-another-platform": (
        lambda contents: contents.update({BILL: small_wheel.bill(TARGETS["musl-x86_64"], contents[LIBRARY])}),
        "what is linked: glibc, startup files and libc_nonshared, musl libc, startup files",
    ),
    "bill-with-another-license": (replaced(BILL, b'"MIT"', b'"BSD"'), "what is linked: Zig compiler runtime"),
    "bill-without-a-version": (
        replaced(BILL, b'"version": "22.1.8"', b'"version": ""'),
        "no version of LLVM libc++",
    ),
    "bill-with-other-dependencies": (
        replaced(BILL, b'"ref": "Zig compiler runtime"', b'"ref": "zig"'),
        "has other dependencies than bngrad on each component",
    ),
    "not-a-library": (replaced(LIBRARY, b"\x7fELF", b"ELF?"), "the file format is unknown, expected ELF"),
    "changed-header": (
        replaced("bngrad/include/bngrad.h", b"bngrad_isa_count(", b"bngrad_isas("),
        "exports bngrad_isa_count, which is not in bngrad.h",
    ),
    "executable-stack": (executable_stack, "asks for an executable stack"),
    "no-avx512": (replaced(LIBRARY, b"avx512", b"avx51?"), "has no kernels for avx512"),
}


@pytest.mark.parametrize(("change", "message"), CONTENTS.values(), ids=CONTENTS)
def test_contents_that_are_refused(library, tmp_path, change, message):
    contents = small_wheel.files(TARGET, library(NAME))
    change(contents)
    assert_refused(small_wheel.write(tmp_path, TARGET, contents), message)


def test_a_file_that_changed_after_it_was_listed(library, tmp_path):
    wheel = small_wheel.write(tmp_path, TARGET, small_wheel.files(TARGET, library(NAME)))
    content = wheel.read_bytes()
    wheel.write_bytes(content.replace(b"Apache License", b"Apache Licence"))
    assert_refused(wheel, "cannot be read as a wheel: Bad CRC-32")


def test_a_listed_file_that_is_missing(library, tmp_path):
    contents = small_wheel.files(TARGET, library(NAME))
    record = f"{INFO}/RECORD"
    contents[record] = b"bngrad/gone.py,sha256=0,0\n"
    assert_refused(
        small_wheel.write(tmp_path, TARGET, contents), "RECORD lists bngrad/gone.py, which is not there"
    )


def test_a_file_that_is_listed_twice(library, tmp_path):
    contents = small_wheel.files(TARGET, library(NAME))
    contents[f"{INFO}/RECORD"] = b"bngrad/__init__.py,sha256=0,0\n" * 2
    assert_refused(small_wheel.write(tmp_path, TARGET, contents), "RECORD lists bngrad/__init__.py twice")


def test_a_symbolic_link(library, tmp_path):
    wheel = small_wheel.write(tmp_path, TARGET, small_wheel.files(TARGET, library(NAME)))
    link = zipfile.ZipInfo("bngrad/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert_refused(wheel, "bngrad/link is a symbolic link")


@pytest.mark.parametrize(
    ("change", "message"),
    {
        "in-front": (lambda content: b"#!/bin/sh\n" + content, "has something in front of the archive"),
        "cut": (lambda content: content[:-30], "cannot be read as a wheel: File is not a zip file"),
        "nothing": (lambda _: b"", "cannot be read as a wheel: File is not a zip file"),
    }.values(),
    ids=["in-front", "cut", "nothing"],
)
def test_bytes_that_are_refused(change, message, library, tmp_path):
    wheel = small_wheel.write(tmp_path, TARGET, small_wheel.files(TARGET, library(NAME)))
    wheel.write_bytes(change(wheel.read_bytes()))
    assert_refused(wheel, message)


NAMES = {
    "build-number": ("bngrad-0.1.0-1-py3-none-{}.whl", "the tag is 1-py3-none-"),
    "tag-of-no-platform": ("bngrad-0.1.0-py3-none-linux_x86_64.whl", "no platform of targets.py has the tag"),
    "tag-of-a-python": (
        "bngrad-0.1.0-cp311-cp311-{}.whl",
        "the tag is cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64, expected py3-none-",
    ),
    "other-package": ("other-0.1.0-py3-none-{}.whl", "has no other-0.1.0.dist-info/METADATA"),
    "not-a-wheel-name": ("bngrad-py3-none-{}.whl", "Invalid wheel filename"),
}


@pytest.mark.parametrize(("name", "message"), NAMES.values(), ids=NAMES)
def test_names_that_are_refused(library, tmp_path, name, message):
    contents = small_wheel.files(TARGET, library(NAME))
    assert_refused(small_wheel.write(tmp_path, TARGET, contents, name=name), message)


FOREIGN = "MARK int other(void) { return 1; }"
HIDDEN = '__attribute__((visibility("hidden"))) int other(void) { return 1; }'

LIBRARIES = {
    "linux-foreign-export": (NAME, [FOREIGN], {}, "exports other, which is not in bngrad.h"),
    "linux-not-stripped": (NAME, [HIDDEN], {"strip": False}, "is not stripped"),
    "linux-run-path": (NAME, ["", "-Wl,-rpath,/opt"], {}, "has a run path"),
    "macos-not-pruned": ("macos-arm64", [], {}, "exports _mh_dylib_header, which is not in bngrad.h"),
    "macos-not-stripped": ("macos-arm64", [HIDDEN], {"strip": False}, "is not stripped"),
    "windows-foreign-export": ("windows-x86_64", [FOREIGN], {}, "exports other, which is not in bngrad.h"),
    "windows-fixed-address": ("windows-x86_64", ["", "-Wl,--no-dynamicbase"], {}, "DYNAMIC_BASE is not set"),
}


@pytest.mark.parametrize(("name", "arguments", "options", "message"), long_unless_linux(LIBRARIES))
def test_libraries_that_are_refused(library, tmp_path, name, arguments, options, message):
    contents = small_wheel.files(TARGETS[name], library(name, *arguments, **options))
    assert_refused(small_wheel.write(tmp_path, TARGETS[name], contents), message)


OTHERS = {
    "library-of-arm64": ("linux-aarch64", NAME, "the machine is ARM64, expected X86_64"),
    "library-of-macos": ("macos-arm64", NAME, "the file format is MACHO, expected ELF"),
    "library-of-windows": ("windows-x86_64", NAME, "the file format is PE, expected ELF"),
}


@pytest.mark.parametrize(("built", "tagged", "message"), long_unless_linux(OTHERS))
def test_libraries_of_another_platform(library, tmp_path, built, tagged, message):
    contents = small_wheel.files(TARGETS[tagged], library(built))
    assert_refused(small_wheel.write(tmp_path, TARGETS[tagged], contents), message)


@pytest.mark.long
def test_a_library_that_changed_after_it_was_signed(library, tmp_path):
    target = TARGETS["macos-arm64"]
    content = sound_library(library, "macos-arm64").replace(b"\0neon\0", b"\0neon\1")
    assert_refused(
        small_wheel.write(tmp_path, target, small_wheel.files(target, content)), "no valid ad-hoc signature"
    )


def test_program(library, tmp_path):
    contents = small_wheel.files(TARGET, library(NAME))
    wheel = small_wheel.write(tmp_path, TARGET, contents)
    command = [sys.executable, "-m", "ops.wheels.check_wheel", wheel]
    done = subprocess.run(command, cwd=small_wheel.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert wheel.name in done.stdout


def test_program_without_wheels(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def assert_refused(wheel, message):
    problems = list(wheel_problems(wheel))
    assert [problem for problem in problems if message in problem], problems
    assert all(problem.startswith(wheel.name) and "\n" not in problem for problem in problems)
