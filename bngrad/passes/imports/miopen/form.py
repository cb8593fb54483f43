"""MIOpen's batch-norm calls as nodes: how one is read, and what is wrong with it.

A node has the C function's name, in any domain; its inputs are the pointers to data that the call reads, its
outputs those that it writes, both in the order of the C function, and its attributes are the values. Tensor
descriptors have no place in a graph, whose values have types and shapes, so a function and its ``_V2``, which
differ in them alone, are the same form.

MIOpen checks how many dimensions a descriptor has but hardly a length (it reads past the end of a short buffer);
here every extent that is known must fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import known_rank
from bngrad.opset.known_shapes import shape_text
from bngrad.opset.parameter_shape import Mode, batch_norm_mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Kind = Literal["data", "parameter"]
"""Whether an input or output has the shape of X, or that of scale."""

LAYOUTS = ("NCHW", "NHWC", "NCDHW", "NDHWC")

_Extents = list[int | None]


class Form(NamedTuple):
    """What the nodes of one function have."""

    inputs: Mapping[str, Kind]
    required: tuple[str, ...]
    outputs: Mapping[str, Kind]
    numbers: tuple[str, ...]
    """The attributes that are numbers."""
    choices: tuple[str, ...] = ("bn_mode", "layout")
    """The attributes that name one of several things, by a string or an enumerator's value."""


class MiopenNode:
    """A node, read by the names of its form.

    Args:
        node: The node.
        form: What it should look like.
    """

    def __init__(self, node: ir.Node, form: Form) -> None:
        self.node = node
        self.form = form

    # ---- reading; all but `input`, `output` and `number` only once `reasons` had nothing to say ----

    def input(self, name: str) -> ir.Value | None:
        """An input; None if it is left out."""
        index = list(self.form.inputs).index(name)
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def present(self, name: str) -> ir.Value:
        """An input that is known to be there."""
        value = self.input(name)
        assert value is not None, f"{name} is required"  # noqa: S101 - `reasons` has checked it
        return value

    def has(self, *names: str) -> bool:
        """Whether all these inputs are there."""
        return all(self.input(name) is not None for name in names)

    def output(self, name: str) -> ir.Value | None:
        """An output; None if it is left out."""
        index = list(self.form.outputs).index(name)
        value = self.node.outputs[index] if index < len(self.node.outputs) else None
        return value if value is not None and value.name else None

    def used(self, name: str) -> bool:
        """Whether anything reads an output."""
        value = self.output(name)
        return value is not None and (bool(value.uses()) or value.is_graph_output())

    def number(self, name: str, default: float = 0.0) -> float:
        """A number among the attributes."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else float(attribute.value)

    @property
    def mode(self) -> Mode:
        """What the statistics are of."""
        return batch_norm_mode(self.node.attributes["bn_mode"].value)

    @property
    def channels_last(self) -> bool:
        """Whether the last dimension is the channels, and not the second."""
        return self._layout is not None and self._layout.endswith("C")

    @property
    def rank(self) -> int | None:
        """X's; None where nothing tells it."""
        return len(self._layout) if self._layout else known_rank(self._values("data"))

    @property
    def axes(self) -> tuple[int, ...]:
        """What to reduce over; where the rank is not known, for X reshaped to [N, C, S]."""
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
        inputs = [self.input(name) for name, its in self.form.inputs.items() if its == kind]
        outputs = [self.output(name) for name, its in self.form.outputs.items() if its == kind]
        return [value for value in (*inputs, *outputs) if value is not None]

    # ---- what is wrong with it ----

    def reasons(self) -> Iterator[str]:
        """Yields why the node is not of its form; what comes later takes for granted what came before."""
        yield from self._count_reasons()
        yield from self._attribute_reasons()
        yield from self._type_reasons()
        yield from self._shape_reasons()

    def blend_reasons(self, **of_old: str) -> Iterator[str]:
        """Yields which old contents a weight asks for and the node does not have, for each ``weight = input``."""
        for beta, old in of_old.items():
            if self.number(beta) != 0 and not self.has(old):
                yield f"it has {beta} {self.number(beta):g} and no input {old}; expected the contents to blend in"

    def missing_reasons(self, *names: str) -> Iterator[str]:
        """Yields which attributes are needed and not there."""
        for name in names:
            if name not in self.node.attributes:
                yield f"it has no attribute {name}; expected one, for MIOpen has no default"

    def unknown_type_reasons(self) -> Iterator[str]:
        """Yields that the type of X is not known, for what has to be computed in a type."""
        if self.present("x").dtype is None:
            yield (
                f"the type of its input {self.present('x').name!r} is not known; expected a known one: "
                "add the type, or inline the function that the node is in"
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
                yield f"its {name} is an attribute of the function that it is in; expected a value: inline that"
            expected = (kinds.FLOAT, kinds.INT) if name in self.form.numbers else (kinds.STRING, kinds.INT)
            if attribute.type not in expected:
                names = " or ".join(kind.name.lower() for kind in expected)
                yield f"its {name} is of kind {attribute.type.name.lower()}; expected {names}"
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
        """Yields that an output, or the old contents of one, is not of the type of an input."""
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
        merged: _Extents = [None] * (rank or 0)
        for value in data if rank else []:
            extents = _extents(value)
            if extents is None:
                continue
            if not _agree(extents, merged):
                known = any(extent is not None for extent in merged)
                expected = f"{shape_text(merged)} like x" if known else f"{rank} dimensions"
                yield _of_output(
                    f"its input {value.name!r} has shape {shape_text(extents)}; expected {expected}",
                    value,
                    self.node,
                )
                return
            merged = [a if a is not None else b for a, b in zip(merged, extents, strict=True)]
        for value in self._values("parameter") if rank else []:
            extents = _extents(value)
            forms = self._parameter_forms(merged)
            if extents is not None and not any(_agree(extents, form) for form in forms):
                expected = " or ".join(dict.fromkeys(map(shape_text, forms)))
                yield _of_output(
                    f"its input {value.name!r} has shape {shape_text(extents)}; expected {expected}",
                    value,
                    self.node,
                )

    def _parameter_forms(self, x: _Extents) -> list[_Extents]:
        """The shapes that a parameter may have."""
        if self.mode == "per_activation":
            return [[1, *x[1:]], x[1:]]
        position = len(x) - 1 if self.channels_last else 1
        channels = x[position]
        # A descriptor of MIOpen's says 1C11 for every layout; in memory it is the layout's own 111C.
        full = [[channels if d == at else 1 for d in range(len(x))] for at in (1, position)]
        return [*full, [channels]]


def _of_output(reason: str, value: ir.Value, node: ir.Node) -> str:
    return reason.replace("its input", "its output", 1) if value.producer() is node else reason


def _extents(value: ir.Value) -> _Extents | None:
    if value.shape is None:
        return None
    return [extent if isinstance(extent, int) else None for extent in value.shape]


def _agree(got: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Whether two shapes may be the same, as far as they are known."""
    if len(got) != len(expected):
        return False
    return all(a is None or b is None or a == b for a, b in zip(got, expected, strict=True))
