"""The names that gradients have in a training graph, as ONNX Runtime's gradient builder gives them.

A training graph of that builder says in no other way which outputs are gradients, and which nodes make them.
"""

from __future__ import annotations

_GRADIENT = "_grad"
_GRADIENT_NODE = "_Grad/"
_ACCUMULATION = "AccumulateGrad_"


def gradient_name(name: str) -> str:
    """The name of the gradient with respect to a value."""
    return f"{name}{_GRADIENT}"


def differentiated_name(gradient: str) -> str | None:
    """The name of the value that a gradient is with respect to; None if the name is not that of a gradient."""
    name = gradient.removesuffix(_GRADIENT)
    return None if name == gradient else name


def gradient_node_prefix(forward_node: str) -> str:
    """What the names of the nodes begin with that a forward node's gradient rule makes."""
    return f"{forward_node}{_GRADIENT_NODE}"


def forward_node_name(gradient_node: str) -> str | None:
    """The name of the forward node whose gradient rule made a node; None if no rule did."""
    name, mark, _ = gradient_node.rpartition(_GRADIENT_NODE)
    return name if mark else None


def accumulation_node_name(gradient: str) -> str:
    """The name of the node that sums the contributions to a gradient."""
    return f"{_ACCUMULATION}{gradient}"


def is_accumulation_node_name(name: str) -> bool:
    """Whether a node of this name sums the contributions to a gradient."""
    return name.startswith(_ACCUMULATION)


def is_gradient_node_name(name: str) -> bool:
    """Whether a node of this name makes a gradient, or sums contributions to one."""
    return _GRADIENT_NODE in name or is_accumulation_node_name(name)
