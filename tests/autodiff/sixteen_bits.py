"""The cases that are also checked in 16 bits: those that these types can express and that run.

Activations and elementwise ops are checked by test_elementwise_values.py, with other limits.
"""

from __future__ import annotations

from autodiff.cases import (
    attention,
    convolution,
    deformable,
    fourier,
    indexing,
    loss,
    matrix,
    normalization,
    pooling,
    products,
    reduction,
    resampling,
    scatter,
    shape,
    windows,
)
from autodiff.gradient_checks import in_bfloat16, in_float16


def some(cases, condition=lambda _case: True, *, size=0):
    """The cases in float for which a condition holds, each with one of its dims."""
    chosen = {case: case.dims[size] for case in cases if "float[" in case.inputs and condition(case)}
    assert chosen, "nothing is left to test"
    return chosen


def at_opset_22(case):
    """Ops without bfloat16 in older opsets."""
    return case.opset == 22


NO_KERNEL = {
    *(case.name for case in scatter.CASES if case.oracle == scatter.IGNORED),
    *("reverse sequence time first", "reverse sequence batch first"),
}
"""Cases without a kernel of ONNX Runtime in float16, or without bfloat16 in ONNX."""

BFLOAT16 = {
    **some(attention.CASES, lambda case: not case.is_long),
    **some(convolution.CASES, at_opset_22),
    **some(deformable.CASES, at_opset_22),
    **some(fourier.CASES, lambda case: "C]" not in case.inputs),
    **some(indexing.CASES, lambda case: case.name not in NO_KERNEL and case not in indexing.CHOICES),
    **some(pooling.CASES, at_opset_22),
    **some(
        resampling.CASES,
        # ONNX's text form has no constants of these types, and scales are float in all of them.
        lambda case: (
            not any(word in case.body + case.inputs for word in ("value_float =", "float v"))
            and case.name != "resize by computed scales"
        ),
    ),
    **some(scatter.CASES, lambda case: case.name not in NO_KERNEL),
    **some(shape.CASES),
    **some(windows.CASES, at_opset_22),
}
FLOAT16 = {
    **BFLOAT16,
    **some(deformable.CASES),
    **some(indexing.CHOICES, lambda case: not case.name.startswith("unique")),
    **some(loss.CASES, lambda case: not any(word in case.name for word in ("sum", "none", "opset")), size=-1),
    **some(matrix.CASES, size=-1),
    # BatchNormalization's parameters and statistics may be of other types: test_normalization_rules.py has those.
    # onnx adds a float to the 16-bit deviation of MeanVarianceNormalization, which its checker refuses.
    **some(
        normalization.CASES,
        lambda case: not case.name.startswith(("BatchNormalization", "MeanVarianceNormalization")),
    ),
    **some(products.CASES, size=-1),
    **some(windows.CASES, lambda case: case.name.startswith(("Col2Im", "LpPool", "GlobalLpPool"))),
    **some(
        reduction.CASES,
        lambda case: case.name.endswith(("of two, dropped", "of nothing", "of images", "of fixed extents")),
        size=-1,
    ),
}
SAMPLE = {
    case: in_bfloat16 if case in BFLOAT16 and index % 2 else in_float16 for index, case in enumerate(FLOAT16)
}
"""The check of each case in one of its types; `make test-long` runs them in both."""
