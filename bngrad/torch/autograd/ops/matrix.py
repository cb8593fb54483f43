"""Products of matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op

op("MatMul")(torch.matmul)
op("Det")(torch.linalg.det)


@op("Gemm", since=7)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """Alpha a' b' + beta c, where a' and b' may be transposed."""
    product = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return product if c is None else product + beta * c


@op("Einsum")
def einsum(*operands: Tensor, equation: str = "") -> Tensor:
    """The sum over all indices that the equation gives no output."""
    return torch.einsum(equation.replace(" ", ""), *operands)
