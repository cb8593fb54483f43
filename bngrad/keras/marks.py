"""Marks batch norms and dropouts of Keras so that they can be identified in the converted model.

Keras spells both out: a batch norm as moments and arithmetic, with assignments that are lost, and a dropout with
random numbers that tf2onnx does not convert. While the model is traced, each is one TensorFlow op instead that
tf2onnx converts to one ONNX node: FusedBatchNormV3 in inference mode, and LeakyRelu. A number in their attribute
``epsilon`` or ``alpha``, which no network has there, identifies the mark. It also keeps equal nodes apart, which
TensorFlow and tf2onnx would merge. `resolve` converts the nodes to the ops that they stand for.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.running_statistics import CALL
from bngrad.errors import BngradError, InputError, ModelError
from bngrad.keras.packages import import_exporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FIRST = 1 << 20
"""The number of the first mark; float32 holds this and the next 15 million."""
_TAGS = {"BatchNormalization": "epsilon", "LeakyRelu": "alpha"}
"""The attribute with the number of a mark."""


class BatchNorm(NamedTuple):
    """One call of a BatchNormalization layer."""

    name: str
    """The path of the layer."""
    epsilon: float
    momentum: float
    training: bool
    """True if it uses the statistics of the batch: not in a layer with trainable=False."""


class Dropout(NamedTuple):
    """One dropout."""

    name: str
    rate: float


class Marks:
    """The marks of one trace.

    Args:
        training: Whether the model is called with ``training=True``.
    """

    def __init__(self, *, training: bool = True) -> None:
        self.training = training
        self._marks: list[BatchNorm | Dropout] = []
        self.refusals: list[BngradError] = []
        """The errors of the trace, the first one first."""

    def clear(self) -> None:
        """Removes all marks: a trace begins, perhaps a second one."""
        self._marks.clear()

    @contextmanager
    def noting_refusals(self) -> Iterator[None]:
        """Records an error, because Keras and TensorFlow would replace it with one that includes a stack trace."""
        try:
            yield
        except BngradError as error:
            self.refusals.append(error)
            raise

    def add(self, mark: BatchNorm | Dropout) -> float:
        """Returns the number for the attribute of a new mark."""
        self._marks.append(mark)
        return float(_FIRST + len(self._marks) - 1)

    def dropout_rates(self) -> list[float]:
        """Returns the rates of the dropouts."""
        return [mark.rate for mark in self._marks if isinstance(mark, Dropout)]

    def resolve(self, model: ir.Model) -> None:
        """Converts the marked nodes of a converted model to batch norms and dropouts.

        In inference, dropouts are Identity, and a mark may be in the model any number of times.

        Raises:
            ModelError: A mark is not in the model of training exactly once.
        """
        nodes: dict[int, list[ir.Node]] = {number: [] for number in range(len(self._marks))}
        for node in model.graph.all_nodes():
            tag = node.attributes.get(_TAGS.get(node.op_type, ""))
            if tag is not None and tag.value >= _FIRST:
                nodes[int(tag.value) - _FIRST].append(node)
        for number, mark in enumerate(self._marks):
            if self.training:
                _require_one(mark.name, nodes[number], model)
            for node in nodes[number]:
                node.name = mark.name if nodes_named(model, mark.name) == 0 else f"{mark.name}_{number}"
                node.attributes.clear()
                if isinstance(mark, BatchNorm):
                    _make_batch_norm(node, mark, number)
                elif self.training:
                    _make_dropout(node, mark.rate)
                else:
                    node.op_type = "Identity"


def _require_one(name: str, nodes: list[ir.Node], model: ir.Model) -> None:
    if len(nodes) != 1:
        raise ModelError(
            f"{name!r} is {len(nodes)} nodes of the model that tf2onnx made; expected 1: a layer whose output "
            "does not matter, or one in a loop or a condition, cannot be trained"
        )
    if nodes[0].graph is not model.graph:
        raise ModelError(f"{name!r} is in the body of a loop or a condition; expected a layer outside of it")


def _make_batch_norm(node: ir.Node, mark: BatchNorm, number: int) -> None:
    node.metadata_props[CALL] = str(number)
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", mark.epsilon)
    node.attributes["momentum"] = ir.AttrFloat32("momentum", mark.momentum)
    if mark.training:
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        node.resize_outputs(3)


def nodes_named(model: ir.Model, name: str) -> int:
    """Returns the number of nodes of a model's main graph that have a name."""
    return sum(node.name == name for node in model.graph)


def _make_dropout(node: ir.Node, rate: float) -> None:
    """LeakyRelu(x) -> Dropout(x, rate, true)."""
    graph, prefix = node.graph, node.outputs[0].name
    assert graph is not None, "it is in the main graph"  # noqa: S101
    node.op_type = "Dropout"
    node.resize_inputs(3)
    constants = ir.tensor(rate, ir.DataType.FLOAT), ir.tensor(True, ir.DataType.BOOL)
    for index, (what, tensor) in enumerate(zip(("ratio", "training_mode"), constants, strict=True), 1):
        constant = ir.node("Constant", [], {"value": tensor}, name=f"{prefix}_{what}")
        constant.outputs[0].name = constant.name
        graph.insert_before(node, constant)
        node.replace_input_with(index, constant.outputs[0])


