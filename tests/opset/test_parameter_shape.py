"""Tests the shape of scale and bias that MIOpen derives from an input."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.opset.parameter_shape import derive_parameter_shape

DERIVED = {
    "1C11": ((8, 3, 5, 7), "spatial", (1, 3, 1, 1)),
    "1CHW": ((8, 3, 5, 7), "per_activation", (1, 3, 5, 7)),
    "1C111": ((8, 3, 4, 5, 7), "spatial", (1, 3, 1, 1, 1)),
    "1CDHW": ((8, 3, 4, 5, 7), "per_activation", (1, 3, 4, 5, 7)),
    "by-value-1": ((8, 3, 5, 7), 1, (1, 3, 1, 1)),
    "by-value-0": ((8, 3, 5, 7), 0, (1, 3, 5, 7)),
    "by-enumerator": ((8, 3, 5, 7), "miopenBNSpatial", (1, 3, 1, 1)),
    "by-the-other-enumerator": ((8, 3, 5, 7), "miopenBNPerActivation", (1, 3, 5, 7)),
    "a-list": ([8, 3, 5, 7], "spatial", (1, 3, 1, 1)),
    "numpy": (np.zeros((8, 3, 5, 7)).shape, "spatial", (1, 3, 1, 1)),
    "empty-batch": ((0, 3, 5, 7), "per_activation", (1, 3, 5, 7)),
    "ones": ((1, 1, 1, 1), "per_activation", (1, 1, 1, 1)),
}
REFUSED = {
    "3-D": ((8, 3, 5), "spatial", "X has 3 dimensions; expected 4 (NCHW) or 5 (NCDHW)"),
    "6-D": ((8, 3, 5, 5, 5, 5), "spatial", "X has 6 dimensions; expected 4 (NCHW) or 5 (NCDHW)"),
    "0-D": ((), "per_activation", "X has 0 dimensions; expected 4"),
    "negative": ((8, -3, 5, 7), "spatial", "X has shape [8, -3, 5, 7]; expected no negative dimension"),
    "mode": ((8, 3, 5, 7), "batch", "mode is 'batch'; expected 'spatial' (or 1) or 'per_activation'"),
    "mode-2": ((8, 3, 5, 7), 2, "mode is 2; expected 'spatial' (or 1) or 'per_activation' (or 0)"),
}


@pytest.mark.parametrize("case", DERIVED)
def test_derived(case):
    x_shape, mode, want = DERIVED[case]
    assert derive_parameter_shape(x_shape, mode) == want


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    x_shape, mode, reason = REFUSED[case]
    with pytest.raises(InputError) as error:
        derive_parameter_shape(x_shape, mode)
    assert reason in str(error.value)
