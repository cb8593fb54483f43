"""Normalizations that are not batch norm, in primitives: their models, whose loss weights every output.

The data is one of `DATA`, in a layout of its own, of a batch that may be a symbol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Batch = int | str
    Norm = Callable[["Writer", "Data"], str]

BATCHES: tuple[Batch, ...] = (1, 2, "N")
_EPSILON = 1e-5
_OPSET = 23


class Data(NamedTuple):
    """A layout: the sizes after or around the batch, which is None, and which dimensions are what."""

    sizes: tuple[int | None, ...]
    batch: int
    channels: int

    @property
    def spatial(self) -> list[int]:
        """The dimensions that are neither."""
        return [axis for axis in range(len(self.sizes)) if axis not in (self.batch, self.channels)]

    @property
    def sample(self) -> list[int]:
        """All but the batch."""
        return [axis for axis in range(len(self.sizes)) if axis != self.batch]


DATA = {
    "NCHW": Data((None, 4, 3, 2), 0, 1),
    "NHWC": Data((None, 3, 2, 4), 0, 3),
    "NCT": Data((None, 4, 5), 0, 1),
    "NTC": Data((None, 5, 4), 0, 2),
    "TNC": Data((5, None, 4), 1, 2),
    "NC": Data((None, 4), 0, 1),
}


class Writer:
    """Writes the nodes of a model.

    Args:
        data: The layout of X.
        batch: Its batch.
        dtype: The type of X.
    """

    def __init__(self, data: Data, batch: Batch, dtype: int = TensorProto.FLOAT) -> None:
        self.sizes = [batch if size is None else size for size in data.sizes]
        self.dtype = dtype
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs = [helper.make_tensor_value_info("X", dtype, self.sizes)]

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Adds a node."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def number(self, value: float) -> str:
        """A constant of the type of X."""
        return self._constant(np.asarray(value, helper.tensor_dtype_to_np_dtype(self.dtype)))

    def integers(self, values: Iterable[int]) -> str:
        """A constant of axes or sizes."""
        return self._constant(np.asarray(list(values), np.int64))

    def reduce(self, kind: str, x: str, axes: Sequence[int]) -> str:
        """A reduction that keeps dimensions."""
        return self.op(kind, x, self.integers(axes), keepdims=1)

    def parameter(self, name: str, sizes: Sequence[int]) -> str:
        """An input that is differentiated."""
        self._inputs.append(helper.make_tensor_value_info(name, self.dtype, list(sizes)))
        return name

    def model(self, y: str) -> onnx.ModelProto:
        """The model with the loss: the sum of Y times weights."""
        weights = helper.make_tensor_value_info("weights", self.dtype, self.sizes)
        self.op("ReduceSum", self.op("Mul", y, "weights"), keepdims=0)
        self._nodes[-1].output[0] = "loss"
        outputs = [helper.make_tensor_value_info("loss", self.dtype, [])]
        graph = helper.make_graph(self._nodes, "norm", [*self._inputs, weights], outputs, self._constants)
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name


def model_of(norm: Norm, layout: str, batch: Batch, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A norm of X as a model whose weights are inputs.

    Args:
        norm: One of `NORMS`.
        layout: One of `DATA`.
        batch: A number, or a symbol.
        dtype: The type of X.
    """
    write = Writer(DATA[layout], batch, dtype)
    return inliner.inline_selected_functions(
        write.model(norm(write, DATA[layout])),
        [("", name) for name in _FUNCTIONS],
        inline_schema_functions=True,
    )


def batch_norm(write: Writer, data: Data) -> str:
    """A batch norm, unlike the others."""
    axes = [axis for axis in range(len(data.sizes)) if axis != data.channels]
    return _affine(write, data, _normalized(write, "X", axes))


def layer_norm(write: Writer, data: Data) -> str:
    """Over all dimensions of a sample."""
    return _affine(write, data, _normalized(write, "X", data.sample))


def layer_norm_by_moments(write: Writer, data: Data) -> str:
    """With E[x^2] - E[x]^2."""
    return _affine(write, data, _normalized(write, "X", data.sample, moments=True))


