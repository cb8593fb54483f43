"""The environment that a result depends on: the versions of the packages, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bngrad.errors import BngradError
from bngrad.runtime import cuda, native_library, versions, webgpu
from bngrad.runtime.device import CPU, CUDA, WEBGPU, Device

_PACKAGES = ("onnxruntime", "onnx", "onnx-ir", "numpy")


@dataclass(frozen=True)
class Environment:
    """The versions and the machine of a run, as text by name."""

    versions: dict[str, str]
    """The versions of bngrad, of the native library, of packages and of Python."""
    machine: dict[str, str]
    """The CPU, the number of cores, the operating system, and the GPU if one is used."""


def environment(device: str = CPU) -> Environment:
    """Returns the environment of this process; what cannot be found out is ``unknown``.

    Args:
        device: The device that something ran on, which is described beside the CPU.
    """
    versions = {"bngrad": _own_version(), "native library": _library()}
    for package in _PACKAGES:
        versions[package] = _version(package)
    versions["Python"] = f"{platform.python_version()} ({platform.python_implementation()})"
    machine = {
        "CPU": _cpu() or platform.machine() or "unknown",
        "cores": str(os.cpu_count() or "unknown"),
        "system": platform.platform(),
    }
    target = Device.of(device)
    if target.kind == CUDA:
        machine["GPU"] = f"{cuda.name_of(target.index) or 'unknown'} ({target})"
    if target.kind == WEBGPU:
        machine["GPU"] = f"{webgpu.name_of_device() or 'unknown'} ({target})"
    return Environment(versions, machine)


def _own_version() -> str:
    try:
        return metadata.version("bngrad")
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


def _library() -> str:
    try:
        kernels = [native_library.active_isa(), *["CUDA"] * native_library.has_cuda()]
        return f"{native_library.version()}, {' and '.join(kernels)}"
    except BngradError:
        return "not installed"


def _version(package: str) -> str:
    try:
        distribution, version = versions.installed(package)
    except BngradError:
        return "not installed"
    text = "unknown version" if version is None else str(version)
    return text if distribution == package else f"{text} ({distribution})"


def _cpu() -> str:
    """Returns the name of the CPU; empty if the system does not give it."""
    try:
        if platform.system() == "Linux":
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
            return names[0] if names else ""
        if platform.system() == "Darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return platform.processor()
