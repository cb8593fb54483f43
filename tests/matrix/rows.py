"""The environments that `make matrix` tries: releases, the Python version, and the expected outcome.

The oldest releases are pyproject.toml's floors, read from there: raising a floor changes the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.requirements import Requirement

from project_metadata import project

ONNXRUNTIME = {
    "1.17.3": "3.12",
    "1.18.1": "3.11",
    "1.19.2": "3.12",
    "1.20.1": "3.13",
    "1.21.1": "3.12",
    "1.22.1": "3.11",
    "1.23.2": "3.13",
    "1.26.0": "3.12",
    "1.29.0": "3.13",
    "1.31.1": "3.11",
}
"""The last patch of each release, and a Python that it has a wheel for; the three versions alternate."""

TRAINING = {
    ("onnxruntime-training-cpu", "1.17.3"): "3.11",
    ("onnxruntime-training-cpu", "1.19.2"): "3.12",
    ("onnxruntime-training", "1.17.1"): "3.11",
    ("onnxruntime-training", "1.19.2"): "3.11",
}
"""The training builds of 1.17 and 1.19, for CPUs and for CUDA, by their names on the package index."""

ENDS = ("numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime-extensions")
"""The packages that have a row with their oldest release, where pip chooses the other releases."""

NUMPY_1 = "numpy<2"
"""The NumPy that ONNX Runtime before 1.19 was built for. 1.17 does not require it; `versions` does."""


@dataclass(frozen=True)
class Row:
    """An environment that must work."""

    name: str
    python: str
    pins: tuple[str, ...] = ()
    replaced: str | None = None
    """A dependency that another distribution replaces: the training builds install ``onnxruntime`` too."""

    def requirements(self) -> list[str]:
        """The requirements passed to pip, except bngrad itself."""
        return [*(line for name, line in dependencies().items() if name != self.replaced), *self.pins]


@dataclass(frozen=True)
class Refusal:
    """A release that must be refused in one line, when it precedes the packages of row ``onnxruntime 1.31.1``."""

    package: str
    version: str
    says: str
    native: str | None = None
    """The library's own message when ONNX Runtime registers it."""

    beside: str = ""
    """The other package that it is refused with, if any, as the end of the name."""

    @property
    def name(self) -> str:
        """The name in the table; different from those of all `Row` objects."""
        return f"{self.package} {self.version}{self.beside}"


def dependencies() -> dict[str, str]:
    """The requirements of bngrad, by package."""
    return {Requirement(requirement).name: requirement for requirement in project()["dependencies"]}


def floor(package: str) -> str:
    """The oldest release of a package that pyproject.toml allows."""
    (specifier,) = Requirement(dependencies()[package]).specifier
    assert specifier.operator == ">=", f"{specifier} of {package} is not a lower bound"
    return specifier.version


def rows() -> list[Row]:
    """All rows, in the order of the table."""
    result = [
        Row(f"onnxruntime {version}", python, (f"onnxruntime=={version}", *_numpy_for(version)))
        for version, python in ONNXRUNTIME.items()
    ]
    result += [
        Row(f"{name} {version}", python, (f"{name}=={version}", *_numpy_for(version)), replaced="onnxruntime")
        for (name, version), python in TRAINING.items()
    ]
    result += [Row(f"oldest {name}", "3.11", (f"{name}=={floor(name)}",)) for name in ENDS]
    oldest = tuple(f"{name}=={floor(name)}" for name in dependencies())
    return [*result, Row("all oldest", "3.11", oldest), Row("all newest", "3.13"), Row("all newest, 3.12", "3.12")]


REFUSED = (
    Refusal("onnxruntime", "1.16.3", "onnxruntime 1.16.3 is unsupported", "requires ONNX Runtime 1.17 or newer"),
    Refusal("onnxruntime", "1.17.3", "onnxruntime 1.17.3 does not work with numpy 2.", beside=" with NumPy 2"),
    Refusal("numpy", "1.25.2", "numpy 1.25.2 is unsupported"),
    Refusal("onnx", "1.18.0", "onnx 1.18.0 is unsupported"),
    Refusal("onnx-ir", "0.1.14", "onnx-ir 0.1.14 is unsupported"),
    Refusal("onnxscript", "0.5.7", "onnxscript 0.5.7 is unsupported"),
    Refusal("onnxruntime-extensions", "0.12.0", "onnxruntime-extensions 0.12.0 is unsupported"),
)
"""The last release before each floor; and ONNX Runtime 1.17 with NumPy 2, which pip installs silently."""


def _numpy_for(version: str) -> tuple[str, ...]:
    return (NUMPY_1,) if version.startswith("1.17.") else ()