@contextmanager
def marking(marks: Marks) -> Iterator[None]:
    """Marks the batch norms and dropouts of Keras that are called within.

    Raises:
        InputError: A batch norm has a form that is not supported.
    """
    keras, tf, _ = import_exporter()
    backend = import_module("keras.src.backend")  # where layers look for dropout
    layer_type = keras.layers.BatchNormalization
    call, dropout = layer_type.call, backend.random.dropout

    def marked_call(layer: Any, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:  # noqa: ANN401
        with marks.noting_refusals():
            return _batch_norm(tf, keras, marks, layer, inputs, bool(training), mask)

    def marked_dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:  # noqa: ANN401, ARG001
        return _dropout(tf, marks, dropout, inputs, rate, noise_shape)

    layer_type.call, backend.random.dropout = marked_call, marked_dropout
    try:
        yield
    finally:
        layer_type.call, backend.random.dropout = call, dropout


def _batch_norm(tf: Any, keras: Any, marks: Marks, layer: Any, x: Any, training: bool, mask: Any) -> Any:  # noqa: ANN401
    """Calls a BatchNormalization layer, with its statistics as they are before the step."""
    training = training and layer.trainable
    if training and mask is not None:
        raise InputError(f"the layer {layer.path!r} gets a mask; expected a batch norm over all time steps")
    if training and getattr(layer, "renorm", False):
        raise InputError(f"the layer {layer.path!r} has renorm=True; expected renorm=False")
    x = tf.cast(x, keras.backend.result_type(x.dtype, "float32"))
    if x.dtype != tf.float32:
        raise InputError(f"the layer {layer.path!r} computes in {x.dtype.name}; expected float32")
    if training and not marks.training:
        return tf.cast(_by_the_batch(keras, layer, x), layer.compute_dtype)
    channels = layer.moving_mean.shape
    tag = marks.add(BatchNorm(layer.path, layer.epsilon, layer.momentum, training))

    def normalize(data: Any, data_format: str) -> Any:  # noqa: ANN401
        return tf.raw_ops.FusedBatchNormV3(
            x=data,
            scale=layer.gamma.value if layer.scale else tf.ones(channels),
            offset=layer.beta.value if layer.center else tf.zeros(channels),
            mean=layer.moving_mean.value,
            variance=layer.moving_variance.value,
            epsilon=tag,
            data_format=data_format,
            is_training=False,
        ).y

    return tf.cast(_in_rank_4(tf, normalize, x, layer.axis % x.shape.rank), layer.compute_dtype)


def _by_the_batch(keras: Any, layer: Any, x: Any) -> Any:  # noqa: ANN401
    """Builds a batch norm in primitives, which keeps using the statistics of the batch in an inference model."""
    axis = layer.axis % x.shape.rank
    mean, variance = keras.ops.moments(x, [dimension for dimension in range(x.shape.rank) if dimension != axis])
    scale, offset = layer.gamma if layer.scale else None, layer.beta if layer.center else None
    return keras.ops.batch_normalization(x, mean, variance, axis, offset, scale, layer.epsilon)


def _in_rank_4(tf: Any, normalize: Callable[[Any, str], Any], x: Any, axis: int) -> Any:  # noqa: ANN401
    """Applies a batch norm of rank 4 to data of any rank, in a layout that costs no transposition if possible."""
    rank, shape, channels = x.shape.rank, tf.shape(x), x.shape[axis]
    if rank == 4 and axis in (1, 3):
        return normalize(x, "NCHW" if axis == 1 else "NHWC")
    if axis == 1:
        y = normalize(tf.reshape(x, tf.stack([shape[0], channels, tf.reduce_prod(shape[2:]), 1])), "NCHW")
    elif axis == rank - 1:
        y = normalize(tf.reshape(x, [-1, channels, 1, 1]), "NCHW")
    else:
        order = [*(dimension for dimension in range(rank) if dimension != axis), axis]
        y = _in_rank_4(tf, normalize, tf.transpose(x, order), rank - 1)
        return tf.transpose(y, [order.index(dimension) for dimension in range(rank)])
    return tf.ensure_shape(tf.reshape(y, shape), x.shape)


def _dropout(tf: Any, marks: Marks, dropout: Callable[..., Any], x: Any, rate: float, noise_shape: Any) -> Any:  # noqa: ANN401
    """Builds a dropout; with a noise shape a product with the dropout of ones."""
    if not 0 < rate < 1:
        return dropout(x, rate, noise_shape)
    tag = marks.add(Dropout(f"dropout_{rate:g}", rate))
    if noise_shape is None:
        return tf.nn.leaky_relu(x, alpha=tag)
    ends = [
        None if size is None or size == full else size for size, full in zip(noise_shape, x.shape, strict=True)
    ]
    part = x[tuple(slice(end) for end in ends)]
    # Not ones_like, whose result TensorFlow may compute before the conversion.
    ones = tf.minimum(tf.maximum(part, 1.0), 1.0)
    return x * tf.nn.leaky_relu(ones, alpha=tag)
