"""The names of gradients in a training graph, as ONNX Runtime's gradient builder chooses them.

In a training graph of that builder, gradients and their nodes can be recognized by these names only.
"""

from __future__ import annotations

_GRADIENT = "_grad"
_GRADIENT_NODE = "_Grad/"
_ACCUMULATION = "AccumulateGrad_"


def gradient_name(name: str) -> str:
    """Returns the name of the gradient with respect to a value."""
    return f"{name}{_GRADIENT}"


def differentiated_name(gradient: str) -> str | None:
    """Returns the name of the value that a gradient is with respect to; None if the name is not a gradient's."""
    name = gradient.removesuffix(_GRADIENT)
    return None if name == gradient else name


def gradient_node_prefix(forward_node: str) -> str:
    """Returns the prefix of the names of nodes that are added by the gradient rule of a forward node."""
    return f"{forward_node}{_GRADIENT_NODE}"


def forward_node_name(gradient_node: str) -> str | None:
    """Returns the name of the forward node whose gradient rule added a node; None if no rule did."""
    name, mark, _ = gradient_node.rpartition(_GRADIENT_NODE)
    return name if mark else None


def accumulation_node_name(gradient: str) -> str:
    """Returns the name of the node that sums the contributions to a gradient."""
    return f"{_ACCUMULATION}{gradient}"


def is_accumulation_node_name(name: str) -> bool:
    """Returns whether a node of this name sums the contributions to a gradient."""
    return name.startswith(_ACCUMULATION)


def is_gradient_node_name(name: str) -> bool:
    """Returns whether a node of this name computes a gradient, or sums contributions to one."""
    return _GRADIENT_NODE in name or is_accumulation_node_name(name)
