"""The form of a foreign node whose inputs are all required and whose one attribute is epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator


class NodeForm(NamedTuple):
    """What a node of a dialect looks like."""

    inputs: tuple[str, ...]
    """The system's names of the inputs, in order."""
    outputs: tuple[str, ...]
    """The same of the outputs, the last of which a node may leave out."""
    epsilon_names: tuple[str, ...]
    """How the attribute is spelled; the first is the system's own way."""

    def malformed(self, node: ir.Node) -> Iterator[str]:
        """Yields why a node is not of this form; the first reason holds, others may follow from it."""
        present = [value for value in node.inputs if value is not None]
        if len(present) != len(self.inputs) or len(node.inputs) != len(self.inputs):
            yield f"it has {len(present)} inputs; expected {len(self.inputs)}: {', '.join(self.inputs)}"
        if len(node.outputs) > len(self.outputs):
            yield f"it has {len(node.outputs)} outputs; expected {', '.join(self.outputs)}"
        for name in node.attributes:
            # Another system's op of the same name would be one with other inputs.
            if name not in self.epsilon_names:
                yield f"it has an attribute {name!r}; expected {self.epsilon_names[0]} alone"
        given = [name for name in self.epsilon_names if name in node.attributes]
        if len(given) != 1:
            yield f"it has {' and '.join(given) or 'no ' + self.epsilon_names[0]}; expected one epsilon"
        epsilon = node.attributes[given[0]]
        if epsilon.is_ref():
            yield f"its {given[0]} is an attribute of its function; expected a number: inline the function"
        if epsilon.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
            yield f"its {given[0]} is of type {epsilon.type.name.lower()}; expected a number"

    def epsilon(self, node: ir.Node) -> float:
        """The epsilon of a node of this form, as a float32, which a model that was never saved need not hold."""
        (value,) = (node.attributes[name].value for name in self.epsilon_names if name in node.attributes)
        return float(np.float32(value))
