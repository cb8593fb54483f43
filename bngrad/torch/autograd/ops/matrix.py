"""Products of matrices, and determinants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op

op("MatMul")(torch.matmul)


class _Determinant(torch.autograd.Function):
    """The determinant, whose gradient is right for singular matrices, too: that of torch.linalg.det is 0 there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401 - a context of PyTorch
        ctx.save_for_backward(x)
        return torch.linalg.det(x)

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> Tensor:  # noqa: ANN401 - as above
        """The cofactors of x = u s v: det(u) det(v) u c v, where c has the products of the other values of s."""
        u, s, v = torch.linalg.svd(*ctx.saved_tensors)
        others = torch.where(torch.eye(s.shape[-1], dtype=torch.bool), 1, s.unsqueeze(-2)).prod(-1)
        factor = dY * torch.linalg.det(u) * torch.linalg.det(v)
        return factor[..., None, None] * (u * others.unsqueeze(-2)) @ v


op("Det")(_Determinant.apply)


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
