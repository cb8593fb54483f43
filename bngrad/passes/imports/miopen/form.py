"""Reads and checks nodes that stand for calls of MIOpen's batch-norm functions.

A node has the name of the C function, in any domain. Its inputs are the pointers that the function reads and its
outputs those that it writes, both in the order of the C function; its attributes are the other arguments. Tensor
descriptors are omitted because the values of a graph have types and shapes. A function and its ``_V2`` differ only
in descriptors and therefore have the same form.

MIOpen checks the ranks of descriptors but hardly any sizes, and reads past the end of a short buffer. Here every
known size must be right.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import known_rank
from bngrad.opset.known_shapes import may_be_equal, shape_text
from bngrad.opset.parameter_shape import Mode, batch_norm_mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Kind = Literal["data", "parameter"]
"""The kind of an input or output: "data" has the shape of x, "parameter" that of scale."""

LAYOUTS = ("NCHW", "NHWC", "NCDHW", "NDHWC")

_Sizes = tuple[int | None, ...]


class Form(NamedTuple):
    """The signature of a function."""

    inputs: Mapping[str, Kind]
    required: tuple[str, ...]
    """The inputs that must be present."""
    outputs: Mapping[str, Kind]
    numbers: tuple[str, ...]
    """The numeric attributes."""
    choices: tuple[str, ...] = ("bn_mode", "layout")
    """The enumerations among the attributes, each a string or an enumerator's value."""


