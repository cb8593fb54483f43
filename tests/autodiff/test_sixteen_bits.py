"""The same gradients in float16 and bfloat16: of the tables, what can be written in these types and run.

Activations and elementwise ops are tried in test_elementwise_values.py, with other bounds.
"""

from __future__ import annotations

import pytest

from autodiff.cases import (
    convolution,
    indexing,
    loss,
    matrix,
    normalization,
    pooling,
    reduction,
    resampling,
    shape,
)
from autodiff.gradient_checks import check_in_float16, check_is_valid_in_bfloat16


def some(cases, wanted=lambda _case: True, *, size=0):
    """Cases in float that are ``wanted``, each in one of its sizes."""
    chosen = [(case, case.dims[size]) for case in cases if "float[" in case.inputs and wanted(case)]
    assert chosen, "nothing is left to test"
    return chosen


def at_opset_22(case):
    """Older opsets have no bfloat16 for them."""
    return case.opset == 22


NO_KERNEL = {
    *("ScatterElements adds", "ScatterND adds"),
    *("reverse sequence time first", "reverse sequence batch first"),
}
"""What ONNX Runtime has no kernel for in float16, or ONNX no bfloat16."""

BOTH_TYPES = {
    "convolution": some(convolution.CASES, at_opset_22),
    "indexing": some(indexing.CASES, lambda case: case.name not in NO_KERNEL),
    "pooling": some(pooling.CASES, at_opset_22),
    "resampling": some(
        resampling.CASES,
        # ONNX's text form has no constants of these types, and scales are float in all of them.
        lambda case: (
            not any(word in case.body + case.inputs for word in ("value_float =", "float v"))
            and case.name != "resize by computed scales"
        ),
    ),
    "shape": some(shape.CASES),
}
FLOAT16 = BOTH_TYPES | {
    "loss": some(
        loss.CASES, lambda case: not any(word in case.name for word in ("sum", "none", "opset")), size=-1
    ),
    "matrix": some(matrix.CASES, size=-1),
    # Its parameters and statistics may be of other types: test_normalization_rules.py has those.
    "normalization": some(normalization.CASES, lambda case: not case.name.startswith("BatchNormalization")),
    "reduction": some(
        reduction.CASES,
        lambda case: case.name.endswith(("of two, dropped", "of nothing", "of images", "of fixed extents")),
        size=-1,
    ),
}


def once(tables):
    return pytest.mark.parametrize(
        ("case", "dims"),
        [
            pytest.param(case, dims, id=f"{table}: {case}")
            for table, chosen in tables.items()
            for case, dims in chosen
        ],
    )


@once(FLOAT16)
def test_float16(case, dims):
    check_in_float16(case, dims)


@once(BOTH_TYPES)
def test_bfloat16(case, dims):  # noqa: ARG001 - one model for all of them
    check_is_valid_in_bfloat16(case)
