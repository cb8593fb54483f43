"""The benchmark cases of a model: the distinct shapes of its batch norms, and how many have each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bngrad.bench.case import DTYPES, Case
from bngrad.errors import ModelError
from bngrad.inspection.inspect import inspect
from bngrad.validation.inputs import bind_dimensions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from bngrad.inspection.inspect import BatchNorm


def cases_of_model(model: ir.Model, dims: Mapping[str, int], *, op: str, frozen: bool) -> dict[Case, int]:
    """Returns the cases of a model, in the order of their first batch norms, and how often each occurs.

    Shapes, axes and types are those of the model's batch norms; the op to time is an argument.

    Args:
        model: A forward model or a training graph. It is not modified.
        dims: Sizes of symbolic dimensions by name; the default is `bngrad.validation.inputs.DEFAULT_DIM`.
        op: A key of `bngrad.bench.case.OPS`.
        frozen: Whether the statistics are constants.

    Raises:
        ModelError: The model has no batch norm, or the shape, axes or type of one is unknown or unsupported.
        InputError: ``dims`` has a name that is not a dimension of the model, or the op has no frozen mode.
    """
    model = model.clone()
    bind_dimensions(model, dims, {})
    cases: dict[Case, int] = {}
    for batch_norm in inspect(model).batch_norms:
        case = _case(batch_norm, op=op, frozen=frozen)
        cases[case] = cases.get(case, 0) + 1
    if not cases:
        raise ModelError("the model has no batch norm to time; give shapes with --shape")
    return cases


def _case(batch_norm: BatchNorm, *, op: str, frozen: bool) -> Case:
    where = f"batch norm {batch_norm.name!r} ({batch_norm.op})"
    if batch_norm.mode == "foreign":
        raise ModelError(f"{where} is an op of another framework; convert the model with bngrad rewrite first")
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", batch_norm.shape):
        raise ModelError(f"{where}: the shape of X is {batch_norm.shape}; set symbolic dimensions with --dim")
    if batch_norm.axes is None:
        raise ModelError(f"{where}: its axes are not constant")
    if batch_norm.dtype not in DTYPES:
        raise ModelError(f"{where}: X is {batch_norm.dtype}; expected one of {', '.join(DTYPES)}")
    shape = tuple(int(size) for size in batch_norm.shape.split("x"))
    return Case(shape, tuple(batch_norm.axes), batch_norm.dtype, op, frozen)
