"""The versions and the machine of a run."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from bngrad.errors import LibraryError, VersionError
from bngrad.runtime import environment as module
from bngrad.runtime import native_library, versions
from bngrad.runtime.environment import environment
from fake_cuda import fake_cuda  # noqa: F401


@pytest.mark.parametrize(("has_cuda", "kernels"), [(False, ""), (True, " and CUDA")])
def test_what_is_installed(has_cuda, kernels, monkeypatch):
    monkeypatch.setattr(native_library, "has_cuda", lambda: has_cuda)
    result = environment()
    assert result.versions["numpy"] == metadata.version("numpy")
    assert (
        result.versions["native library"] == f"{native_library.version()}, {native_library.active_isa()}{kernels}"
    )
    assert result.machine.keys() == {"CPU", "cores", "system"}
    assert all(text and "\n" not in text for text in (result.versions | result.machine).values())


def test_a_gpu_is_named(fake_cuda):  # noqa: F811
    assert environment("cuda:0").machine["GPU"] == "Fake 0 (cuda:0)"
    assert environment("cuda:1").machine["GPU"] == "unknown (cuda:1)"
    fake_cuda.driver.devices = 0
    assert environment("cuda").machine["GPU"] == "unknown (cuda:0)"


def test_what_is_not_installed(monkeypatch):
    def missing(*_):
        raise VersionError("it is missing")

    def no_library():
        raise LibraryError("it is missing")

    monkeypatch.setattr(versions, "installed", missing)
    monkeypatch.setattr(native_library, "version", no_library)
    packages = environment().versions
    assert {packages[name] for name in ("numpy", "onnx", "onnxruntime", "native library")} == {"not installed"}


def test_another_distribution_of_a_package_is_named(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda _: ("onnxruntime-gpu", None))
    assert environment().versions["onnxruntime"] == "unknown version (onnxruntime-gpu)"


CPUS = {
    "x86": ("processor : 0\nmodel name\t: AMD EPYC: 7\nmodel name\t: other\n", "AMD EPYC: 7"),
    "arm": ("processor : 0\nBogoMIPS : 50\n", ""),
}


@pytest.mark.parametrize("case", CPUS)
def test_cpu_of_linux(case, monkeypatch):
    text, name = CPUS[case]
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert module._cpu() == name


def test_a_system_that_tells_nothing(monkeypatch):
    def refused(*_, **__):
        raise OSError

    monkeypatch.setattr(module.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(module.subprocess, "run", refused)
    assert module._cpu() == ""
    assert environment().machine["CPU"]
