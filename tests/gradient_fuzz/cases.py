"""One case of a campaign: a forward model with a scalar loss, drawn from a seed and a number."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import helper

from bngrad.autodiff.rules import RULES
from fuzz.draw import Draw
from gradient_fuzz.entries import ENTRIES
from gradient_fuzz.interpreter import read_names
from gradient_fuzz.sketch import NotDrawableError, Sketch, Value, first_opsets, numpy_type, tensor_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

OLDEST, NEWEST = 11, onnx.defs.onnx_opset_version()
ELEMENTS = {
    onnx.TensorProto.FLOAT: 0.40,
    onnx.TensorProto.DOUBLE: 0.45,
    onnx.TensorProto.FLOAT16: 0.11,
    onnx.TensorProto.BFLOAT16: 0.04,
}
TRIALS = 40
IR_VERSION = 10


@dataclass(frozen=True, eq=False)
class Case:
    """A forward model that is differentiated, and its feeds."""

    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    """The values of the graph inputs, in their types."""
    wrt: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    focus: tuple[str, str] = ("", "")
    """The rule that it was made for."""
    story: str = ""
    seed: int = field(default=0, compare=False)

    @property
    def element(self) -> int:
        """The type of the loss."""
        (loss,) = (value for value in self.model.graph.output if value.name == "loss")
        return loss.type.tensor_type.elem_type

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Arrays of all variables of the loss, and of the other inputs."""
        initializers = {t.name: onnx.numpy_helper.to_array(t) for t in self.model.graph.initializer}
        return {**{name: initializers[name] for name in self.wrt if name in initializers}, **self.feeds}


class Made(NamedTuple):
    """A sketch and what was drawn in it."""

    sketch: Sketch
    outputs: list[Value]
    """The outputs of the node that the graph was made for."""


SECOND_ORDER = {("bngrad", f"BatchNormalization{name}") for name in ("Grad", "ReluGrad", "Statistics")}
SECOND_ORDER |= {("bngrad", "MaxPoolInputGrad")}
"""The rules of gradient ops, for second derivatives; tests/functional has them."""
_BY_CONVENTION = {("", "DynamicQuantizeLinear")}
"""The rules whose gradients differences do not show; tests/autodiff/test_straight_through.py has them."""


def rules() -> list[tuple[str, str]]:
    """The rules in a fixed order: a case's number determines the rule that it is made for."""
    return sorted(RULES.keys() - SECOND_ORDER - _BY_CONVENTION)


def make(campaign: int, index: int, focus: tuple[str, str] | None = None, element: int | None = None) -> Case:
    """Makes the case of a number, by default for the rule that the number determines."""
    draw = Draw("gradient", campaign, index)
    focus = focus or rules()[index % len(rules())]
    for _ in range(TRIALS):
        try:
            return _case(draw, focus, element)
        except NotDrawableError:
            continue
    raise NotDrawableError(f"{focus[1]}: nothing in {TRIALS} trials")


def _case(draw: Draw, focus: tuple[str, str], element: int | None) -> Case:
    element = element or draw.choices(list(ELEMENTS), list(ELEMENTS.values()))[0]
    first = _first_opset(focus)
    opset = draw.randint(OLDEST, 17) if draw.chance(0.2) else draw.randint(18, NEWEST)
    sketch = Sketch(draw, max(opset, first), element)
    sketch.empty = draw.chance(0.06)
    sketch.singular = draw.chance(0.06)
    others = [key for key in ENTRIES if _first_opset(key) <= sketch.opset]
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        _try(sketch, draw.choice(others))
    outputs = ENTRIES[focus](sketch)
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        _try(sketch, draw.choice(others))
    moving = [value for value in outputs if value.moving and value.type == element]
    return _with_loss(sketch, moving, focus)


def _try(sketch: Sketch, key: tuple[str, str]) -> None:
    """Adds a node if it can be; what was added for it stays."""
    with suppress(NotDrawableError):
        ENTRIES[key](sketch)


@cache
def _first_opset(key: tuple[str, str]) -> int:
    domain, op_type = key
    return 14 if key == ("com.microsoft", "BatchNormInternal") else first_opsets().get((domain, op_type), OLDEST)


