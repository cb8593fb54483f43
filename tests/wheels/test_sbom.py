"""The components that the bill of materials and the notices of a wheel name."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import small_wheel
from ops.wheels.components import COMPONENTS
from ops.wheels.notices import write_notices
from ops.wheels.sbom import bill_of_materials
from ops.wheels.targets import TARGETS

LLVM = {"LLVM libc++": "22.1.8", "LLVM libc++abi": "22.1.8", "Zig compiler runtime": "0.17.1"}
UNWIND = {"LLVM libunwind": "22.1.8"}
NAMES = {
    "linux": LLVM | UNWIND | {"glibc, startup files and libc_nonshared": None},
    "musl": LLVM | UNWIND | {"musl libc, startup files": "1.2.5"},
    "macos": LLVM,
    "windows": LLVM
    | UNWIND
    | {"MinGW-w64 runtime": "15.0.2", "musl libc, functions that MinGW-w64 lacks": "1.2.5"},
}


@pytest.mark.parametrize("name", TARGETS)
def test_the_bill_names_what_zig_links(name):
    document = json.loads(small_wheel.bill(TARGETS[name], b"library"))
    versions = {component["name"]: component.get("version") for component in document["components"]}
    assert versions == NAMES[name.split("-")[0]]
    (file,) = document["metadata"]["component"]["components"]
    assert file["name"].endswith(TARGETS[name].library)


def test_equal_wheels_have_equal_bills():
    target = TARGETS["linux-x86_64"]
    assert small_wheel.bill(target, b"library") == small_wheel.bill(target, b"library")


def test_a_package_without_a_version_is_refused(tmp_path):
    config = tmp_path / "lib/libcxx/include/__config"
    config.parent.mkdir(parents=True)
    config.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="lib/libcxx/include/__config has no version of LLVM libc"):
        bill_of_materials(TARGETS["linux-x86_64"], "0.1.0", b"library", tmp_path, "0.17.1")


def test_the_notices_have_a_text_for_each_component(tmp_path):
    for component in COMPONENTS:
        if component.license_file:
            path = tmp_path / component.license_file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"\nlicense of {path.parent.name}\n", encoding="utf-8")
    write_notices(tmp_path / "notices", tmp_path)
    text = (tmp_path / "notices").read_text(encoding="utf-8")
    assert text.count("\nlicense of ") == sum(component.license_file is not None for component in COMPONENTS)
    assert "\nLLVM libunwind (Linux and Windows wheels)\n" in text


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_ziglang_has_the_versions_and_licenses():
    folder = Path(importlib.util.find_spec("ziglang").origin).parent
    for component in COMPONENTS:
        assert component.source is None or component.version(folder, "0.17.1")
        assert component.license_file is None or (folder / component.license_file).exists()
