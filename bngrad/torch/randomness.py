"""Turns off the randomness of a module and of its exported model, so that the two can be compared.

A uniform draw gives a quarter of its range, and a normal one a quarter of a deviation above its mean. Other draws
are computed from these, as in `draws`: one of 0 or 1 gives 1 unless 1 is improbable, Dropout scales all elements,
or drops all if it drops most, a permutation changes nothing, and categories are drawn in the order of their
probabilities.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bngrad.graph.constant_value import constant_value
from bngrad.graph.fresh_names import Names
from bngrad.passes.workarounds.bernoulli import BernoulliPass
from bngrad.training.to_inference import drop_dropout, random_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_QUARTER = 0.25
"""The result of a uniform draw from 0 to 1, and of a standard normal draw."""


class NothingRandom(TorchDispatchMode):
    """While it is active, ops of PyTorch that draw are not random."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls an op."""
        draw = _DRAWS.get(func)
        return func(*args, **kwargs or {}) if draw is None else draw(func, *args, **kwargs or {})


def _quarter(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    return func(*args, **kwargs).fill_(_QUARTER)


def _integer(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    low, high = [0, *(argument for argument in args if isinstance(argument, int))][-2:]
    return func(*args, **kwargs).fill_(math.floor((high - low) * _QUARTER + low))


def _normal(func: Callable[..., Any], mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    return func(mean, std, *args, **kwargs).copy_(torch.as_tensor(mean + _QUARTER * std))


def _normal_(func: Callable[..., Any], tensor: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:  # noqa: ANN401, ARG001
    return tensor.fill_(mean + _QUARTER * std)


def _bernoulli(_func: Callable[..., Any], tensor: Any, p: Any = None, **_: Any) -> Any:  # noqa: ANN401
    if p is None:
        return (tensor > _QUARTER).to(tensor.dtype)
    return torch.full_like(tensor, _kept(p))


def _bernoulli_(_func: Callable[..., Any], tensor: Any, p: Any = 0.5, **_: Any) -> Any:  # noqa: ANN401
    return tensor.copy_(p > _QUARTER) if isinstance(p, torch.Tensor) else tensor.fill_(_kept(p))


def _uniform_(_func: Callable[..., Any], tensor: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:  # noqa: ANN401
    return tensor.fill_(low + _QUARTER * (high - low))


_TIME = -math.log1p(-_QUARTER)
"""The result of a draw from the exponential distribution of rate 1."""


def _exponential_(_func: Callable[..., Any], tensor: Any, lambd: float = 1.0, **_: Any) -> Any:  # noqa: ANN401
    return tensor.fill_(_TIME / lambd)


def _log_normal_(_func: Callable[..., Any], tensor: Any, mean: float = 1.0, std: float = 2.0, **_: Any) -> Any:  # noqa: ANN401
    return tensor.fill_(math.exp(mean + _QUARTER * std))


def _geometric_(_func: Callable[..., Any], tensor: Any, p: float, **_: Any) -> Any:  # noqa: ANN401
    return tensor.fill_(1 if p >= 1 else max(math.ceil(_TIME / -math.log1p(-p)), 1))


def _cauchy_(_func: Callable[..., Any], tensor: Any, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Any:  # noqa: ANN401
    return tensor.fill_(median + sigma * math.tan(math.pi * (_QUARTER - 0.5)))


def _permutation(func: Callable[..., Any], size: int, **kwargs: Any) -> Any:  # noqa: ANN401
    return torch.arange(size, out=func(size, **kwargs))


def _multinomial(_func: Callable[..., Any], tensor: Any, count: int, replacement: bool = False, **_: Any) -> Any:  # noqa: ANN401
    order = torch.sort(tensor, dim=-1, descending=True, stable=True).indices
    return order[..., :1].expand(*order.shape[:-1], count).clone() if replacement else order[..., :count]


def _rrelu(
    _func: Callable[..., Any],
    tensor: Any,  # noqa: ANN401
    noise: Any,  # noqa: ANN401
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    slope = lower + _QUARTER * (upper - lower) if training else (lower + upper) / 2
    noise.copy_(torch.where(tensor > 0, 1.0, slope))
    return torch.where(tensor > 0, tensor, tensor * slope)


def _dropout(_func: Callable[..., Any], tensor: Any, p: float, train: bool | None) -> Any:  # noqa: ANN401
    factor = _factor(p) if train is not False else 1.0
    return tensor * factor, torch.full_like(tensor, factor > 0, dtype=torch.bool)


def _kept(probability: float) -> float:
    return 1.0 if probability > _QUARTER else 0.0


def _factor(ratio: float) -> float:
    """The factor of Dropout."""
    return _kept(1.0 - ratio) / (1.0 - ratio) if ratio < 1 else 0.0


_ATEN = torch.ops.aten
_DRAWS: dict[Callable[..., Any], Callable[..., Any]] = {
    _ATEN.rand.default: _quarter,
    _ATEN.rand_like.default: _quarter,
    _ATEN.randn.default: _quarter,
    _ATEN.randn_like.default: _quarter,
    _ATEN.randint.default: _integer,
    _ATEN.randint.low: _integer,
    _ATEN.randint_like.default: _integer,
    _ATEN.randint_like.low_dtype: _integer,
    _ATEN.normal.float_float: _normal,
    _ATEN.normal.float_Tensor: _normal,
    _ATEN.normal.Tensor_float: _normal,
    _ATEN.normal.Tensor_Tensor: _normal,
    _ATEN.normal_.default: _normal_,
    _ATEN.bernoulli.default: _bernoulli,
    _ATEN.bernoulli.p: _bernoulli,
    _ATEN.bernoulli_.float: _bernoulli_,
    _ATEN.bernoulli_.Tensor: _bernoulli_,
    _ATEN.native_dropout.default: _dropout,
    _ATEN.uniform_.default: _uniform_,
    _ATEN.exponential_.default: _exponential_,
    _ATEN.log_normal_.default: _log_normal_,
    _ATEN.geometric_.default: _geometric_,
    _ATEN.cauchy_.default: _cauchy_,
    _ATEN.randperm.default: _permutation,
    _ATEN.multinomial.default: _multinomial,
    _ATEN.rrelu_with_noise.default: _rrelu,
}


def nothing_random(model: ir.Model) -> ir.Model:
    """Returns a copy of a forward model with the same draws replaced; other random nodes stay."""
    result = BernoulliPass()(model.clone()).model
    names = Names(result)
    for node in random_nodes(result):
        if node.op_type == "Dropout":
            _scale(node, result.opset_imports[""], names)
        elif node.op_type in ("RandomUniformLike", "RandomNormalLike"):
            _draw_always(_drawn_value(node), node, names)
        elif node.op_type == "Multinomial":
            _draw_most_probable(node, names)
    return result


def _scale(node: ir.Node, opset: int, names: Names) -> None:
    """Replaces a Dropout in training mode by its factor, and removes any other."""
    ratio, training = (
        constant_value(value) if value is not None else None for value in (*node.inputs[1:3], None, None)[:2]
    )
    x, graph = node.inputs[0], node.graph
    if x is not None and training is not None and training.numpy().item():
        dtype = x.dtype or ir.DataType.FLOAT
        factor = _factor(0.5 if ratio is None else float(ratio.numpy()))
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array(factor, dtype.numpy()))})
        constant.outputs[0].name = names.fresh(f"{x.name}_factor")
        product = ir.node("Mul", [x, *constant.outputs], name=names.fresh(f"{node.name}_factor"))
        product.outputs[0].name = names.fresh(f"{x.name}_scaled")
        product.outputs[0].type, product.outputs[0].shape = x.type, x.shape
        assert isinstance(graph, ir.Graph), "the exporter writes no subgraphs"  # noqa: S101
        graph.insert_before(node, [constant, product])
        node.replace_input_with(0, product.outputs[0])
    drop_dropout(node, opset, names)


def _drawn_value(node: ir.Node) -> float:
    first, last = ("low", "high") if node.op_type == "RandomUniformLike" else ("mean", "scale")
    start, other = (
        node.attributes[name].as_float() if name in node.attributes else default
        for name, default in ((first, 0.0), (last, 1.0))
    )
    return start + _QUARTER * (other - start if first == "low" else other)


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


def _draw_most_probable(node: ir.Node, names: Names) -> None:
    """Replaces a Multinomial by the first of the categories of the largest probability."""
    graph, (drawn,) = node.graph, node.outputs
    assert isinstance(graph, ir.Graph), "the exporter writes no subgraphs"  # noqa: S101
    count = node.attributes["sample_size"].as_int() if "sample_size" in node.attributes else 1
    sizes = ir.node("Constant", [], {"value": ir.tensor([1, count], dtype=ir.DataType.INT64)})
    first = ir.node("ArgMax", [node.inputs[0]], {"axis": 1})
    repeated = ir.node("Expand", [first.outputs[0], sizes.outputs[0]])
    dtype = drawn.dtype or ir.DataType.INT64
    typed = ir.node("Cast", [repeated.outputs[0]], {"to": dtype}, name=node.name)
    for new in (sizes, first, repeated):
        new.name = new.outputs[0].name = names.fresh(f"{drawn.name}_{new.op_type}")
    typed.outputs[0].type, typed.outputs[0].shape = drawn.type, drawn.shape
    nodes = [sizes, first, repeated, typed]
    ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, [drawn], typed.outputs)
    typed.outputs[0].name = drawn.name
