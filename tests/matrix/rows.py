"""The environments that `make matrix` tries: which releases, on which Python, and what is expected of them.

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
"""The last patch of a release, and a Python that there is a wheel for; the three take turns."""

TRAINING = {
    ("onnxruntime-training-cpu", "1.17.3"): "3.11",
    ("onnxruntime-training-cpu", "1.19.2"): "3.12",
    ("onnxruntime-training", "1.17.1"): "3.11",
    ("onnxruntime-training", "1.19.2"): "3.11",
}
"""The training builds of 1.17 and 1.19, for CPUs and for CUDA; what each is called on the package index."""

ENDS = ("numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime-extensions")
"""The packages that have a row with their oldest release, the others as pip then chooses them."""

NUMPY_1 = "numpy<2"
"""What ONNX Runtime before 1.19 was built for, and 1.17 does not say: bngrad.runtime.versions does."""


@dataclass(frozen=True)
class Row:
    """An environment that has to work."""

    name: str
    python: str
    pins: tuple[str, ...] = ()
    replaced: str | None = None
    """A dependency that another distribution stands in for: the training builds install ``onnxruntime`` too."""

    def requirements(self) -> list[str]:
        """What pip is asked for, apart from bngrad itself."""
        return [*(one for name, one in dependencies().items() if name != self.replaced), *self.pins]


@dataclass(frozen=True)
class Refusal:
    """A release that must be refused in one line: put before those of the row ``1.31.1``'s environment."""

    package: str
    version: str
    says: str
    native: str | None = None
    """What the library itself says when ONNX Runtime registers it."""

    beside: str = ""
    """What it is refused for, where that is another package."""

    @property
    def name(self) -> str:
        """What the table calls it; no name of a `Row`."""
        return f"{self.package} {self.version}{self.beside}"


def dependencies() -> dict[str, str]:
    """bngrad's requirements by package."""
    return {Requirement(one).name: one for one in project()["dependencies"]}


def floor(package: str) -> str:
    """The oldest release of a package that pyproject.toml allows."""
    (specifier,) = Requirement(dependencies()[package]).specifier
    assert specifier.operator == ">=", f"{specifier} of {package} is no floor"
    return specifier.version


def rows() -> list[Row]:
    """All of them, in the order of the table."""
    made = [
        Row(f"onnxruntime {version}", python, (f"onnxruntime=={version}", *_numpy_for(version)))
        for version, python in ONNXRUNTIME.items()
    ]
    made += [
        Row(f"{name} {version}", python, (f"{name}=={version}", *_numpy_for(version)), replaced="onnxruntime")
        for (name, version), python in TRAINING.items()
    ]
    made += [Row(f"oldest {name}", "3.11", (f"{name}=={floor(name)}",)) for name in ENDS]
    oldest = tuple(f"{name}=={floor(name)}" for name in dependencies())
    return [*made, Row("all oldest", "3.11", oldest), Row("all newest", "3.13"), Row("all newest, 3.12", "3.12")]


REFUSED = (
    Refusal("onnxruntime", "1.16.3", "onnxruntime 1.16.3 is unsupported", "needs ONNX Runtime 1.17 or newer"),
    Refusal("onnxruntime", "1.17.3", "onnxruntime 1.17.3 does not work with numpy 2.", beside=" with NumPy 2"),
    Refusal("numpy", "1.25.2", "numpy 1.25.2 is unsupported"),
    Refusal("onnx", "1.18.0", "onnx 1.18.0 is unsupported"),
    Refusal("onnx-ir", "0.1.14", "onnx-ir 0.1.14 is unsupported"),
    Refusal("onnxscript", "0.5.7", "onnxscript 0.5.7 is unsupported"),
    Refusal("onnxruntime-extensions", "0.12.0", "onnxruntime-extensions 0.12.0 is unsupported"),
)
"""The last release before each floor; and ONNX Runtime 1.17 beside NumPy 2, which pip installs without a word."""


def _numpy_for(version: str) -> tuple[str, ...]:
    return (NUMPY_1,) if version.startswith("1.17.") else ()
