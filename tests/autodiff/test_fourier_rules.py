"""DFTs that are refused: those of which ONNX Runtime and ONNX read different frequencies."""

from __future__ import annotations

import pytest

from autodiff.gradient_cases import Case, differentiated
from bngrad.errors import UnsupportedNodeError

REFUSED = {
    "more frequencies than there are": ("x", 2, "it makes 2 numbers of 4 frequencies; expected 2 frequencies"),
    "fewer frequencies than there are": ("x", 8, "it makes 8 numbers of 4 frequencies; expected 5 frequencies"),
    "a size that is not known": ("z", 6, "its dft_length or its size is not known; expected numbers"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_inverse_one_sided_transforms(what):
    name, length, reason = REFUSED[what]
    refused = Case(
        what,
        "float[N, 4, 2] x, float[N, L, 2] z",
        f"y = DFT <inverse = 1, onesided = 1> ({name}, n)",
        wrt=(name,),
        initializers=f"int64 n = {{{length}}}",
    )
    with pytest.raises(UnsupportedNodeError, match=f"DFT node 'DFT_0'.*{reason}"):
        differentiated(refused)
