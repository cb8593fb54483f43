"""nGraph's batch norm in training mode -> the ops of ``bngrad``.

nGraph stores the inputs of a node in another order than its documentation and its constructors use. The records
have that of its serialized graphs; the domain may be any. ``BatchNormBackprop`` is an older name of the gradient.
nGraph's JSON spells the attribute ``eps``, its visitor ``epsilon``; both are accepted. nGraph rounds it to
float32, even for data of double.

The channels are dimension 1 at every rank from 2 up. With N elements per channel, nGraph's kernel computes::

    beta_delta  = sum delta
    gamma_delta = sum delta * (input - mean) / sqrt(variance + eps)
    input_delta = gamma / sqrt(variance + eps) / N
                  * (N * delta - beta_delta - gamma_delta * (input - mean) / sqrt(variance + eps))

for any mean and variance, not only those of the input: term by term the formula of training_mode 1 of ``bngrad``.
(The formulas of gamma_delta and input_delta in nGraph's documentation are wrong.) beta is checked but never read.

The forward node returns the mean and the biased variance of the batch. These are the running statistics after an
update with momentum 0, whatever the old ones were. nGraph itself has no running statistics.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import statistics_dtype
from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import raise_refusals
from bngrad.opset.known_shapes import known_shape, may_be_equal
from bngrad.passes.imports.checks import only_epsilon, only_epsilon_reasons
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import NUMBER, ForeignNode, ForeignOp, is_data
from bngrad.passes.imports.operands import Operands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bngrad.opset.known_shapes import KnownShape
    from bngrad.passes.base import Context


# ---- reasons for a refusal ----


def _reasons(node: ForeignNode) -> Iterator[str]:
    """Yields the violations of nGraph's eight rules, in its order and with its messages.

    Unknown shapes and types violate nothing. Each rule relies on those before it. Types that nGraph supports and
    bngrad does not come last: by then all inputs have one type.
    """
    yield from only_epsilon_reasons(node)
    data, channel_shapes = _data_shapes(node), _channel_shapes(node)
    if _contradict(data):
        shapes = f"input data shape: {_text(data[0])}, delta shape: {_text(data[1])}"
        yield f"shape of delta does not match the shape of the input data ({shapes})"
    dtypes = {
        name: value.dtype.name.lower()
        for name, value in zip(node.op.inputs, node.node.inputs, strict=True)
        if value is not None and value.dtype is not None
    }
    x, delta = (dtypes.get(name) for name in ("input", "delta"))
    if x is not None and delta is not None and x != delta:
        yield f"element type for input ({x}) does not match element type for delta ({delta})"
    if len(set(dtypes.values())) > 1:
        all_types = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        yield f"input element types do not match ({all_types})"
    merged = _merged(data)
    if merged is not None and len(merged) < 2:
        yield f"input argument must have rank of at least 2 (input argument shape: {_text(merged)})"
    names = "/".join(name for name, quantity in node.op.inputs.items() if not is_data(quantity))
    if _contradict(channel_shapes):
        yield f"shapes for {names} do not match ({'/'.join(map(_text, channel_shapes))})"
    channels, of_data = _merged(channel_shapes), _channels_of(data)
    if channels is not None and len(channels) != 1:
        yield f"shape for {names} ({_text(channels)}) does not have rank 1"
    if _contradict([of_data, channels]):
        count = _text(of_data)[1:-1]
        yield f"input channel dimension ({count}) does not match shape for {names} ({_text(channels)})"
    if _merged([of_data, channels]) == (0,):
        yield "channel count must be at least 1"
    if reason := type_refusal(node.node.inputs, ()):
        yield reason


def _data_shapes(node: ForeignNode) -> list[KnownShape | None]:
    return [known_shape(value) for quantity, value in node.inputs.items() if is_data(quantity)]


def _channel_shapes(node: ForeignNode) -> list[KnownShape | None]:
    return [known_shape(value) for quantity, value in node.inputs.items() if not is_data(quantity)]


def _channels_of(data_shapes: Sequence[KnownShape | None]) -> KnownShape | None:
    """Returns the shape [C] according to the data."""
    data = _merged(data_shapes)
    return None if data is None else data[1:2]


def _contradict(shapes: Sequence[KnownShape | None]) -> bool:
    """Tests whether any two of the shapes cannot be equal."""
    known_shapes = [shape for shape in shapes if shape is not None]
    return not all(may_be_equal(*pair) for pair in itertools.combinations(known_shapes, 2))


def _merged(shapes: Sequence[KnownShape | None]) -> KnownShape | None:
    """Merges several partly known shapes of the same tensor, which do not contradict each other."""
    known_shapes = [shape for shape in shapes if shape is not None]
    if not known_shapes:
        return None
    return tuple(
        next((d for d in sizes if isinstance(d, int)), sizes[0]) for sizes in zip(*known_shapes, strict=True)
    )


def _text(shape: KnownShape | None) -> str:
    """Returns a shape as nGraph prints it."""
    if shape is None:
        return "?"
    return "{" + ",".join(str(d) if isinstance(d, int) else "?" for d in shape) + "}"


# ---- the rewrite ----


def _rewrite_forward(node: ForeignNode, context: Context) -> None:
    operands = _typed_operands(node, context)
    # Zeros of shape [C] in the type of the input; neither needs to be known.
    zeros = operands.emit.op("ConstantOfShape", operands.emit.op("Shape", node.present("scale")))
    zeros = operands.emit.op("CastLike", zeros, node.present("X"))
    results = operands.apply(
        "BatchNormalizationTraining",
        {"running_mean": zeros, "running_var": zeros},
        epsilon=only_epsilon(node),
        momentum=0.0,
        unbiased_running_var=0,
    )
    operands.replace(results)


def _rewrite_backprop(node: ForeignNode, context: Context) -> None:
    operands, x = _typed_operands(node, context), node.present("X")
    # The type of X is unknown in a function body.
    dtype = None if x.dtype is None else statistics_dtype(x)
    statistics = operands.frozen_statistics("mean", "variance", only_epsilon(node), dtype)
    operands.replace(operands.apply("BatchNormalizationGrad", statistics, training_mode=1))


def _typed_operands(node: ForeignNode, context: Context) -> Operands:
    # Check again: rewriting an earlier node may have given the inputs of this one types and shapes.
    raise_refusals([(node.node, reason) for reason in itertools.islice(_reasons(node), 1)])
    _propagate_types(node)
    return Operands(node, context)


def _propagate_types(node: ForeignNode) -> None:
    """Sets the input's type and the outputs' types and shapes from those of all inputs that are known."""
    inputs = [value for value in node.inputs.values() if value is not None]
    dtype = next((value.dtype for value in inputs if value.dtype is not None), None)
    if dtype is not None:
        node.present("X").dtype = dtype
    data = _merged(_data_shapes(node))
    channels = _merged([*_channel_shapes(node), _channels_of([data])])
    if data is not None and channels is not None and isinstance(channels[0], int):
        data = (data[0], channels[0], *data[2:])
    for value, shape in zip(node.node.outputs, (data, channels, channels), strict=False):
        if value.dtype is None and dtype is not None:
            value.dtype = dtype
        if value.shape is None and value.dtype is not None and shape is not None:
            value.shape = ir.Shape(shape)


_FORWARD = ForeignOp(
    "gamma: scale, beta: bias, input: X -> output: Y, mean: new_running_mean, variance: new_running_var",
    attributes={"eps": NUMBER, "epsilon": NUMBER},
    checks=[_reasons],
    rewrite=_rewrite_forward,
)
_BACKPROP = replace(
    _FORWARD,
    signature="gamma: scale, beta: bias, input: X, mean, variance, delta: dY "
    "-> input_delta: dX, gamma_delta: dscale, beta_delta: dbias",
    rewrite=_rewrite_backprop,
)


class ImportNgraphPass(DialectPass):
    """Rewrites every BatchNormTraining and BatchNormTrainingBackprop.

    Matches: input of rank 2 or more, or of unknown rank. Input of unknown rank or of a rank above 8 is reshaped to
    [N, C, S].
    Refuses: nodes that nGraph rejects on construction, by the same rules in the same order; types that ``bngrad``
    does not support; and attributes that nGraph's ops do not have, because other systems have a BatchNormTraining
    too.
    Guarantees: outputs without a type get the type that nGraph infers from all inputs.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        "BatchNormTraining": _FORWARD,
        "BatchNormTrainingBackprop": _BACKPROP,
        "BatchNormBackprop": _BACKPROP,
    }
