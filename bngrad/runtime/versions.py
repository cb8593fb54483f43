"""Checks of the versions of the packages that bngrad depends on.

pip enforces the minimum versions in pyproject.toml when it installs bngrad, but not when another package is
downgraded later; and two packages may be incompatible although their metadata allow both. The failure would be an
obscure AttributeError or ImportError inside one of them. The public API, the command line and `register` therefore
check the metadata of the installed packages first, without importing them.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from bngrad.errors import VersionError

IMPORTED = ("numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript")
"""Packages that are always needed; onnxruntime-extensions is needed by the python implementation only."""

OTHER_NAMES = {
    "onnxruntime": (
        "onnxruntime-training-cpu",
        "onnxruntime-training",
        "onnxruntime-gpu",
        "onnxruntime-directml",
        "onnxruntime-openvino",
        "onnxruntime-qnn",
    )
}
"""Distributions that install the same package. An unlisted distribution is accepted without a check."""


class Conflict(NamedTuple):
    """Two packages that pip can install together although they are incompatible."""

    package: str
    versions: str
    other: str
    other_versions: str
    reason: str
    remedy: str


CONFLICTS = (
    Conflict(
        "onnxruntime",
        "<1.19",
        "numpy",
        ">=2",
        "it was built for NumPy 1",
        "pip install 'numpy<2' or 'onnxruntime>=1.19'",
    ),
)


def check(*packages: str) -> None:
    """Checks that packages are installed, recent enough and compatible with each other.

    Args:
        packages: Names of dependencies of bngrad; `IMPORTED` by default.

    Raises:
        VersionError: A package is missing, too old, or incompatible with another; the message states which version
            is installed, which is required, and how to install it.
    """
    _check(packages or IMPORTED)


@cache
def floors() -> dict[str, SpecifierSet]:
    """Returns the required versions by package, from bngrad's metadata; empty if bngrad is not installed."""
    try:
        requirements = [Requirement(line) for line in metadata.requires("bngrad") or ()]
    except metadata.PackageNotFoundError:
        return {}
    return {requirement.name: requirement.specifier for requirement in requirements if requirement.marker is None}


@cache
def _check(packages: tuple[str, ...]) -> None:
    versions = {name: installed(name) for name in packages}
    for name, (distribution, version) in versions.items():
        required = floors().get(name, SpecifierSet())
        if version is not None and not _is_in(version, required):
            raise VersionError(
                f"{distribution} {version} is unsupported: bngrad requires {name}{required}; "
                f"run pip install '{name}{required}'"
            )
    for conflict in CONFLICTS:
        distribution, version = versions.get(conflict.package, ("", None))
        other, other_version = versions.get(conflict.other, ("", None))
        if _is_in(version, SpecifierSet(conflict.versions)) and _is_in(
            other_version, SpecifierSet(conflict.other_versions)
        ):
            raise VersionError(
                f"{distribution} {version} does not work with {other} {other_version}: {conflict.reason}; "
                f"run {conflict.remedy}"
            )


def _is_in(version: Version | None, versions: SpecifierSet) -> bool:
    return version is not None and versions.contains(version, prereleases=True)


def installed(name: str) -> tuple[str, Version | None]:
    """Returns the distribution that provides a package and its version; None if the version is unknown.

    Raises:
        VersionError: The package is not installed.
    """
    for distribution in (name, *OTHER_NAMES.get(name, ())):
        try:
            return distribution, Version(metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
        except (InvalidVersion, TypeError):  # a custom build, or metadata without a version
            return distribution, None
    if find_spec(name.replace("-", "_")) is None:
        required = f"{name}{floors().get(name, '')}"
        raise VersionError(f"{name} is not installed: bngrad requires {required}; run pip install '{required}'")
    return name, None
