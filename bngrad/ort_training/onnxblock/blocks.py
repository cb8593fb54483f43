"""Blocks that append one node, one constant or one input each to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.ort_training.onnxblock import _graph_utils
from bngrad.ort_training.onnxblock.block import Block

if TYPE_CHECKING:
    from collections.abc import Sequence


class _UnaryOp(Block):
    """A node with one input and one output, of ONNX's own domain."""

    _op_type: str

    def build(self, input_name: str) -> str:
        """Appends the node."""
        return _graph_utils.append_node(self.base, self._op_type, [input_name])


class _BinaryOp(Block):
    """A node with two inputs and one output, of ONNX's own domain."""

    _op_type: str

    def build(self, input_name1: str, input_name2: str) -> str:
        """Appends the node."""
        return _graph_utils.append_node(self.base, self._op_type, [input_name1, input_name2])


class _Reduction(Block):
    """A node that reduces all elements to one.

    Args:
        keepdims: Whether the result keeps the rank, with sizes of 1.
    """

    _op_type: str

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = int(keepdims)

    def build(self, input_name: str) -> str:
        """Appends the node."""
        return _graph_utils.append_node(self.base, self._op_type, [input_name], keepdims=self._keepdims)


class Add(_BinaryOp):
    """x + y."""

    _op_type = "Add"


class Sub(_BinaryOp):
    """x - y."""

    _op_type = "Sub"


class Mul(_BinaryOp):
    """x y."""

    _op_type = "Mul"


class Div(_BinaryOp):
    """x / y."""

    _op_type = "Div"


class ReduceMean(_Reduction):
    """The mean of all elements."""

    _op_type = "ReduceMean"


class ReduceSum(_Reduction):
    """The sum of all elements."""

    _op_type = "ReduceSum"


class Sigmoid(_UnaryOp):
    """1 / (1 + exp(-x))."""

    _op_type = "Sigmoid"


class Log(_UnaryOp):
    """The natural logarithm."""

    _op_type = "Log"


class Neg(_UnaryOp):
    """-x."""

    _op_type = "Neg"


class Abs(_UnaryOp):
    """|x|."""

    _op_type = "Abs"


class Pow(Block):
    """x to the power of a constant.

    Args:
        exponent: The constant.
    """

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        """Appends the exponent and the node."""
        exponent = _graph_utils.append_initializer(self.base, "pow_exponent", _float(self._exponent))
        return _graph_utils.append_node(self.base, "Pow", [pow_input_name, exponent])


class Constant(Block):
    """A float constant of shape [1].

    Args:
        value_float: Its value.
    """

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        """Appends the constant, an initializer."""
        return _graph_utils.append_initializer(self.base, "initializer", _float(self._value))


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        """Appends the node."""
        return _graph_utils.append_node(self.base, "SequenceConstruct", sequence_input_names)


class ReduceAllL2(Block):
    """The L2 norm of all elements of several float tensors, of shape [1].

    The op is ``com.microsoft.ReduceAllL2``, which stock ONNX Runtime does not have.
    """

    def build(self, *reduce_node_input_names: str) -> str:
        """Appends the node."""
        output = _graph_utils.append_node(self.base, "ReduceAllL2", reduce_node_input_names, domain=MICROSOFT)
        self.base.graph.value_info.append(_graph_utils.float_info(output, [1]))
        return output


class Clip(Block):
    """x between two bounds.

    Args:
        clip_min: The lower bound, if there is one.
        clip_max: The upper bound, if there is one.
    """

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = {"clip_min": clip_min, "clip_max": clip_max}

    def build(self, clip_input_name: str) -> str:
        """Appends the bounds and the node."""
        bounds = [
            # ONNX's op takes scalars, of shape [].
            "" if bound is None else _graph_utils.append_initializer(self.base, token, _float(bound).reshape(()))
            for token, bound in self._bounds.items()
        ]
        return _graph_utils.append_node(self.base, "Clip", [clip_input_name, *bounds])


class PassThrough(Block):
    """Returns what it is given, and appends nothing."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        """Returns the names."""
        return input_names


class InputLike(Block):
    """A new graph input with the type and shape of another value.

    Args:
        like: The name of a graph input, a graph output or a computed value.
    """

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Appends the input.

        Args:
            input_name: Its name; by default a new one.

        Raises:
            OrtTrainingLookupError: There is no value with the name ``like``, or its type is unknown.
        """
        info = _graph_utils.value_info(self.base, self._like)
        info.name = input_name or _graph_utils.generate_graph_name("input")
        self.base.graph.input.append(info)
        return str(info.name)


class LabelEncoder(Block):
    """Maps keys to values, with a default for values that are not keys: ``ai.onnx.ml.LabelEncoder``.

    Args:
        default_float: The default of float values.
        default_int64: The default of integer values.
        default_string: The default of string values.
        keys_floats: The keys, if they are floats.
        keys_int64s: The keys, if they are integers.
        keys_strings: The keys, if they are strings.
        values_floats: The values, if they are floats.
        values_int64s: The values, if they are integers.
        values_strings: The values, if they are strings.
    """

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        lists = {
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self._attributes: dict[str, Any] = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
        } | {name: list(values) for name, values in lists.items() if values is not None}

    def build(self, label_encoder_input_name: str) -> str:
        """Appends the node."""
        return _graph_utils.append_node(
            self.base,
            "LabelEncoder",
            [label_encoder_input_name],
            domain="ai.onnx.ml",
            output="label_encoder.output",
            **self._attributes,
        )


class Cast(Block):
    """x as another type.

    Args:
        to: An `onnx.TensorProto.DataType`.
    """

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: str) -> str:
        """Appends the node."""
        return _graph_utils.append_node(self.base, "Cast", [cast_input_name], output="cast.output", to=self._to)


class Linear(Block):
    """alpha x W + beta b, with new initializers W [in, out] and b [out] from the standard normal distribution.

    They are drawn by NumPy's global generator: `numpy.random.seed` repeats them.

    Args:
        in_features: The features of x, of shape [N, in].
        out_features: Those of the result, of shape [N, out].
        bias: Whether there is b.
        alpha: The factor of the product.
        beta: The factor of b.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._shapes: dict[str, tuple[int, ...]] = {"linear.weight": (in_features, out_features)}
        if bias:
            self._shapes["linear.bias"] = (out_features,)
        self._factors: dict[str, Any] = {"alpha": alpha, "beta": beta}

    def build(self, linear_input_name: str) -> str:
        """Appends the initializers and the node."""
        parameters = [
            _graph_utils.append_initializer(self.base, token, np.random.randn(*shape).astype(np.float32))  # noqa: NPY002
            for token, shape in self._shapes.items()
        ]
        return _graph_utils.append_node(
            self.base,
            "Gemm",
            [linear_input_name, *parameters],
            output="linear.output",
            name="linear",
            **self._factors,
        )


def _float(value: float) -> np.typing.NDArray[np.float32]:
    return np.array([value], np.float32)
