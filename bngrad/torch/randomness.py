"""Turns off what is random, in a module and in the model of it, so that the two can be compared.

Dropout becomes the identity, and a draw of 0 or 1 always gives 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bngrad.graph.fresh_names import Names
from bngrad.training.to_inference import drop_dropout, random_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
    torch.feature_dropout,
    torch.alpha_dropout,
}


class NothingRandom(TorchFunctionMode):
    """While it is active, Dropout and Bernoulli draws are not random."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls a function of PyTorch."""
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is torch.Tensor.bernoulli_:
            return args[0].fill_(1)
        if func in (torch.bernoulli, torch.Tensor.bernoulli):
            return torch.ones_like(args[0])
        return func(*args, **kwargs)


def nothing_random(model: ir.Model) -> ir.Model:
    """Returns a copy of a forward model with the same turned off; other random nodes stay."""
    result = model.clone()
    names = Names(result)
    for node in random_nodes(result):
        if node.op_type == "Dropout":
            drop_dropout(node, result.opset_imports[""], names)
        elif node.op_type == "Bernoulli":
            _draw_ones(node, names)
    return result


def _draw_ones(node: ir.Node, names: Names) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph), "the exporter writes no subgraphs"  # noqa: S101
    (drawn,) = node.outputs
    dtype = drawn.dtype or ir.DataType.FLOAT
    shape = ir.node("Shape", [node.inputs[0]], name=names.fresh(f"{drawn.name}_shape"))
    shape.outputs[0].name = shape.name
    ones = ir.node("ConstantOfShape", [*shape.outputs], {"value": ir.tensor([1], dtype=dtype)}, name=node.name)
    ones.outputs[0].type, ones.outputs[0].shape = drawn.type, drawn.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [shape, ones], [drawn], ones.outputs)
    ones.outputs[0].name = drawn.name
