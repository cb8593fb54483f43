"""Turns off what is random, in a module and in the model of it, so that the two can be compared.

Dropout becomes the identity. A uniform draw gives the middle of its range, a normal one half a deviation above its
mean, so a draw of 0 or 1 gives 1 where 1 is the more probable; where probabilities are a tensor, it gives 1.
"""

from __future__ import annotations

import math
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
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
_MIDDLE = 0.5
"""What a uniform draw from 0 to 1 gives, and a standard normal one."""


class NothingRandom(TorchFunctionMode):
    """While it is active, Dropout and draws are not random."""

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
        if func in _DRAWS:
            return _DRAWS[func](func, *args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = [*args[:4], 0.0, *args[5:]]
            else:
                kwargs["dropout_p"] = 0.0
        elif getattr(func, "__name__", "") in _RECURRENT:
            args = [0.0 if isinstance(one, float) else one for one in args]  # the probability of Dropout
        return func(*args, **kwargs)


def _middle(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    return func(*args, **kwargs).fill_(_MIDDLE)


def _middle_integer(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    bounds = [one for one in (*args, kwargs.get("low"), kwargs.get("high")) if isinstance(one, int)]
    low, high = [0, *bounds][-2:]
    return func(*args, **kwargs).fill_(math.floor((high - low) * _MIDDLE + low))


def _normal(func: Callable[..., Any], mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    drawn = func(mean, std, *args, **kwargs)
    return drawn.copy_(torch.as_tensor(mean + _MIDDLE * std))


def _normal_in_place(
    _func: Callable[..., Any],
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    **_kwargs: Any,  # noqa: ANN401
) -> torch.Tensor:
    return tensor.fill_(mean + _MIDDLE * std)


def _bernoulli(_func: Callable[..., Any], input: torch.Tensor, p: Any = None, **_kwargs: Any) -> Any:  # noqa: A002, ANN401
    return torch.full_like(input, 1.0 if p is None or p > _MIDDLE else 0.0)


def _bernoulli_in_place(_func: Callable[..., Any], tensor: torch.Tensor, p: Any = 0.5, **_kwargs: Any) -> Any:  # noqa: ANN401
    return tensor.fill_(1.0 if isinstance(p, torch.Tensor) or p > _MIDDLE else 0.0)


_DRAWS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.rand: _middle,
    torch.rand_like: _middle,
    torch.randn: _middle,
    torch.randn_like: _middle,
    torch.randint: _middle_integer,
    torch.randint_like: _middle_integer,
    torch.normal: _normal,
    torch.Tensor.normal_: _normal_in_place,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.Tensor.bernoulli_: _bernoulli_in_place,
}


def nothing_random(model: ir.Model) -> ir.Model:
    """Returns a copy of a forward model with the same turned off; other random nodes stay."""
    result = model.clone()
    names = Names(result)
    for node in random_nodes(result):
        if node.op_type == "Dropout":
            drop_dropout(node, result.opset_imports[""], names)
        elif node.op_type in ("Bernoulli", "RandomUniformLike", "RandomNormalLike"):
            _draw_always(_drawn_value(node), node, names)
    return result


def _drawn_value(node: ir.Node) -> float:
    if node.op_type == "Bernoulli":
        return 1.0
    first, last = ("low", "high") if node.op_type == "RandomUniformLike" else ("mean", "scale")
    start, other = (
        node.attributes[name].as_float() if name in node.attributes else default
        for name, default in ((first, 0.0), (last, 1.0))
    )
    return start + _MIDDLE * (other - start if first == "low" else other)


def _draw_always(value: float, node: ir.Node, names: Names) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph), "the exporter writes no subgraphs"  # noqa: S101
    (drawn,) = node.outputs
    dtype = drawn.dtype or ir.DataType.FLOAT
    shape = ir.node("Shape", [node.inputs[0]], name=names.fresh(f"{drawn.name}_shape"))
    shape.outputs[0].name = shape.name
    filled = ir.node(
        "ConstantOfShape", [*shape.outputs], {"value": ir.tensor([value], dtype=dtype)}, name=node.name
    )
    filled.outputs[0].type, filled.outputs[0].shape = drawn.type, drawn.shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [shape, filled], [drawn], filled.outputs)
    filled.outputs[0].name = drawn.name
