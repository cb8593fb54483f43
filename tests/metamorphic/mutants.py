"""Planted mistakes: each is a piece of one line of the package or the library, and what stands there instead.

The tests of this folder are tried on each first, then the tests that it names. One that changes no result is
`Mutant.equivalent`, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

KERNEL_TESTS = "tests/ops/test_kernels.py"


@dataclass(frozen=True)
class Mutant:
    """A mistake in one line."""

    file: str
    """Below the project's folder."""
    old: str
    """A piece of a line; it is there once."""
    new: str
    breaks: str
    also: tuple[str, ...] = ()
    """Tests elsewhere that see it, as pytest takes them: for what no relation of this folder is about."""
    equivalent: str = ""
    """Why no result changes; empty for a mistake."""
    isa: str = ""
    """The instruction set that has the line at all; empty for every one."""

    def __str__(self):
        return f"{Path(self.file).name}: {self.breaks}"

    def text(self):
        """The file with the mistake."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times {self.old!r}; expected 1"
        assert self.new != self.old, self.breaks
        assert "\n" not in self.old + self.new, "of one line"
        return text.replace(self.old, self.new)

    @property
    def line(self):
        """The number of the line."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        return text[: text.index(self.old)].count("\n") + 1


def of(file, *rows, isa=""):
    """Mutants of one file: (old, new, what it breaks[, tests elsewhere[, why no result changes]])."""
    return [Mutant(file, *row, isa=isa) for row in rows]


def kernel_tests(*names):
    """Tests of the kernels, which are for every instruction set."""
    return tuple(f"{KERNEL_TESTS}::{name}" for name in names)


_AVX2, _SCALAR = "kernels/avx2.cc", "kernels/scalar.cc"
_UNITS = {
    "alignment-inl.h": (_AVX2,),
    "map_formulas-inl.h": (_AVX2,),
    "maps_of_rows-inl.h": (_AVX2,),
    "maps_of_short_rows-inl.h": (_AVX2,),
    "maps_of_columns-inl.h": (_AVX2,),
    "sum_terms-inl.h": (_AVX2,),
    "sum_totals-inl.h": (_AVX2,),
    "sums_of_rows-inl.h": (_AVX2,),
    "sums_of_short_rows-inl.h": (_AVX2,),
    "sums_of_columns-inl.h": (_AVX2,),
    "tandem-inl.h": (_AVX2,),
    "simd_avx2.h": (_AVX2,),
    "simd_16bit.h": (_AVX2,),
    "simd_sums.h": (_AVX2,),
    "simd_scalar.h": (_SCALAR,),
    "float16-inl.h": (_SCALAR, "core/element_type.cc"),
    "scratch.hpp": ("core/sweep.cc",),
    "threads.hpp": ("core/sweep.cc",),
    "sweep.hpp": ("core/grad.cc", "core/grad_grad.cc"),
}
"""What is compiled anew for a header: of the kernels one instruction set, which the tests then run on."""


def units_of(mutant):
    """The sources, below ops/, that a mutant is compiled with."""
    if mutant.isa:
        return (f"kernels/{mutant.isa}.cc",)
    name = mutant.file.rpartition("/")[2]
    return _UNITS.get(name) or (mutant.file.removeprefix("ops/"),)


def isa_of(mutant):
    """The instruction set that its tests run on."""
    return mutant.isa or ("scalar" if _SCALAR in units_of(mutant) else "avx2")