def _with_loss(sketch: Sketch, focus_outputs: list[Value], focus: tuple[str, str]) -> Case:
    draw = sketch.draw
    operands = {name for node in sketch.nodes for name in node.input}
    ends = [
        value for value in sketch.values if value.moving and value.name not in operands and value.name[0] == "v"
    ]
    chosen = [value for value in focus_outputs if draw.chance(0.85)] or focus_outputs[:1]
    chosen += [value for value in ends if value not in chosen and draw.chance(0.7)]
    chosen += [value for value in sketch.values if value.moving and value not in chosen and draw.chance(0.05)]
    if not chosen:
        raise NotDrawableError("nothing moves")
    total: Value | None = None
    for value in chosen[:6]:
        term = _term(sketch, value)
        total = term if total is None else sketch.one("Add", total, term)
    sketch.nodes.append(helper.make_node("Identity", [total.name], ["loss"], name="loss"))
    leaves = [value for value in (*sketch.inputs, *sketch.initializers) if value.moving]
    reaching = _ancestors(sketch.nodes, {"loss"})
    leaves = [value for value in leaves if value.name in reaching]
    wrt = [value.name for value in leaves if draw.chance(0.8)] or [value.name for value in leaves[:1]]
    if not wrt:
        raise NotDrawableError("nothing to differentiate by")
    model = _model(sketch)
    feeds = {value.name: value.array.astype(numpy_type(value.type)) for value in sketch.inputs}
    story = f"{focus[1]} {onnx.TensorProto.DataType.Name(sketch.element).lower()} opset {sketch.opset}"
    return Case(model, feeds, tuple(wrt), tuple(sketch.frozen), tuple(sketch.training), focus, story)


def _term(sketch: Sketch, value: Value) -> Value:
    """A scalar: a sum with random weights, or of squares."""
    if value.array.size and sketch.draw.chance(0.15):
        value = sketch.one("Mul", value, value)
    if value.rank == 0:
        return sketch.one("Mul", value, sketch.constant(sketch.numbers(()), sketch.element))
    weights = sketch.constant(sketch.numbers(value.shape), sketch.element)
    return sketch.one("ReduceSum", sketch.one("Mul", value, weights), keepdims=0)


def _ancestors(nodes: list[onnx.NodeProto], names: set[str]) -> set[str]:
    """The names of the values that some values are computed from, and their own."""
    ancestors = set(names)
    for node in reversed(nodes):
        if ancestors.intersection(node.output):
            ancestors |= read_names(node)
    return ancestors


def _model(sketch: Sketch) -> onnx.ModelProto:
    draw = sketch.draw
    reaching = _ancestors(sketch.nodes, {"loss"})
    nodes = [node for node in sketch.nodes if reaching.intersection(node.output)]
    kept = {name for node in nodes for name in node.output}
    sketch.inputs = [value for value in sketch.inputs if value.name in reaching]
    sketch.initializers = [value for value in sketch.initializers if value.name in reaching]
    sketch.frozen = [name for name in sketch.frozen if any(node.name == name for node in nodes)]
    sketch.training = [name for name in sketch.training if any(node.name == name for node in nodes)]
    style = draw.choices(["static", "symbols", "unknown"], [0.5, 0.4, 0.1])[0]
    symbols: dict[int, str] = {}

    def declared(size: int) -> int | str | None:
        if style == "static" or draw.chance(0.4):
            return size
        if style == "unknown":
            return None
        return symbols.setdefault(size, f"D{size}") if draw.chance(0.8) else f"E{size}_{draw.randrange(2)}"

    inputs = [
        helper.make_tensor_value_info(value.name, value.type, [declared(size) for size in value.shape])
        for value in sketch.inputs
    ]
    outputs = [helper.make_tensor_value_info("loss", sketch.element, [])]
    running = [
        helper.make_tensor_value_info(value.name, value.type, list(value.shape))
        for value in sketch.values
        if value.name in kept and value.name[0] == "v" and draw.chance(0.05)
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [*outputs, *running], [tensor_of(value) for value in sketch.initializers]
    )
    imports = [
        helper.make_opsetid("", sketch.opset),
        *(helper.make_opsetid(name, 1) for name in ("com.microsoft", "bngrad")),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def on_the_way(case: Case) -> Counter[tuple[str, str]]:
    """Returns the number of nodes of each rule between the variables and the loss."""
    graph = case.model.graph
    reaching = _ancestors(list(graph.node), {"loss"})
    moving, counts = set(case.wrt), Counter()
    for node in graph.node:
        if moving & read_names(node) and reaching.intersection(node.output):
            moving.update(node.output)
            counts[_rule_of(case, node)] += 1
    return counts


def _rule_of(case: Case, node: onnx.NodeProto) -> tuple[str, str]:
    if node.op_type != "BatchNormalization":
        return (node.domain, node.op_type)
    written = any(a.name == "training_mode" and a.i for a in node.attribute)
    training = (written or node.name in case.training) and node.name not in case.frozen
    return ("com.microsoft", "BatchNormInternal") if training else ("", "BatchNormalization")
