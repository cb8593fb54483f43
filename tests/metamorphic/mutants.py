"""Mutants: each replaces a piece of one line of the package or the library.

The tests of this folder run on a mutant first, then the tests that it names. A mutant that changes no result has
the reason in `Mutant.equivalent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

KERNEL_TESTS = "tests/ops/test_kernels.py"


@dataclass(frozen=True)
class Mutant:
    """A change of one line."""

    file: str
    """The path of the file, relative to the project's folder."""
    old: str
    """A piece of a line that occurs exactly once in the file."""
    new: str
    description: str
    other_tests: tuple[str, ...] = ()
    """Arguments of pytest: tests elsewhere that detect the mutant, if no relation of this folder covers it."""
    equivalent: str = ""
    """The reason why no result changes; empty if results change."""

    def __str__(self):
        return f"{Path(self.file).name}: {self.description}"

    def text(self):
        """Returns the text of the mutated file."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        assert text.count(self.old) == 1, (
            f"{self.file} contains {self.old!r} {text.count(self.old)} times; expected 1"
        )
        assert self.new != self.old, self.description
        assert "\n" not in self.old + self.new, "a mutant changes one line"
        return text.replace(self.old, self.new)

    @property
    def line(self):
        """The number of the line."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        return text[: text.index(self.old)].count("\n") + 1


def of(file, *rows):
    """Returns the mutants of one file, from (old, new, description[, other tests[, equivalent]])."""
    return [Mutant(file, *row) for row in rows]


def kernel_tests(*names):
    """Returns tests of the kernels, which run on every instruction set."""
    return tuple(f"{KERNEL_TESTS}::{name}" for name in names)


_AVX2, _SCALAR = "kernels/avx2.cc", "kernels/scalar.cc"
_UNITS = {
    "scalar.h": (_SCALAR,),
    "float16-inl.h": (_SCALAR, "core/element_type.cc"),
    "scratch.hpp": ("core/sweep.cc",),
    "threads.hpp": ("core/sweep.cc",),
    "sweep.hpp": ("core/grad.cc", "core/grad_grad.cc"),
    "pairwise.hpp": ("core/sweep.cc",),
    "statistics_program.hpp": ("core/synchronized.cc", "core/training.cc"),
}
"""The sources to compile again for a header; of the kernels, those of the instruction set that the tests use."""


def units_of(mutant):
    """Returns the sources to compile for a mutant, relative to ops/."""
    below_ops, name = mutant.file.removeprefix("ops/"), mutant.file.rpartition("/")[2]
    return _UNITS.get(name) or ((_AVX2,) if below_ops.startswith("kernels/") else (below_ops,))


def isa_of(mutant):
    """Returns the instruction set that the tests of a mutant use."""
    return "scalar" if _SCALAR in units_of(mutant) else "avx2"
