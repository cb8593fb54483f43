"""Putting new nodes in the place of a foreign one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.opset import DOMAIN
from bngrad.passes.nodes import owner
from bngrad.schemas import signature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.passes.import_pass import Context


class Emitter:
    """Makes nodes in front of a foreign node, and then takes that node out.

    Every new node and value is named after the foreign node and gets a name that is new in the model; the first
    node of ours takes over its name, doc string and metadata.

    Args:
        node: The foreign node.
        context: The model's.
    """

    def __init__(self, node: ir.Node, context: Context) -> None:
        self._node = node
        self._context = context
        self._prefix = node.name or node.op_type
        self._succeeded = False
        self._unnamed: set[ir.Value] = set()

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:  # noqa: ANN401
        """Makes a node of the default domain with one output, and returns that."""
        return self._emit("", op_type, inputs, [op_type.lower()], attributes)[0]

    def bngrad(self, op_type: str, *inputs: ir.Value, axes: ir.Value, **attributes: float) -> Sequence[ir.Value]:
        """Makes a node of ours and returns all its outputs.

        Args:
            op_type: A key of `opset.FUNCTIONS`.
            inputs: All its inputs but axes, which come last.
            axes: The reduction axes.
            attributes: All its attributes; int or float as its signature says.
        """
        _, outputs, kinds = signature(op_type)
        make = {"int": ir.AttrInt64, "float": ir.AttrFloat32}
        typed = {name: make[kind](name, attributes[name]) for name, kind in kinds.items()}  # type: ignore[arg-type]
        return self._emit(DOMAIN, op_type, [*inputs, axes], outputs, typed)

    def axes(self, axes: Sequence[int]) -> ir.Value:
        """Returns the constant for reduction axes."""
        return self._context.axes.value(self._node, tuple(axes))

    def constant(self, value: Any, dtype: ir.DataType) -> ir.Value:  # noqa: ANN401
        """Returns a constant of a type, from anything that NumPy makes an array of."""
        array = np.asarray(value).astype(dtype.numpy())
        result = self.op("Constant", value=ir.tensor(array, dtype=dtype))
        result.dtype, result.shape = dtype, ir.Shape(array.shape)
        return result

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Returns a value as a type; itself if it has that type already."""
        if value.dtype == dtype:
            return value
        result = self.op("Cast", value, to=int(dtype))
        result.dtype, result.shape = dtype, value.shape
        return result

    def replace(self, outputs: Mapping[int, ir.Value]) -> None:
        """Takes the foreign node out.

        Args:
            outputs: What takes the place, and the name, of its outputs, by index; an output that is not here must
                have no user. A value may be there twice, or be an input of the foreign node.
        """
        for index, value in outputs.items():
            old = self._node.outputs[index]
            if not old.name:
                continue
            # A value that was there before, or stands for another output already, keeps its own name.
            new = value if value in self._unnamed else self.op("Identity", value)
            self._unnamed.discard(new)
            new.name, old.name = old.name, self._context.names.fresh(f"{self._prefix}_replaced")
            new.type, new.shape = old.type or new.type, old.shape or new.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        owner(self._node).remove(self._node, safe=True)

    def _emit(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> Sequence[ir.Value]:
        # The first node of ours is what the foreign one was; the others, and statistics for it, are glue.
        ours = domain == DOMAIN and op_type != "BatchNormalizationStatistics"
        successor = ours and not self._succeeded
        self._succeeded = self._succeeded or successor
        name = self._node.name if successor else self._context.names.fresh(f"{self._prefix}_{op_type}")
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=len(outputs), name=name)
        if successor:
            node.doc_string = self._node.doc_string
            node.metadata_props.update(self._node.metadata_props)
        for value, what in zip(node.outputs, outputs, strict=True):
            value.name = self._context.names.fresh(f"{self._prefix}_{what}")
        self._unnamed.update(node.outputs)
        owner(self._node).insert_before(self._node, node)
        return node.outputs
