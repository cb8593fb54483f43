"""The versions of other packages that bngrad works with.

pip keeps pyproject.toml's floors while it installs bngrad, but not when another package is downgraded later; and
two packages whose metadata allow each other may still not run together. That would show somewhere inside them, as
an AttributeError or an ImportError without a word. So the public API, the command line and `register` ask here
first, of the installed packages' metadata: nothing is imported for it.
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
"""What every use of a model imports; onnxruntime-extensions is for the python provider alone."""

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
"""Distributions that install the same package. One that is not listed passes: its version is not known here."""


class Conflict(NamedTuple):
    """Two packages that pip installs together and that do not run together."""

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
    """Refuses packages that are missing, too old, or do not run together.

    Args:
        packages: Names of distributions among bngrad's dependencies; `IMPORTED` by default.

    Raises:
        VersionError: One of them does not do; the message says what was found, what is needed and what to do.
    """
    _check(packages or IMPORTED)


@cache
def floors() -> dict[str, SpecifierSet]:
    """The versions that bngrad's own metadata asks for, by package: empty in a tree that was not installed."""
    try:
        requirements = [Requirement(line) for line in metadata.requires("bngrad") or ()]
    except metadata.PackageNotFoundError:
        return {}
    return {one.name: one.specifier for one in requirements if one.marker is None}


@cache
def _check(packages: tuple[str, ...]) -> None:
    found = {name: _installed(name) for name in packages}
    for name, (distribution, has) in found.items():
        needed = floors().get(name, SpecifierSet())
        if has is not None and not _is_in(has, needed):
            raise VersionError(
                f"{distribution} {has} does not do: bngrad needs {name}{needed}; run pip install '{name}{needed}'"
            )
    for one in CONFLICTS:
        distribution, has = found.get(one.package, ("", None))
        other, other_has = found.get(one.other, ("", None))
        if _is_in(has, SpecifierSet(one.versions)) and _is_in(other_has, SpecifierSet(one.other_versions)):
            raise VersionError(
                f"{distribution} {has} does not run with {other} {other_has}, {one.reason}; run {one.remedy}"
            )


def _is_in(version: Version | None, versions: SpecifierSet) -> bool:
    return version is not None and versions.contains(version, prereleases=True)


def _installed(name: str) -> tuple[str, Version | None]:
    """The distribution that a package comes from, and its version: None where that says nothing."""
    for distribution in (name, *OTHER_NAMES.get(name, ())):
        try:
            return distribution, Version(metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
        except (InvalidVersion, TypeError):  # a build of somebody's own; metadata without a version
            return distribution, None
    if find_spec(name.replace("-", "_")) is None:
        needed = f"{name}{floors().get(name, '')}"
        raise VersionError(f"{name} is not installed: bngrad needs {needed}; run pip install '{needed}'")
    return name, None