def channel_norm(write: Writer, data: Data) -> str:
    """A LayerNorm of the channels of each position."""
    return _affine(write, data, _normalized(write, "X", [data.channels]))


def channel_norm_of_transposed(write: Writer, data: Data) -> str:
    """The same with the channels first."""
    order = [data.channels, *(axis for axis in range(len(data.sizes)) if axis != data.channels)]
    y = _normalized(write, write.op("Transpose", "X", perm=order), [0])
    return _affine(write, data, write.op("Transpose", y, perm=[order.index(axis) for axis in range(len(order))]))


def instance_norm(write: Writer, data: Data) -> str:
    """Over the positions of each channel of a sample."""
    return _affine(write, data, _normalized(write, "X", data.spatial))


def instance_norm_as_batch_norm(write: Writer, data: Data) -> str:
    """As PyTorch has it: samples and channels are the channels."""
    merged = write.op("Reshape", "X", write.integers([1, -1, *[size for size in data.sizes[2:] if size]]))
    y = _normalized(write, merged, [0, *range(2, len(data.sizes))])
    return _affine(write, data, write.op("Reshape", y, write.op("Shape", "X")))


def group_norm(write: Writer, data: Data) -> str:
    """With two groups of channels."""
    split = [size or 0 for size in data.sizes]
    if data.channels == 1:
        shape, axes = [0, 2, -1], [2]
    else:
        shape, axes = [*split[:-1], 2, 2], [*data.spatial, len(split)]
    y = _normalized(write, write.op("Reshape", "X", write.integers(shape)), axes)
    return _affine(write, data, write.op("Reshape", y, write.op("Shape", "X")))


def ghost_batch_norm(write: Writer, data: Data) -> str:
    """A batch norm of each half of a batch."""
    sizes = [size for size in data.sizes if size]
    halves = write.op("Reshape", "X", write.integers([2, -1, *sizes]))
    axes = [axis for axis in range(1, len(sizes) + 2) if axis != data.channels + 1]
    return _affine(write, data, write.op("Reshape", _normalized(write, halves, axes), write.op("Shape", "X")))


def all_axes(write: Writer, data: Data) -> str:
    """One mean and variance for all."""
    return _affine(write, data, _normalized(write, "X", range(len(data.sizes))))


def rms_norm(write: Writer, data: Data) -> str:
    """Without a mean."""
    return _affine(write, data, _by_rms(write, "X", [data.channels]))


def filter_response_norm(write: Writer, data: Data) -> str:
    """Without a mean, over positions."""
    return _affine(write, data, _by_rms(write, "X", data.spatial))


def rms_of_batch(write: Writer, data: Data) -> str:
    """Over the batch, without a mean."""
    return _affine(write, data, _by_rms(write, "X", [axis for axis in data.sample if axis != data.channels] + [0]))


def centered_by_batch(write: Writer, data: Data) -> str:
    """Over the batch, without a variance."""
    mean = write.reduce("ReduceMean", "X", [data.batch, *data.spatial])
    return _affine(write, data, write.op("Sub", "X", mean))


def epsilon_outside(write: Writer, data: Data) -> str:
    """Over the batch, (x - mean) / (std + epsilon), as MeanVarianceNormalization has it."""
    centered, variance = _moments(write, "X", [data.batch, *data.spatial])
    deviation = write.op("Add", write.op("Sqrt", variance), write.number(_EPSILON))
    return _affine(write, data, write.op("Div", centered, deviation))


def scaled_by_deviation(write: Writer, data: Data) -> str:
    """Over the batch, x / std."""
    _, variance = _moments(write, "X", [data.batch, *data.spatial])
    root = write.op("Sqrt", write.op("Add", variance, write.number(_EPSILON)))
    return _affine(write, data, write.op("Div", "X", root))


def l2_norm(write: Writer, data: Data) -> str:
    """Channels of length 1."""
    return write.op("Div", "X", _length(write, "X", [data.channels]))


