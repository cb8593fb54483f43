"""A forward graph that is being drawn: every value is computed as it is added, to choose the next node."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from gradient_fuzz.interpreter import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fuzz.draw import Draw

LARGEST = 30.0
"""The largest element: larger ones make differences inexact."""
MOST_ELEMENTS = 160


class NotDrawableError(Exception):
    """A drawn node is not usable: it is invalid, or its values are not finite, too large or too many."""


@dataclass(eq=False)
class Value:
    """A value of the graph."""

    name: str
    array: np.ndarray
    """Its value for the feeds, floats in float64."""
    type: int
    """ONNX's number of its element type."""
    moving: bool
    """True if it depends on an input or initializer that is a float."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim


class Sketch:
    """A graph that entries add nodes to."""

    def __init__(self, draw: Draw, opset: int, element: int) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw.getrandbits(64))
        self.opset = opset
        self.element = element
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[Value] = []
        self.initializers: list[Value] = []
        self.values: list[Value] = []
        """Floats of the graph's type that nodes may read."""
        self.singular = False
        """True if nodes may have infinite derivatives at their inputs."""
        self.empty = False
        """True if a dimension may be 0."""
        self._count = 0
        self.frozen: list[str] = []
        self.training: list[str] = []

    # ---- values ----

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def dim(self, least: int = 1, most: int = 4) -> int:
        """A size; sometimes 1, and 0 in graphs that may have empty tensors."""
        if self.empty and least <= 1 and self.draw.chance(0.25):
            return 0
        return max(least, 1) if self.draw.chance(0.15) else self.draw.randint(max(least, 1), most)

    def dims(self, rank: int) -> tuple[int, ...]:
        shape = tuple(self.dim(1, 4 if rank < 4 else 3) for _ in range(rank))
        return shape if prod(shape) <= 60 else tuple(min(size, 2) for size in shape)

    def numbers(self, shape: Sequence[int], *, positive: bool = False) -> np.ndarray:
        """Floats that the graph's type has exactly, none of them close to 0."""
        array = self.rng.standard_normal(tuple(shape))
        # None is near the kink at 0, and no two are equal, which would be a tie of a maximum.
        array = np.where(np.abs(array) < 0.05, array + 0.25, array)
        array = np.where(np.abs(array) > 3, array / 2, array)
        if positive:
            array = np.abs(array) + 0.25
        return self.round(array)

    def round(self, array: np.ndarray) -> np.ndarray:
        return np.asarray(array).astype(numpy_type(self.element)).astype(np.float64)

    def leaf(self, shape: Sequence[int], *, positive: bool = False, array: np.ndarray | None = None) -> Value:
        """A new float: an input, an initializer or a constant."""
        array = self.numbers(shape, positive=positive) if array is None else self.round(array)
        kind = self.draw.random()
        if kind < 0.1:
            return self.constant(array, self.element)
        value = Value(self.fresh("x" if kind < 0.6 else "w"), array, self.element, moving=True)
        (self.inputs if kind < 0.6 else self.initializers).append(value)
        self.values.append(value)
        return value

    def constant(self, array: object, element: int = onnx.TensorProto.INT64) -> Value:
        """A value without a gradient: an initializer or the output of a Constant."""
        array = np.asarray(array)
        if element in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            array = array.astype(numpy_type(element))
        value = Value(self.fresh("c"), array, element, moving=False)
        if self.draw.chance(0.5):
            tensor = tensor_of(value)
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor, name=f"n_{value.name}"))
        else:
            self.initializers.append(value)
        return value

    def ints(self, *numbers: int) -> Value:
        return self.constant(np.asarray(numbers, np.int64))

    def scalar(self, number: float) -> Value:
        return self.constant(self.round(np.asarray(float(number))), self.element)

    # ---- nodes ----

    def emit(
        self,
        op_type: str,
        inputs: Iterable[Value | None],
        outputs: int | Sequence[bool] = 1,
        *,
        domain: str = "",
        types: Sequence[int] | None = None,
        name: str = "",
        captured: Sequence[Value] = (),
        function: Callable[..., Sequence[np.ndarray]] | None = None,
        **attributes: object,
    ) -> list[Value]:
        """Adds a node.

        Args:
            op_type: The op.
            inputs: The inputs; None where one is left out, and removed at the end.
            outputs: The number of outputs, or for each whether it has a name.
            domain: The domain of the op.
            types: The element types of the outputs; by default the graph's type for floats.
            name: The name of the node; by default from the op.
            captured: The values that its bodies read.
            function: A function that computes the outputs from the node and its inputs, for a node with bodies.
            attributes: The attributes; those that are None are left out.

        Raises:
            NotDrawableError: It cannot be run, or its outputs are not usable.
        """
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        self._require_types(domain, op_type, operands)
        named = [True] * outputs if isinstance(outputs, int) else list(outputs)
        node = helper.make_node(
            op_type,
            [value.name if value is not None else "" for value in operands],
            [self.fresh("v") if here else "" for here in named],
            name=name or self.fresh(f"{op_type}_"),
            domain=domain,
            **{key: value for key, value in attributes.items() if value is not None},
        )
        try:
            inputs = [value.array if value is not None else None for value in operands]
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if function is None:
                    arrays = compiled(node, self.opset, self.frozen, self.training)(*inputs)
                else:
                    arrays = function(node, inputs)
        except Exception as error:
            raise NotDrawableError(f"{op_type}: {error}") from error
        arrays = [np.asarray(array) for array in arrays]
        values = []
        for index, (output, array) in enumerate(zip(node.output, arrays, strict=False)):
            if array.size > MOST_ELEMENTS or (array.dtype.kind == "f" and not self._usable(array)):
                raise NotDrawableError(f"{op_type}: {array.shape}")
            element = types[index] if types else self._type_of(array)
            moving = any(value is not None and value.moving for value in (*operands, *captured))
            if output:
                values.append(Value(output, array, element, moving and array.dtype.kind == "f"))
        self.nodes.append(node)
        self.values += [value for value in values if value.type == self.element and value.array.dtype.kind == "f"]
        return values

    def one(self, op_type: str, *inputs: Value | None, **more: object) -> Value:
        """The first output of a new node."""
        return self.emit(op_type, inputs, **more)[0]

    def _require_types(self, domain: str, op_type: str, operands: Sequence[Value | None]) -> None:
        allowed = _types(domain, op_type, self.opset)
        for index, value in enumerate(operands):
            if value is not None and allowed and value.type not in allowed[min(index, len(allowed) - 1)]:
                raise NotDrawableError(f"{op_type}: input {index} is of type {value.type}")

    def _usable(self, array: np.ndarray) -> bool:
        return bool(np.isfinite(array).all()) and float(np.max(np.abs(array), initial=0.0)) <= LARGEST

    def _type_of(self, array: np.ndarray) -> int:
        if array.dtype.kind == "f":
            return self.element
        return helper.np_dtype_to_tensor_dtype(array.dtype)

    # ---- what nodes read ----

    def some(self, accept: Callable[[Value], bool] = lambda _: True) -> Value | None:
        """An existing value, the last ones more often."""
        fitting = [value for value in self.values if accept(value)]
        if not fitting:
            return None
        return fitting[-1] if self.draw.chance(0.4) else self.draw.choice(fitting)

    def any(self, least_rank: int = 0, most_rank: int = 4) -> Value:
        """A value of a rank between two: an existing or a new one."""
        value = None
        if self.draw.chance(0.75):
            value = self.some(lambda value: least_rank <= value.rank <= most_rank)
        return value or self.leaf(self.dims(self.draw.randint(max(least_rank, 1), max(most_rank, 1))))

    def of_shape(self, shape: Sequence[int], *, positive: bool = False, computed: float = 0.5) -> Value:
        """A value of a shape: an existing one, one computed from existing ones, or a new one."""
        shape = tuple(shape)
        value = None
        if self.draw.chance(computed):
            value = self.some(lambda value: value.shape == shape) if self.draw.chance(0.6) else None
            value = value or self._made_to_shape(shape)
        if value is None:
            return self.leaf(shape, positive=positive)
        return self.positive(value) if positive else value

    def _made_to_shape(self, shape: tuple[int, ...]) -> Value | None:
        value = self.some(lambda value: value.array.size == prod(shape) and value.shape != shape)
        try:
            if value is not None and value.array.size and self.draw.chance(0.5):
                return self.one("Reshape", value, self.ints(*shape))
            if len(shape) <= 1:
                size = shape[0] if shape else 0
                value = self.some(lambda value: value.array.size > 0 and (not shape or size in value.shape))
                if value is not None:
                    kept = value.shape.index(size) if shape else None
                    axes = [axis for axis in range(value.rank) if axis != kept]
                    if axes:
                        return self.reduce(self.draw.choice(["ReduceMean", "ReduceMax"]), value, axes, keepdims=0)
                    return value if shape else None
        except NotDrawableError:
            return None
        return None

    def reduce(self, op_type: str, value: Value, axes: Sequence[int], *, keepdims: int = 1) -> Value:
        """A reduction over axes, as an input or an attribute depending on the opset."""
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.one(op_type, value, self.ints(*axes), keepdims=keepdims)
        return self.one(op_type, value, axes=list(axes), keepdims=keepdims)

    def positive(self, value: Value) -> Value:
        """A value of the same shape, above 0.05."""
        if value.array.size == 0 or float(value.array.min()) > 0.05:
            return value
        kind = self.draw.randrange(4)
        if kind == 0 and float(value.array.max()) < 3 and float(value.array.min()) > -2.5:
            return self.one("Exp", value)
        if kind == 1 and float(value.array.min()) > -2.5:
            return self.one("Softplus", value)
        if kind == 2 and float(value.array.min()) > -2.5:
            return self.one("Sigmoid", value)
        return self.one("Add", self.one("Mul", value, value), self.scalar(0.5))

    def broadcast_with(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that goes with another one."""
        result = [size if self.draw.chance(0.7) else 1 for size in shape]
        result = [self.dim() if size == 1 and self.draw.chance(0.4) else size for size in result]
        result = [
            size if size == 1 or other in (1, size) else other for size, other in zip(result, shape, strict=True)
        ]
        if self.draw.chance(0.3):
            result = result[self.draw.randint(0, len(result)) :]
        elif self.draw.chance(0.15) and len(result) < 4:
            result = [self.dim(1, 3), *result]
        return tuple(result)

    def broadcast_to(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that is broadcast to another one."""
        result = [size if self.draw.chance(0.7) else 1 for size in shape]
        return tuple(result[self.draw.randint(0, len(result)) :] if self.draw.chance(0.4) else result)

    def axis(self, rank: int) -> int:
        """An axis, counted from the first or from the last."""
        return self.draw.randrange(-rank, rank)

    def shape_of(self, numbers: Sequence[int]) -> Value:
        """A shape, axes or the like: most often a constant, sometimes computed from one."""
        value = self.ints(*numbers)
        return self.one("Identity", value) if self.draw.chance(0.1) else value

    def maybe(self, value: object, probability: float = 0.5) -> object | None:
        """A value, or None to use the default."""
        return value if self.draw.chance(probability) else None


@cache
def numpy_type(element: int) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(element)


@cache
def _types(domain: str, op_type: str, opset: int) -> list[set[int]]:
    """The element types that each input of an op may have; empty for an op that ONNX lacks."""
    if domain:
        return []
    schema = onnx.defs.get_schema(op_type, opset, domain)
    if schema.deprecated:
        raise NotDrawableError(f"{op_type} is deprecated in opset {opset}")
    return [{_NUMBERS[name] for name in parameter.types if name in _NUMBERS} for parameter in schema.inputs]


_NUMBERS = {
    f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items() if name != "UNDEFINED"
}


def tensor_of(value: Value) -> onnx.TensorProto:
    """A value as an initializer of its type."""
    return onnx.numpy_helper.from_array(np.asarray(value.array).astype(numpy_type(value.type)), value.name)


def first_opsets() -> dict[tuple[str, str], int]:
    """The opset that introduced each op of ONNX, by domain and name."""
    result: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        result[key] = min(schema.since_version, result.get(key, schema.since_version))
    return result
