"""The conventions of frameworks for the gradient of a function where it has a kink: at a limit or a tie.

ONNX defines no gradients, and frameworks differ there. Each model follows its own framework:

============ ============== ========== =========== ======= ======================
of           ONNX Runtime   PyTorch    TensorFlow  JAX     written as
============ ============== ========== =========== ======= ======================
clamp, clip  pass           stop       pass        split   Clip, or Max and Min
relu6        as clip        stop       stop        stop    the same
maximum      split          split      pass        split   Max; Min of a minimum
largest      split          see below  split       split   ReduceMax, GlobalMaxPool
elu, selu    left           left       right       left    Elu, Selu
leaky_relu   left           left       left        right   LeakyRelu, PRelu
abs          stop           stop       stop        right   Abs, ReduceL1
max_pool     first          first      first       first   MaxPool
an update    all            all        all         last    ScatterElements, ScatterND
============ ============== ========== =========== ======= ======================

PyTorch's ``max(dim)`` and adaptive pools give the gradient to the first largest element, and its other reductions
equal shares. Before PyTorch 2.14 its ``clamp`` passed the gradient; since then numbers as limits stop it, and
tensors split it. The PyTorch op comes from the record of its exporter, or from the name of the node; else the most
likely one is assumed. The functions of JAX come from the names that jax2onnx gives values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from bngrad.graph.constant_value import constant_value
from bngrad.graph.framework import framework_of
from bngrad.graph.shapes import has_one_element
from bngrad.graph.torch_calls import named_op, recorded_call, recorded_classes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from bngrad.graph.framework import Framework

Tie = Literal["pass", "stop", "split", "first", "last", "all", "left", "right"]
"""The flow of the gradient at a kink.

``pass``: all of it goes to the first operand. ``stop``: none of it does, and the other operands get it. ``split``:
all operands, or elements, that tie get equal shares. ``first``, ``last``: the first or the last element that ties
gets it. ``all``: each of them gets all of it. ``left``, ``right``: the gradient of the part on this side counts.
"""

_LARGEST = ("ReduceMax", "ReduceMin", "GlobalMaxPool")
_BEYOND = ("Max", "Min")
_SIZES = ("Abs", "ReduceL1")
_UPDATES = ("ScatterElements", "ScatterND")

COMMON: Mapping[str, Tie] = {
    "Clip": "pass",
    **dict.fromkeys((*_BEYOND, *_LARGEST), "split"),
    **dict.fromkeys(("Elu", "Selu", "LeakyRelu", "PRelu"), "left"),
    **dict.fromkeys(_SIZES, "stop"),
    "MaxPool": "first",
    **dict.fromkeys(_UPDATES, "all"),
}
"""The most common conventions, by the op of ONNX; other ops have no kink, or one convention."""

CONVENTIONS: Mapping[Framework | None, Mapping[str, Tie]] = {
    None: COMMON,
    "pytorch": {**COMMON, "Clip": "stop"},
    "tensorflow": {**COMMON, **dict.fromkeys(_BEYOND, "pass"), **dict.fromkeys(("Elu", "Selu"), "right")},
    "jax": {
        **COMMON,
        "Clip": "split",
        **dict.fromkeys((*_SIZES, "LeakyRelu", "PRelu"), "right"),
        **dict.fromkeys(_UPDATES, "last"),
    },
}
"""The conventions of each framework, by the op of ONNX, for a node without a record. None is ONNX Runtime."""

_CLAMPS = ("clamp", "clamp_min", "clamp_max", "clip")
_OF_PYTORCH: Mapping[str, Tie] = {
    **dict.fromkeys(("relu6", "hardtanh"), "stop"),
    **dict.fromkeys(("maximum", "minimum", "amax", "amin"), "split"),
}
"""The convention by the PyTorch op, other than clamps and ``max``."""

_OF_JAX: Mapping[str, Tie] = {
    **dict.fromkeys(("maximum_out", "minimum_out", "clip_max", "cummax_pooled", "cummin_pooled"), "split"),
    **dict.fromkeys(("clamp_max", "relu6_max"), "stop"),
    "hard_tanh_maxed": "pass",
}
"""The convention by the name that jax2onnx gives the output of a node, or of the Max before a Min."""

_JOINT_CLAMP = (2, 14)
"""The first release of PyTorch whose clamp has the current gradients."""

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_NAME_OF_JAX = re.compile("|".join(_OF_JAX))


class Ties:
    """The conventions of a model.

    Args:
        model: The model, whose framework is `framework_of` it.
    """

    def __init__(self, model: ir.Model) -> None:
        self.framework = framework_of(model)
        version = _VERSION.match(model.producer_version or "") if model.producer_name == "pytorch" else None
        self._passing_clamp = version is not None and (int(version[1]), int(version[2])) < _JOINT_CLAMP

    def of(self, node: ir.Node) -> Tie:
        """Returns the convention of a node of an op in `CONVENTIONS`."""
        default = CONVENTIONS[self.framework][node.op_type]
        if self.framework == "pytorch":
            return self._of_pytorch(node, default)
        if self.framework == "tensorflow" and node.op_type == "Clip" and _limits(node) == [0, 6]:
            return "stop"  # TensorFlow's Relu6: its clip_by_value is written as Min and Max
        return self._of_jax(node, default) if self.framework == "jax" else default

    def _of_jax(self, node: ir.Node, default: Tie) -> Tie:
        if node.op_type in ("Abs", "Max") and _is_in_logaddexp(node):
            return "stop" if node.op_type == "Abs" else "split"
        for value in (node.outputs[0], *(node.inputs[:1] if node.op_type == "Min" else ())):
            name = _NAME_OF_JAX.search((value and value.name) or "")
            if name is not None and node.op_type in (*_BEYOND, "MaxPool"):
                return _OF_JAX[name[0]]
        return "stop" if node.op_type in _BEYOND and _is_relu_or_clamp(node) else default

    def _of_pytorch(self, node: ir.Node, default: Tie) -> Tie:
        call = recorded_call(node)
        if call is not None:
            op, with_indices = call.op, call.overload in ("dim", "names_dim")
            numbers = call.is_number(1) and call.is_number(2)
        else:
            op, with_indices = named_op(node)
            numbers = _has_number_as_limit(node)
        if op in _CLAMPS:
            return self._of_clamp(numbers=numbers)
        if op in _OF_PYTORCH and not _is_adaptive(node):
            return _OF_PYTORCH[op]
        if node.op_type in _LARGEST:
            is_indexed = with_indices if op in ("max", "min") else call is None and _has_one_axis(node)
            return "first" if is_indexed or _is_adaptive(node) or node.op_type == "GlobalMaxPool" else "split"
        if call is None and node.op_type == "Clip" and self._passing_clamp:
            return "stop" if _limits(node) == [0, 6] else "pass"
        if call is None and node.op_type in _BEYOND and (node.name or "").startswith("node_") and numbers:
            return self._of_clamp(numbers=True)  # the inner one of two that a clamp became
        return default

    def _of_clamp(self, *, numbers: bool) -> Tie:
        return "pass" if self._passing_clamp else "stop" if numbers else "split"


def joint_limits(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Returns both limits of the PyTorch clamp by tensors that a node is the Max or the Min of; else None."""
    call = recorded_call(node)
    if (
        call is None
        or call.op not in _CLAMPS
        or node.op_type not in _BEYOND
        or call.is_number(1)
        or call.is_number(2)
    ):
        return None
    lower = node if node.op_type == "Max" else _maker(node.inputs[0])
    upper = next((user for user, index in node.outputs[0].uses() if index == 0), None) if lower is node else node
    if lower is None or upper is None or (lower.op_type, upper.op_type) != ("Max", "Min"):
        return None
    low, high = lower.inputs[1], upper.inputs[1]
    if recorded_call(lower) != recorded_call(upper) or low is None or high is None:
        return None
    return low, high


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _limits(node: ir.Node) -> list[float | None]:
    """Returns the inputs after the first; None for each that is not a constant of one element."""
    return [None if value is None else _number(value) for value in node.inputs[1:]]


