"""nGraph's batch norm in training mode -> the ops of ``bngrad``.

nGraph stores the inputs of a node in another order than its documentation and its constructors use. This is the
order in its serialized graphs; the domain may be any::

    BatchNormTrainingBackprop(gamma, beta, input, mean, variance, delta)    {eps}
        -> (input_delta, gamma_delta, beta_delta)
    =>  inv_std = 1 / sqrt(variance + eps)
        bngrad.BatchNormalizationGrad(delta, input, gamma, mean, inv_std, axes)    {training_mode=1}

    BatchNormTraining(gamma, beta, input)    {eps}
        -> (output, mean, variance)
    =>  bngrad.BatchNormalizationTraining(input, gamma, beta, 0, 0, axes)
            {epsilon=eps, momentum=0, unbiased_running_var=0}

``BatchNormBackprop`` is an older name of the first op. nGraph's JSON spells the attribute ``eps``, its visitor
``epsilon``; both are accepted. nGraph rounds it to float32, even for data of double.

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
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import inverse_std, statistics_dtype
from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import raise_refusals
from bngrad.opset.functions import DOMAIN
from bngrad.opset.known_shapes import known_shape, may_be_equal
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.channel_axis import rewrite_in_place
from bngrad.passes.imports.node_form import NodeForm
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bngrad.opset.known_shapes import KnownShape

_EPSILON_NAMES = ("eps", "epsilon")
_FORWARD = NodeForm(("gamma", "beta", "input"), ("output", "mean", "variance"), _EPSILON_NAMES)
_BACKPROP = NodeForm(
    ("gamma", "beta", "input", "mean", "variance", "delta"),
    ("input_delta", "gamma_delta", "beta_delta"),
    _EPSILON_NAMES,
)
_FORMS = {
    "BatchNormTraining": _FORWARD,
    "BatchNormTrainingBackprop": _BACKPROP,
    "BatchNormBackprop": _BACKPROP,
}

_DATA = ("input", "delta")
"""The inputs with the shape of the data; the others have one element per channel."""


class ImportNgraphPass(RewritePass):
    """Rewrites every BatchNormTraining and BatchNormTrainingBackprop.

    Matches: input of rank 2 or more, or of unknown rank. Input of unknown rank or of a rank above 8 is reshaped to
    [N, C, S].
    Refuses: nodes that nGraph rejects on construction, by the same rules in the same order; types that ``bngrad``
    does not support; and attributes that nGraph's ops do not have, because other systems have a BatchNormTraining
    too.
    Guarantees: outputs without a type get the type that nGraph infers from all inputs.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return node.op_type in _FORMS and node.domain != DOMAIN

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        # Types that nGraph supports and bngrad does not come last: by then all inputs have one type.
        reasons = itertools.chain(_FORMS[node.op_type].violations(node), _violations(node))
        return next(reasons, None) or type_refusal(node.inputs, ())

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        # Check again: rewriting an earlier node may have given the inputs of this one types and shapes.
        raise_refusals([(node, reason)] if (reason := self.refusal(node)) else [])
        given = _inputs(node)
        _propagate_types(node, given)
        form = _FORMS[node.op_type]
        emit, epsilon = Emitter(node, context), form.epsilon(node)
        if form is _FORWARD:
            # Zeros of shape [C] in the type of the input; neither needs to be known.
            zeros = emit.op(
                "CastLike", emit.op("ConstantOfShape", emit.op("Shape", given["gamma"])), given["input"]
            )
            _replace_inputs(node, [given["input"], given["gamma"], given["beta"], zeros, zeros])
            attributes = [
                ir.AttrFloat32("epsilon", epsilon),
                ir.AttrFloat32("momentum", 0.0),
                ir.AttrInt64("unbiased_running_var", 0),
            ]
            rewrite_in_place(node, "BatchNormalizationTraining", attributes, context)
        else:
            statistics = _statistics(emit, given, epsilon)
            _replace_inputs(node, [given["delta"], given["input"], given["gamma"], *statistics])
            training = [ir.AttrInt64("training_mode", 1)]
            rewrite_in_place(node, "BatchNormalizationGrad", training, context)


# ---- the rewrite ----


def _propagate_types(node: ir.Node, given: Mapping[str, ir.Value]) -> None:
    """Sets the input's type and the outputs' types and shapes from what is known of all inputs."""
    dtype = next((value.dtype for value in given.values() if value.dtype is not None), None)
    if dtype is not None:
        given["input"].dtype = dtype
    channels = _merged([*_channel_shapes(given), _channels_of(given)])
    data = _merged(_data_shapes(given))
    if data is not None and channels is not None and isinstance(channels[0], int):
        data = (data[0], channels[0], *data[2:])
    for value, shape in zip(node.outputs, (data, channels, channels), strict=False):
        if value.dtype is None and dtype is not None:
            value.dtype = dtype
        if value.shape is None and value.dtype is not None and shape is not None:
            value.shape = ir.Shape(shape)


