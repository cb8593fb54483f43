"""Builds nodes: ops, constants and casts, named after the node that they are for."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.opset.schemas import signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bngrad.graph.fresh_names import Names


_ATTRIBUTES: Mapping[str, Callable[[str, Any], ir.Attr]] = {
    "int": ir.AttrInt64,
    "float": ir.AttrFloat32,
    "string": ir.AttrString,
}


class NodeMaker(abc.ABC):
    """Makes nodes; subclasses decide where the nodes go and how they are named.

    Every new node is named ``<prefix>_<op type>`` and its values ``<prefix>_<word>``, with a number where the
    model has that name already.

    Args:
        names: The source of names.
        prefix: The beginning of all names.
    """

    def __init__(self, names: Names, prefix: str) -> None:
        self.names = names
        self._prefix = prefix
        self._unnamed: set[ir.Value] = set()

    @abc.abstractmethod
    def _place(self, node: ir.Node) -> None:
        """Puts a new node into its graph."""

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:  # noqa: ANN401
        """Makes a node of the default domain with one output, and returns that."""
        return self._emit("", op_type, inputs, [op_type.lower()], attributes)[0]

    def microsoft(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:  # noqa: ANN401
        """Makes a node of com.microsoft with one output, and returns that."""
        return self._emit(MICROSOFT, op_type, inputs, [op_type.lower()], attributes)[0]

    def outputs_of(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        outputs: Sequence[str],
        domain: str = "",
        **attributes: Any,  # noqa: ANN401
    ) -> Sequence[ir.Value]:
        """Makes a node and returns all its outputs.

        Args:
            op_type: The op.
            inputs: Its inputs; None for one that is left out.
            outputs: A word for each output, which its name ends with; empty for one that the node leaves out.
            domain: The op's domain.
            attributes: Its attributes.
        """
        return self._emit(domain, op_type, inputs, outputs, attributes)

    def bngrad(
        self, op_type: str, *inputs: ir.Value, axes: ir.Value | None = None, **attributes: float | str | ir.Attr
    ) -> Sequence[ir.Value]:
        """Makes a node of ``bngrad`` and returns all its outputs.

        Args:
            op_type: A key of `opset.FUNCTIONS`.
            inputs: All its inputs except axes, which come last.
            axes: The reduction axes, of an op that has them.
            attributes: All its attributes: int, float or string as in its signature, or an `ir.Attr`.
        """
        _, outputs, kinds = signature(op_type)
        typed = {
            name: value if isinstance(value := attributes[name], ir.Attr) else _ATTRIBUTES[kind](name, value)
            for name, kind in kinds.items()
        }
        return self._emit(DOMAIN, op_type, [*inputs, *([] if axes is None else [axes])], outputs, typed)

    def constant(self, value: Any, dtype: ir.DataType) -> ir.Value:  # noqa: ANN401
        """Returns a constant of a type, from anything that NumPy converts to an array."""
        with np.errstate(over="ignore"):  # beyond the type's range it is infinite, as the op's own arithmetic is
            array = np.asarray(value).astype(dtype.numpy())
        # ir.tensor and ir.node would look for protocols in a value of any class, which takes longer than all else.
        result = self.op("Constant", value=ir.AttrTensor("value", ir.Tensor(array, dtype=dtype)))
        result.dtype, result.shape = dtype, ir.Shape(array.shape)
        return result

    def int64(self, value: Any) -> ir.Value:  # noqa: ANN401
        """Returns an int64 constant: axes, shapes, indices."""
        return self.constant(value, ir.DataType.INT64)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Converts a value to a type; returns the value itself if it has that type already."""
        if value.dtype == dtype:
            return value
        result = self.op("Cast", value, to=int(dtype))
        result.dtype, result.shape = dtype, value.shape
        return result

    def name(self, value: ir.Value, name: str) -> ir.Value:
        """Names a value if it was made here and is unnamed, else a copy of it."""
        new = value if value in self._unnamed else self.op("Identity", value)
        self._unnamed.discard(new)
        new.name = name
        return new

    def _node_name(self, domain: str, op_type: str) -> str:  # noqa: ARG002 - for subclasses
        return self.names.fresh(f"{self._prefix}_{op_type}")

    def _emit(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> Sequence[ir.Value]:
        name = self._node_name(domain, op_type)
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=len(outputs), name=name)
        for value, word in zip(node.outputs, outputs, strict=True):
            value.name = self.names.fresh(f"{self._prefix}_{word}") if word else ""
        self._unnamed.update(value for value in node.outputs if value.name)
        self._place(node)
        return node.outputs