def l2_norm_of_batch(write: Writer, data: Data) -> str:
    """Columns of length 1."""
    return write.op("Div", "X", _length(write, "X", [data.batch]))


def cosine_similarity(write: Writer, data: Data) -> str:
    """With another vector."""
    other = write.parameter("other", write.sizes)
    product = write.reduce("ReduceSum", write.op("Mul", "X", other), [data.channels])
    lengths = write.op("Mul", _length(write, "X", [data.channels]), _length(write, other, [data.channels]))
    return write.op("Expand", write.op("Div", product, lengths), write.op("Shape", "X"))


def response_norm(write: Writer, data: Data) -> str:
    """A GlobalResponseNorm: lengths of channels by their mean."""
    length = _length(write, "X", data.spatial)
    mean = write.reduce("ReduceMean", length, [data.channels])
    share = write.op("Div", length, write.op("Add", mean, write.number(1e-6)))
    return write.op("Add", _affine(write, data, write.op("Mul", "X", share)), "X")


def softmax(write: Writer, data: Data) -> str:
    """In exponentials and sums."""
    return _softmax(write, data.channels)


def softmax_of_batch(write: Writer, data: Data) -> str:
    """Over the batch."""
    return _softmax(write, data.batch)


def standardized_sample(write: Writer, data: Data) -> str:
    """Each sample minus its mean by its standard deviation, without parameters."""
    return _normalized(write, "X", data.sample)


def standardized_weight(write: Writer, data: Data) -> str:
    """Weights [out, in] without mean and with variance 1 in each row."""
    weight = _normalized(write, write.parameter("W", [4, 4]), [1])
    last = [*(axis for axis in range(len(data.sizes)) if axis != data.channels), data.channels]
    y = write.op("MatMul", write.op("Transpose", "X", perm=last), write.op("Transpose", weight, perm=[1, 0]))
    return write.op("Transpose", y, perm=[last.index(axis) for axis in range(len(last))])


def of_another(write: Writer, data: Data) -> str:
    """The mean and the variance of other data of the same shape."""
    axes = [data.batch, *data.spatial]
    _, variance = _moments(write, write.parameter("other", write.sizes), axes)
    centered = write.op("Sub", "X", write.reduce("ReduceMean", "X", axes))
    root = write.op("Sqrt", write.op("Add", variance, write.number(_EPSILON)))
    return _affine(write, data, write.op("Div", centered, root))


def layer_norm_function(write: Writer, data: Data) -> str:
    """ONNX's definition of LayerNormalization."""
    scale, bias = (write.parameter(name, [4]) for name in ("scale", "bias"))
    return write.op("LayerNormalization", "X", scale, bias, axis=len(data.sizes) - 1)


def group_norm_function(write: Writer, data: Data) -> str:  # noqa: ARG001
    """ONNX's definition of GroupNormalization."""
    scale, bias = (write.parameter(name, [4]) for name in ("scale", "bias"))
    return write.op("GroupNormalization", "X", scale, bias, num_groups=2)


def rms_norm_function(write: Writer, data: Data) -> str:
    """ONNX's definition of RMSNormalization."""
    return write.op("RMSNormalization", "X", write.parameter("scale", [4]), axis=len(data.sizes) - 1)


def mean_variance_norm_function(write: Writer, data: Data) -> str:
    """ONNX's definition of MeanVarianceNormalization, over the batch: its epsilon is outside the root."""
    return write.op("MeanVarianceNormalization", "X", axes=[data.batch, *data.spatial])


def softmax_function(write: Writer, data: Data) -> str:
    """ONNX's definition of Softmax."""
    return write.op("Softmax", "X", axis=data.channels)


_FUNCTIONS = (
    *("LayerNormalization", "GroupNormalization", "RMSNormalization", "MeanVarianceNormalization"),
    "Softmax",
)
_CHANNELS_SECOND, _CHANNELS_LAST = ("NCHW", "NCT"), ("NHWC", "NTC", "TNC")
_BATCH_FIRST = ("NCHW", "NHWC", "NTC", "NC")

