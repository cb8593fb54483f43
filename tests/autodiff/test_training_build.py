"""What a training build has no kernel for on a CPU is lowered for it too."""

from __future__ import annotations

from autodiff.cases import convolution, indexing, loss, resampling
from autodiff.gradient_cases import each
from autodiff.gradient_checks import check_on_training_build

NEWEST = 20
"""The newest opset that all of its kernels are for."""


def named(table, *parts):
    return [case for case in table.CASES if case.opset <= NEWEST and any(part in case.name for part in parts)]


@each(
    convolution=named(convolution, "transpose"),
    indexing=named(indexing, "slice"),
    loss=named(loss, "of double"),
    resampling=[case for case in resampling.RESIZES if case.opset <= NEWEST],
)
def test_values(case, dims, oracle):
    check_on_training_build(case, dims, oracle)
