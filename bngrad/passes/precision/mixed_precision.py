"""Mixed precision: float32 models whose convolutions and products compute in 16 bits.

::

    y = Conv(x, w)   =>   y16 = Conv(Cast(x), Cast(w)), y = Cast(y16)

A cast up is only left where an op in float32 or an output of the graph reads it. Inputs, outputs and initializers
keep their types, so the weights stay float32, and the gradient rules of the casts return float32 gradients.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import default_opset, is_read, remove
from bngrad.passes.precision.sixteen_bit_ops import SIXTEEN_BIT_OPS

MINIMUM_OPSET = {ir.DataType.FLOAT16: 15, ir.DataType.BFLOAT16: 22}
"""The oldest opset in which every op of the table has a type; a batch norm has mixed types since 15."""

_FLOAT = ir.DataType.FLOAT


class MixedPrecisionPass(ir.passes.InPlacePass):
    """Lets the ops of `SIXTEEN_BIT_OPS` in the main graph compute in 16 bits, and casts around them.

    Requires: the types of values, and an opset with the type.
    Guarantees: each value is cast at most once to either type. Names stay, except that a value of 16 bits whose
    name an output or an op in float32 needs gets another.

    Args:
        dtype: float16 or bfloat16.
    """

    def __init__(self, dtype: ir.DataType) -> None:
        super().__init__()
        self._dtype = dtype

    def requires(self, model: ir.Model) -> None:
        """The opset has the type."""
        version, minimum = default_opset(model) or 0, MINIMUM_OPSET[self._dtype]
        if version < minimum:
            raise ir.passes.PreconditionError(
                f"the model imports ai.onnx {version}; {self._dtype.name.lower()} needs {minimum}"
            )

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        narrowing = _Narrowing(model, self._dtype)
        for node in list(model.graph):
            narrowing.take(node)
        narrowing.remove_unused_casts()
        return ir.passes.PassResult(model, modified=bool(narrowing.narrowed))


class _Narrowing:
    """The values of a model that have 16 bits.

    Between two nodes the model is valid, and every value that a later node reads is float32.
    """

    def __init__(self, model: ir.Model, dtype: ir.DataType) -> None:
        self._graph, self._names, self._dtype = model.graph, Names(model), dtype
        self.narrowed: dict[ir.Value, ir.Value] = {}
        """The value that an op computes in 16 bits, by the cast of it to float32."""
        self._casts: dict[ir.Value, ir.Value] = {}
        """The cast to 16 bits, by the float32 value."""

    def take(self, node: ir.Node) -> None:
        """Lets a node compute in 16 bits if the table allows it."""
        op = SIXTEEN_BIT_OPS.get((node.domain, node.op_type))
        if op is None or not op.allows_shapes_of(node):
            return
        inputs = op.inputs_of(node)
        if any(value.dtype != _FLOAT for value in inputs.values()):
            return
        if not op.casts and not all(value in self.narrowed for value in op.data_of(node).values()):
            return
        for index, value in inputs.items():
            node.replace_input_with(index, self._sixteen_bits(value, node))
        for output in op.outputs_of(node):
            if output.dtype == _FLOAT:
                self._narrow(output, node)

    def _sixteen_bits(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Returns the 16-bit form of a float32 value; a cast comes before its first reader."""
        if value in self.narrowed:
            return self.narrowed[value]
        if value not in self._casts:
            cast = self._cast(value, self._name(value), self._dtype)
            self._graph.insert_before(reader, cast)
            self._casts[value] = cast.outputs[0]
        return self._casts[value]

    def _narrow(self, output: ir.Value, node: ir.Node) -> None:
        """Gives an output of a node 16 bits, and a cast to float32 its name and readers."""
        name = str(output.name)
        output.name = self._name(output)
        cast = self._cast(output, name, _FLOAT)
        (wide,) = cast.outputs
        output.replace_all_uses_with(wide, replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        output.type = ir.TensorType(self._dtype)  # not its dtype: copies of a model share types
        self._graph.insert_after(node, cast)
        self.narrowed[wide] = output

    def _name(self, value: ir.Value) -> str:
        return self._names.fresh(f"{value.name}_{self._dtype.name.lower()}")

    def _cast(self, value: ir.Value, name: str, dtype: ir.DataType) -> ir.Node:
        attributes = {"to": ir.AttrInt64("to", int(dtype))}
        node = ir.node("Cast", [value], attributes, name=self._names.fresh(f"{value.name}_Cast"))
        node.outputs[0].name, node.outputs[0].dtype, node.outputs[0].shape = name, dtype, value.shape
        return node

    def remove_unused_casts(self) -> None:
        """Removes the casts to float32 that nothing reads; the values before them get their names back."""
        unused = [(wide, output) for wide, output in self.narrowed.items() if not is_read(wide)]
        remove(cast for wide, _ in unused if (cast := wide.producer()) is not None)
        for wide, output in unused:
            output.name, wide.name = wide.name, None
