"""The signature of a foreign node whose inputs are all required and whose only attribute is epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator


class NodeForm(NamedTuple):
    """The signature of an op of another system."""

    inputs: tuple[str, ...]
    """The system's names of the inputs, in order."""
    outputs: tuple[str, ...]
    """The system's names of the outputs, in order; a node may omit trailing ones."""
    epsilon_names: tuple[str, ...]
    """The accepted spellings of the attribute; the system's own comes first."""

    def violations(self, node: ir.Node) -> Iterator[str]:
        """Yields the ways in which a node breaks this signature; use the first, later ones may follow from it."""
        present = [value for value in node.inputs if value is not None]
        if len(present) != len(self.inputs) or len(node.inputs) != len(self.inputs):
            yield f"it has {len(present)} inputs; expected {len(self.inputs)}: {', '.join(self.inputs)}"
        if len(node.outputs) > len(self.outputs):
            yield f"it has {len(node.outputs)} outputs; expected {', '.join(self.outputs)}"
        for name in node.attributes:
            # An op of the same name with other attributes belongs to another system and has other inputs.
            if name not in self.epsilon_names:
                yield f"it has an attribute {name!r}; expected only {self.epsilon_names[0]}"
        given = [name for name in self.epsilon_names if name in node.attributes]
        if len(given) != 1:
            yield f"it has {' and '.join(given) or 'no ' + self.epsilon_names[0]}; expected one epsilon"
        epsilon = node.attributes[given[0]]
        if epsilon.is_ref():
            yield f"its {given[0]} refers to a function attribute; expected a number: inline the function"
        if epsilon.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
            yield f"its {given[0]} is of type {epsilon.type.name.lower()}; expected a number"

    def epsilon(self, node: ir.Node) -> float:
        """Returns the epsilon of a node without violations, rounded to float32 as a saved model stores it."""
        (value,) = (node.attributes[name].value for name in self.epsilon_names if name in node.attributes)
        return float(np.float32(value))