def _number(value: ir.Value) -> float | None:
    tensor = constant_value(value)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _has_number_as_limit(node: ir.Node) -> bool:
    """Returns whether the operands after the first are constants, as far as that is known without the record."""
    return all(value is None or _number(value) is not None for value in node.inputs[1:])


def _has_one_axis(node: ir.Node) -> bool:
    """Returns whether a reduction has one axis: max(dim) is more usual than amax(dim)."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is not None:
        return has_one_element(axes)
    written = node.attributes.get("axes")
    return written is not None and len(written.as_ints()) == 1


def _is_adaptive(node: ir.Node) -> bool:
    """Returns whether a node is recorded as an adaptive pool, which PyTorch's exporter writes as an amax."""
    return node.op_type in _LARGEST and "AdaptiveMaxPool" in recorded_classes(node)


def _is_relu_or_clamp(node: ir.Node) -> bool:
    """Returns whether a Max or Min of JAX is jax.nn.relu, or in lax.clamp or jax.nn.relu6, but not in celu."""
    if len(node.inputs) != 2 or _limits(node) == [None]:
        return False
    if node.op_type == "Max" and any(_limits(user) == [0] for user in _users(node.inputs[0], "Min")):
        return False
    around = [_maker(node.inputs[0]), *(user for user, index in node.outputs[0].uses() if index == 0)]
    other = "Min" if node.op_type == "Max" else "Max"
    paired = any(
        neighbor is not None and neighbor.op_type == other and _limits(neighbor) != [None] for neighbor in around
    )
    return paired or (node.op_type == "Max" and _limits(node) == [0])


_LOGADDEXP = ("Abs", "Neg", "Exp", "Add", "Log", "Add", "Where")
"""The ops from d to ``where(isnan(d), a + b, max(a, b) + log(1 + exp(-abs(d))))``, d = a - b."""


def _is_in_logaddexp(node: ir.Node) -> bool:
    """Returns whether an Abs or a Max of JAX is in jnp.logaddexp, whose own derivative is smooth."""
    operand = node.inputs[0]
    differences = [_maker(operand)] if node.op_type == "Abs" else _users(operand, "Sub")
    return any(difference is not None and node in _kinks_of_logaddexp(difference) for difference in differences)


def _kinks_of_logaddexp(difference: ir.Node) -> list[ir.Node]:
    """Returns the Abs and the Max of the jnp.logaddexp that computes a difference; none of another node."""
    path = [difference]
    for op_type in _LOGADDEXP:
        users = _users(path[-1].outputs[0], op_type)
        if len(users) != 1:
            return []
        path += users
    operands, (*_, total, choice) = difference.inputs, path
    largest = [node for node in _makers(total) if node.op_type == "Max" and node.inputs == operands]
    sums = [node for node in _makers(choice) if node.op_type == "Add" and node.inputs == operands]
    return [path[1], *largest] if largest and sums else []


def _makers(node: ir.Node) -> list[ir.Node]:
    """Returns the nodes that compute the inputs of a node."""
    return [maker for value in node.inputs if (maker := _maker(value)) is not None]


def _users(value: ir.Value | None, op_type: str) -> list[ir.Node]:
    """Returns the nodes of an op that read a value."""
    return (
        [] if value is None else list(dict.fromkeys(user for user, _ in value.uses() if user.op_type == op_type))
    )