class MiopenNode:
    """Gives access to a node by the names of its form.

    Args:
        node: The node.
        form: The form that it should have.
    """

    def __init__(self, node: ir.Node, form: Form) -> None:
        self.node = node
        self.form = form

    # ---- reading; except `input`, `output` and `number`, only after `reasons` found nothing ----

    def input(self, name: str) -> ir.Value | None:
        """Returns an input; None if it is omitted."""
        index = list(self.form.inputs).index(name)
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def present(self, name: str) -> ir.Value:
        """Returns an input that must be present."""
        value = self.input(name)
        assert value is not None, f"{name} is required"  # noqa: S101 - `reasons` has checked it
        return value

    def has(self, *names: str) -> bool:
        """Whether all these inputs are present."""
        return all(self.input(name) is not None for name in names)

    def output(self, name: str) -> ir.Value | None:
        """Returns an output; None if it is omitted."""
        index = list(self.form.outputs).index(name)
        value = self.node.outputs[index] if index < len(self.node.outputs) else None
        return value if value is not None and value.name else None

    def used(self, name: str) -> bool:
        """Whether an output is an input of a node or a graph output."""
        value = self.output(name)
        return value is not None and (bool(value.uses()) or value.is_graph_output())

    def number(self, name: str, default: float = 0.0) -> float:
        """Returns a numeric attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else float(attribute.value)

    @property
    def mode(self) -> Mode:
        """The batch-norm mode: spatial or per_activation."""
        return batch_norm_mode(self.node.attributes["bn_mode"].value)

    @property
    def channels_last(self) -> bool:
        """Whether the channels are the last dimension, and not dimension 1."""
        return self._layout is not None and self._layout.endswith("C")

    @property
    def rank(self) -> int | None:
        """The rank of x; None if it is unknown."""
        return len(self._layout) if self._layout else known_rank(self._values("data"))

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduction axes; if the rank is unknown, those of x reshaped to [N, C, S]."""
        if self.mode == "per_activation":
            return (0,)
        rank = self.rank or 3
        channels = rank - 1 if self.channels_last else 1
        return tuple(d for d in range(rank) if d != channels)

    @property
    def _layout(self) -> str | None:
        attribute = self.node.attributes.get("layout")
        return None if attribute is None else str(attribute.value)

    def _values(self, kind: Kind) -> list[ir.Value]:
        inputs = [self.input(name) for name, its_kind in self.form.inputs.items() if its_kind == kind]
        outputs = [self.output(name) for name, its_kind in self.form.outputs.items() if its_kind == kind]
        return [value for value in (*inputs, *outputs) if value is not None]

    # ---- reasons for a refusal ----

    def reasons(self) -> Iterator[str]:
        """Yields the ways in which the node differs from its form; each check relies on those before it."""
        yield from self._count_reasons()
        yield from self._attribute_reasons()
        yield from self._type_reasons()
        yield from self._shape_reasons()

    def blend_reasons(self, **old_inputs: str) -> Iterator[str]:
        """Yields each weight that is not 0 although its old contents are missing, for ``weight=input``."""
        for beta, old in old_inputs.items():
            if self.number(beta) != 0 and not self.has(old):
                yield f"it has {beta} {self.number(beta):g} and no input {old}; expected old contents to blend in"

    def missing_reasons(self, *names: str) -> Iterator[str]:
        """Yields which of these required attributes are missing."""
        for name in names:
            if name not in self.node.attributes:
                yield f"it has no attribute {name}; expected one, because MIOpen has no default"

    def unknown_type_reasons(self) -> Iterator[str]:
        """Yields a reason if the type of x, which the rewrite needs, is unknown."""
        if self.present("x").dtype is None:
            yield (
                f"the type of its input {self.present('x').name!r} is unknown; add type information to the model, "
                "or inline the function that contains the node"
            )

    def _count_reasons(self) -> Iterator[str]:
        for what, values, names in (
            ("inputs", self.node.inputs, self.form.inputs),
            ("outputs", self.node.outputs, self.form.outputs),
        ):
            if len(values) > len(names):
                yield f"it has {len(values)} {what}; expected at most {len(names)}: {', '.join(names)}"
        for name in self.form.required:
            if not self.has(name):
                yield f"it has no input {name}; expected at least {', '.join(self.form.required)}"

    def _attribute_reasons(self) -> Iterator[str]:
        known = (*self.form.choices, *self.form.numbers)
        kinds = ir.AttributeType
        for name, attribute in self.node.attributes.items():
            if name not in known:
                yield f"it has an attribute {name}; expected only {', '.join(known)}"
            if attribute.is_ref():
                yield f"its {name} refers to a function attribute; expected a value: inline the function"
            expected = (kinds.FLOAT, kinds.INT) if name in self.form.numbers else (kinds.STRING, kinds.INT)
            if attribute.type not in expected:
                names = " or ".join(kind.name.lower() for kind in expected)
                yield f"its {name} is of type {attribute.type.name.lower()}; expected {names}"
            if name in self.form.numbers and not math.isfinite(attribute.value):
                yield f"it has {name} {attribute.value}; expected a finite number"
        yield from self.missing_reasons("bn_mode")
        try:
            batch_norm_mode(self.node.attributes["bn_mode"].value)
        except InputError as error:
            yield f"its bn_{error}"
        if self._layout not in (None, *LAYOUTS):
            yield f"it has layout {self._layout}; expected one of {', '.join(LAYOUTS)}"
        if self.number("epsilon") < 0:
            yield f"it has epsilon {self.number('epsilon'):g}; expected 0 or more"

    def _type_reasons(self) -> Iterator[str]:
        data = self._values("data")
        for value in data:
            if reason := type_refusal([value], []):
                yield _of_output(reason, value, self.node)
        of_data = [self.input(name) for name, kind in self.form.inputs.items() if kind == "data"]
        types = [value.dtype for value in of_data if value is not None]
        for value in self._values("parameter"):
            if value.dtype is not None and None not in types and value.dtype not in (ir.DataType.FLOAT, *types):
                expected = " or ".join(dict.fromkeys(("float", *(t.name.lower() for t in types if t))))
                reason = f"its input {value.name!r} is {value.dtype.name.lower()}; expected {expected}"
                yield _of_output(reason, value, self.node)

    def same_type_reasons(self, name: str, like: str) -> Iterator[str]:
        """Yields a reason if an output, or its old contents, has another type than an input."""
        expected = self.present(like)
        for value in (self.output(name), self.input(name) if name in self.form.inputs else None):
            if value is None or None in (value.dtype, expected.dtype) or value.dtype == expected.dtype:
                continue
            got, want = (str(v.dtype and v.dtype.name.lower()) for v in (value, expected))
            yield _of_output(f"its input {value.name!r} is {got}; expected {want} like {like}", value, self.node)

    def _shape_reasons(self) -> Iterator[str]:
        data = self._values("data")
        rank = self.rank
        if rank is not None and rank not in (4, 5):
            yield f"its x has rank {rank}; expected 4 (NCHW) or 5 (NCDHW)"
        merged: _Sizes = (None,) * (rank or 0)
        for value in data if rank else []:
            sizes = _known_sizes(value)
            if sizes is None:
                continue
            if not may_be_equal(sizes, merged):
                known = any(size is not None for size in merged)
                expected = f"{shape_text(merged)} like x" if known else f"{rank} dimensions"
                yield _of_output(
                    f"its input {value.name!r} has shape {shape_text(sizes)}; expected {expected}",
                    value,
                    self.node,
                )
                return
            merged = tuple(a if a is not None else b for a, b in zip(merged, sizes, strict=True))
        for value in self._values("parameter") if rank else []:
            sizes = _known_sizes(value)
            shapes = self._parameter_shapes(merged)
            if sizes is not None and not any(may_be_equal(sizes, shape) for shape in shapes):
                expected = " or ".join(dict.fromkeys(map(shape_text, shapes)))
                yield _of_output(
                    f"its input {value.name!r} has shape {shape_text(sizes)}; expected {expected}",
                    value,
                    self.node,
                )

    def _parameter_shapes(self, x: _Sizes) -> list[_Sizes]:
        """Returns the shapes that a parameter may have."""
        if self.mode == "per_activation":
            return [(1, *x[1:]), x[1:]]
        position = len(x) - 1 if self.channels_last else 1
        channels = x[position]
        # MIOpen's descriptor is 1C11 for every layout; in memory the parameter has the layout's own 111C.
        full = [tuple(channels if d == at else 1 for d in range(len(x))) for at in (1, position)]
        return [*full, (channels,)]


def _of_output(reason: str, value: ir.Value, node: ir.Node) -> str:
    """Returns a reason about "its input", reworded if the value is an output of the node."""
    return reason.replace("its input", "its output", 1) if value.producer() is node else reason


def _known_sizes(value: ir.Value) -> _Sizes | None:
    """Returns the shape of a value with None for symbolic sizes; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)
