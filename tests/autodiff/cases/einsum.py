"""Gradients of Einsum."""

from __future__ import annotations

from autodiff.gradient_cases import NO_RULE, Case

ONES = ({"M": 3, "K": 1}, {"M": 2, "K": 2})
"""ONNX Runtime may end the process where N is 0, except in a product of matrices: only those have an N."""


def einsum(equation, *shapes, name="", **more):
    names = "abc"[: len(shapes)]
    return Case(
        f"einsum {equation}{name}",
        ", ".join(f"float[{shape}] {operand}" for shape, operand in zip(shapes, names, strict=True)),
        f'y = Einsum <equation = "{equation}"> ({", ".join(names)})',
        more.pop("wrt", tuple(names)),
        **{"dims": ({"N": 3, "M": 3},), "oracle": NO_RULE} | more,
    )


CASES = [
    einsum("bij,bjk->bik", "N, 2, 3", "N, 3, 4", opset=28),
    einsum("ij,jk", "N, 2", "2, 3"),
    einsum(" i j , k l m, m i -> k j ", "M, 2", "2, 3, 4", "4, M"),
    einsum("ba", "M, 2"),
    einsum("...ij,jk...->k...i", "2, M, 3, 4", "4, 2, 2, 1"),
    einsum("a...", "2, M", name=", the ellipsis first"),
    einsum("iij,ij,jj->j", "2, 2, M", "2, M", "M, M"),
    einsum("iiij->", "2, 2, 2, M"),
    einsum("ij,kl->i", "M, 1", "3, 4", name=", sums"),
    einsum("ij,jk->ik", "3, M", "K, 2", name=", which of unknown sizes", dims=ONES),
    einsum("ii,ik->k", "M, M", "K, 2", name=", a diagonal of unknown size", dims=({"M": 3, "K": 1},)),
]