def _statistics(emit: Emitter, given: Mapping[str, ir.Value], epsilon: float) -> tuple[ir.Value, ir.Value]:
    """Returns the mean and inv_std of a backprop node, in one type."""
    x, mean, variance = given["input"], given["mean"], given["variance"]
    if x.dtype is None:
        # As in a function body. Double is exact enough for every type that the input may have.
        return mean, emit.op("CastLike", inverse_std(emit, variance, epsilon, ir.DataType.DOUBLE), x)
    dtype = statistics_dtype(x)
    return emit.cast(mean, dtype), inverse_std(emit, variance, epsilon, dtype)


def _replace_inputs(node: ir.Node, inputs: Sequence[ir.Value]) -> None:
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


# ---- reasons for a refusal ----


def _violations(node: ir.Node) -> Iterator[str]:
    """Yields the violations of nGraph's eight rules, in its order and with its messages.

    Unknown shapes and types violate nothing. Each rule relies on those before it.
    """
    given = _inputs(node)
    data, channel_shapes = _data_shapes(given), _channel_shapes(given)
    if _contradict(data):
        shapes = f"input data shape: {_text(data[0])}, delta shape: {_text(data[1])}"
        yield f"shape of delta does not match the shape of the input data ({shapes})"
    dtypes = {name: value.dtype.name.lower() for name, value in given.items() if value.dtype is not None}
    x, delta = (dtypes.get(name) for name in _DATA)
    if x is not None and delta is not None and x != delta:
        yield f"element type for input ({x}) does not match element type for delta ({delta})"
    if len(set(dtypes.values())) > 1:
        all_types = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        yield f"input element types do not match ({all_types})"
    merged = _merged(data)
    if merged is not None and len(merged) < 2:
        yield f"input argument must have rank of at least 2 (input argument shape: {_text(merged)})"
    names = "/".join(_channel_shaped(given))
    if _contradict(channel_shapes):
        yield f"shapes for {names} do not match ({'/'.join(map(_text, channel_shapes))})"
    channels, of_data = _merged(channel_shapes), _channels_of(given)
    if channels is not None and len(channels) != 1:
        yield f"shape for {names} ({_text(channels)}) does not have rank 1"
    if _contradict([of_data, channels]):
        count = _text(of_data)[1:-1]
        yield f"input channel dimension ({count}) does not match shape for {names} ({_text(channels)})"
    if _merged([of_data, channels]) == (0,):
        yield "channel count must be at least 1"


# ---- what is known of a node ----


def _inputs(node: ir.Node) -> dict[str, ir.Value]:
    """Returns the inputs by their names in nGraph; all are present unless the node is refused."""
    names = _FORMS[node.op_type].inputs
    return {name: value for name, value in zip(names, node.inputs, strict=True) if value is not None}


def _channel_shaped(given: Mapping[str, ir.Value]) -> list[str]:
    return [name for name in given if name not in _DATA]


def _data_shapes(given: Mapping[str, ir.Value]) -> list[KnownShape | None]:
    return [known_shape(given[name]) for name in _DATA if name in given]


def _channel_shapes(given: Mapping[str, ir.Value]) -> list[KnownShape | None]:
    return [known_shape(given[name]) for name in _channel_shaped(given)]


def _channels_of(given: Mapping[str, ir.Value]) -> KnownShape | None:
    """Returns the shape [C] according to the data."""
    data = _merged(_data_shapes(given))
    return None if data is None else data[1:2]


def _contradict(shapes: Sequence[KnownShape | None]) -> bool:
    """Whether any two of the shapes cannot be equal."""
    known = [shape for shape in shapes if shape is not None]
    return not all(may_be_equal(one, other) for one, other in itertools.combinations(known, 2))


def _merged(shapes: Sequence[KnownShape | None]) -> KnownShape | None:
    """Combines what several shapes that do not contradict each other say about the same shape."""
    known = [shape for shape in shapes if shape is not None]
    if not known:
        return None
    return tuple(next((d for d in sizes if isinstance(d, int)), sizes[0]) for sizes in zip(*known, strict=True))


def _text(shape: KnownShape | None) -> str:
    """Returns a shape as nGraph prints it."""
    if shape is None:
        return "?"
    return "{" + ",".join(str(d) if isinstance(d, int) else "?" for d in shape) + "}"
