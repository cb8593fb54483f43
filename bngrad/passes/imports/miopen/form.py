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
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.batch_norms import type_refusal
from bngrad.opset.known_shapes import may_be_equal, shape_text
from bngrad.opset.parameter_shape import Mode, batch_norm_mode
from bngrad.passes.imports.foreign_node import ENUMERATOR, ForeignNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAYOUTS = ("NCHW", "NHWC", "NCDHW", "NDHWC")

MODES = {"bn_mode": ENUMERATOR, "layout": ENUMERATOR}
"""The attributes of all functions."""

_Sizes = tuple[int | None, ...]


class MiopenNode(ForeignNode):
    """A node that stands for a call of MIOpen; its properties are for nodes without `form_reasons`."""

    def number(self, name: str) -> float:
        """Returns a numeric attribute."""
        return float(self.attribute(name))

    @property
    def mode(self) -> Mode:
        """The batch-norm mode: spatial or per_activation."""
        return batch_norm_mode(self.attribute("bn_mode"))

    @property
    def rank(self) -> int | None:
        """The rank of X; None if it is unknown."""
        layout = self.attribute("layout")
        return super().rank if layout is None else len(str(layout))

    @property
    def collapsed(self) -> bool:
        """True if the data is reshaped to [N, C, S], because its rank is unknown."""
        return self.mode == "spatial" and self.rank is None

    @property
    def axes(self) -> Sequence[int]:
        """The reduction axes of the data, or of the collapsed data."""
        return (0,) if self.mode == "per_activation" else super().axes


def form_reasons(node: MiopenNode) -> Iterator[str]:
    """Yields the ways in which a node differs from its record; each check relies on those before it."""
    yield from _count_reasons(node)
    yield from _attribute_reasons(node)
    yield from _type_reasons(node)
    yield from _shape_reasons(node)


def blend_reasons(node: MiopenNode, weight: str, old: str) -> Iterator[str]:
    """Yields a reason if a weight is not 0 although the old contents of a quantity are missing."""
    if node.number(weight) != 0 and not node.has(old):
        yield (
            f"it has {weight} {node.number(weight):g} and no input {node.label(old)}; expected old contents to "
            "blend in"
        )


def missing_reasons(node: MiopenNode, *names: str) -> Iterator[str]:
    """Yields which of these required attributes are missing."""
    for name in names:
        if name not in node.node.attributes:
            yield f"it has no attribute {name}; expected one, because MIOpen has no default"


def unknown_type_reasons(node: MiopenNode) -> Iterator[str]:
    """Yields a reason if the type of X, which the rewrite needs, is unknown."""
    if node.present("X").dtype is None:
        yield (
            f"the type of its input {node.present('X').name!r} is unknown; add type information to the model, "
            "or inline the function that contains the node"
        )


def same_type_reasons(node: MiopenNode, quantity: str, like: str) -> Iterator[str]:
    """Yields a reason if an output, or its old contents, has another type than an input."""
    expected = node.present(like)
    for value in (node.outputs.get(quantity), node.inputs.get(quantity)):
        if value is None or None in (value.dtype, expected.dtype) or value.dtype == expected.dtype:
            continue
        got, want = (str(v.dtype and v.dtype.name.lower()) for v in (value, expected))
        yield f"{_its(value, node)} is {got}; expected {want} like {node.label(like)}"


def _count_reasons(node: MiopenNode) -> Iterator[str]:
    op = node.op
    for what, values, names in (
        ("inputs", node.node.inputs, op.inputs),
        ("outputs", node.node.outputs, op.outputs),
    ):
        if len(values) > len(names):
            yield f"it has {len(values)} {what}; expected at most {len(names)}: {', '.join(names)}"
    for name, quantity in op.required.items():
        if not node.has(quantity):
            yield f"it has no input {name}; expected at least {', '.join(op.required)}"


def _attribute_reasons(node: MiopenNode) -> Iterator[str]:
    for name, attribute in node.node.attributes.items():
        if name not in node.op.attributes:
            yield f"it has an attribute {name}; expected only {', '.join(node.op.attributes)}"
        if attribute.is_ref():
            yield f"its {name} refers to a function attribute; expected a value: inline the function"
        kinds = node.op.attributes[name].kinds
        if attribute.type not in kinds:
            names = " or ".join(kind.name.lower() for kind in kinds)
            yield f"its {name} is of type {attribute.type.name.lower()}; expected {names}"
        if ir.AttributeType.FLOAT in kinds and not math.isfinite(attribute.value):
            yield f"it has {name} {attribute.value}; expected a finite number"
    yield from missing_reasons(node, "bn_mode")
    try:
        batch_norm_mode(node.attribute("bn_mode"))
    except InputError as error:
        yield f"its bn_{error}"
    layout = node.attribute("layout")
    if layout is not None and str(layout) not in LAYOUTS:
        yield f"it has layout {layout}; expected one of {', '.join(LAYOUTS)}"
    if "epsilon" in node.op.attributes and node.number("epsilon") < 0:
        yield f"it has epsilon {node.number('epsilon'):g}; expected 0 or more"


def _type_reasons(node: MiopenNode) -> Iterator[str]:
    for value in node.data():
        if reason := type_refusal([value], []):
            yield reason.replace("its input", _its(value, node).partition(" '")[0], 1)
    types = [value.dtype for value in node.data_inputs()]
    for value in node.parameters():
        if value.dtype is not None and None not in types and value.dtype not in (ir.DataType.FLOAT, *types):
            expected = " or ".join(dict.fromkeys(("float", *(t.name.lower() for t in types if t))))
            yield f"{_its(value, node)} is {value.dtype.name.lower()}; expected {expected}"


def _shape_reasons(node: MiopenNode) -> Iterator[str]:
    rank = node.rank
    if rank is None:
        return
    if rank not in (4, 5):
        yield f"its x has rank {rank}; expected 4 (NCHW) or 5 (NCDHW)"
    merged: _Sizes = (None,) * rank
    for value in node.data():
        sizes = _known_sizes(value)
        if sizes is None:
            continue
        if not may_be_equal(sizes, merged):
            has_sizes = any(size is not None for size in merged)
            expected = f"{shape_text(merged)} like x" if has_sizes else f"{rank} dimensions"
            yield f"{_its(value, node)} has shape {shape_text(sizes)}; expected {expected}"
        merged = tuple(a if a is not None else b for a, b in zip(merged, sizes, strict=True))
    shapes = _parameter_shapes(node, merged)
    for value in node.parameters():
        sizes = _known_sizes(value)
        if sizes is not None and not any(may_be_equal(sizes, shape) for shape in shapes):
            expected = " or ".join(dict.fromkeys(map(shape_text, shapes)))
            yield f"{_its(value, node)} has shape {shape_text(sizes)}; expected {expected}"


def _parameter_shapes(node: MiopenNode, x: _Sizes) -> list[_Sizes]:
    """Returns the shapes that a parameter may have."""
    if node.mode == "per_activation":
        return [(1, *x[1:]), x[1:]]
    position = len(x) - 1 if node.channels_last else 1
    channels = x[position]
    # MIOpen's descriptor is 1C11 for every layout; in memory the parameter has the layout's own 111C.
    full = [tuple(channels if d == at else 1 for d in range(len(x))) for at in (1, position)]
    return [*full, (channels,)]


def _its(value: ir.Value, node: ForeignNode) -> str:
    """Names an input or output in a message."""
    return f"its {'output' if value.producer() is node.node else 'input'} {value.name!r}"


def _known_sizes(value: ir.Value) -> _Sizes | None:
    """Returns the shape of a value with None for symbolic sizes; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)
