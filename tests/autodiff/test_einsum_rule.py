"""Equations of Einsum that are refused."""

from __future__ import annotations

import pytest

from autodiff.gradient_cases import Case, differentiated
from bngrad.errors import UnsupportedNodeError

REFUSED = {
    "ij,jk->ik": ("float[2, 1] a, float[3, 4] b", r"the sizes of 'j' in its equation 'ij,jk->ik' are {1, 3}"),
    "iN,Nj": ("float[2, N] a, float[1, 4] b", r"the sizes of 'N' in its equation 'iN,Nj' are "),
    "...i,...i->i": ("float[2, 3] a, float[2, 3] b", "expected an ellipsis in the output, too"),
}


@pytest.mark.parametrize("equation", REFUSED)
def test_refused_equations(equation):
    inputs, message = REFUSED[equation]
    case = Case(equation, inputs, f'y = Einsum <equation = "{equation}"> (a, b)', ("a",))
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(case)