NORMS: dict[Norm, tuple[str, ...]] = {
    layer_norm: ("NCHW", "NHWC", "NTC", "NC"),
    layer_norm_by_moments: ("NCHW", "NHWC"),
    channel_norm: ("NCHW", "NHWC", "TNC", "NC"),
    channel_norm_of_transposed: ("NCHW", "NHWC", "NTC", "NC"),
    instance_norm: ("NCHW", "NHWC", "NCT", "NTC"),
    instance_norm_as_batch_norm: _CHANNELS_SECOND,
    group_norm: ("NCHW", "NHWC", "NCT", "NTC"),
    ghost_batch_norm: ("NCHW", "NHWC", "NC"),
    all_axes: ("NCHW", "NHWC", "TNC", "NC"),
    rms_norm: ("NCHW", "NHWC", "TNC", "NC"),
    filter_response_norm: ("NCHW", "NHWC"),
    rms_of_batch: _BATCH_FIRST,
    centered_by_batch: _BATCH_FIRST,
    epsilon_outside: _BATCH_FIRST,
    scaled_by_deviation: _BATCH_FIRST,
    l2_norm: ("NCHW", "NHWC", "TNC", "NC"),
    l2_norm_of_batch: ("NCHW", "NC"),
    cosine_similarity: ("NCHW", "NTC", "NC"),
    response_norm: ("NCHW", "NHWC"),
    softmax: ("NCHW", "TNC", "NC"),
    softmax_of_batch: ("NCHW", "NC"),
    standardized_sample: ("NCHW", "NHWC", "NTC"),
    standardized_weight: ("NTC", "NC"),
    of_another: _BATCH_FIRST,
    layer_norm_function: ("NHWC", "NTC", "TNC", "NC"),
    group_norm_function: _CHANNELS_SECOND,
    rms_norm_function: ("NHWC", "NTC", "TNC", "NC"),
    mean_variance_norm_function: _BATCH_FIRST,
    softmax_function: ("NCHW", "TNC", "NC"),
}
"""Each norm, with the layouts in which it is not a batch norm.

An instance norm of [T, N, C] over T is missing: it is the batch norm of [N, ...] whose batch has T elements.
"""


def _moments(write: Writer, x: str, axes: Sequence[int]) -> tuple[str, str]:
    centered = write.op("Sub", x, write.reduce("ReduceMean", x, axes))
    return centered, write.reduce("ReduceMean", write.op("Mul", centered, centered), axes)


def _normalized(write: Writer, x: str, axes: Sequence[int], *, moments: bool = False) -> str:
    centered, variance = _moments(write, x, axes)
    if moments:
        mean = write.reduce("ReduceMean", x, axes)
        squares = write.reduce("ReduceMean", write.op("Mul", x, x), axes)
        variance = write.op("Sub", squares, write.op("Mul", mean, mean))
    return write.op("Div", centered, write.op("Sqrt", write.op("Add", variance, write.number(_EPSILON))))


def _by_rms(write: Writer, x: str, axes: Sequence[int]) -> str:
    squares = write.reduce("ReduceMean", write.op("Mul", x, x), axes)
    return write.op("Div", x, write.op("Sqrt", write.op("Add", squares, write.number(_EPSILON))))


def _length(write: Writer, x: str, axes: Sequence[int]) -> str:
    squares = write.reduce("ReduceSum", write.op("Mul", x, x), axes)
    return write.op("Sqrt", write.op("Add", squares, write.number(_EPSILON)))


def _softmax(write: Writer, axis: int) -> str:
    shifted = write.op("Sub", "X", write.reduce("ReduceMax", "X", [axis]))
    powers = write.op("Exp", shifted)
    return write.op("Div", powers, write.reduce("ReduceSum", powers, [axis]))


def _affine(write: Writer, data: Data, x: str) -> str:
    sizes = [4 if axis == data.channels else 1 for axis in range(len(data.sizes))]
    scaled = write.op("Mul", x, write.parameter("scale", sizes))
    return write.op("Add", scaled, write.parameter("bias", sizes))
