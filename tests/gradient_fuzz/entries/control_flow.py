"""If, Loop and Scan with random bodies, which read values around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from gradient_fuzz.interpreter import with_bodies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradient_fuzz.sketch import Sketch, Value

    Named = tuple[str, tuple[int, ...]]
    """A value of a body: its name and shape."""

_UNARY = ("Tanh", "Sin", "Sigmoid", "Neg", "Identity", "Softplus", "Abs")
_BINARY = ("Add", "Sub", "Mul", "Max")


class _Body:
    """A body that is being drawn."""

    def __init__(self, b: Sketch, inputs: Sequence[Named] = ()) -> None:
        self.b = b
        self.inputs = list(inputs)
        self.values = list(inputs)
        self.nodes: list[onnx.NodeProto] = []
        self.captured: list[Value] = []

    def emit(self, op_type: str, shape: Sequence[int], *names: str, **attributes: object) -> Named:
        output = self.b.fresh("i")
        self.nodes.append(helper.make_node(op_type, names, [output], name=self.b.fresh("n"), **attributes))
        self.values.append((output, tuple(shape)))
        return self.values[-1]

    def around(self, shape: Sequence[int]) -> str:
        """Returns the name of a value around the body that broadcasts to a shape."""
        value = self.b.of_shape(self.b.broadcast_to(shape))
        self.captured.append(value)
        return value.name

    def of_shape(self, shape: tuple[int, ...], least: int = 1) -> str:
        """Returns the name of a new value of a shape, from one to four nodes."""
        draw = self.b.draw
        fitting = [name for name, own in self.values if own == shape]
        name = draw.choice(fitting) if fitting else self._expanded(shape)
        for _ in range(draw.randint(least, 4)):
            if draw.chance(0.4):
                name, _ = self.emit(draw.choice(_UNARY), shape, name)
            else:
                fitting = [own for own, size in self.values if size == shape]
                other = draw.choice(fitting) if fitting and draw.chance(0.6) else self.around(shape)
                name, _ = self.emit(draw.choice(_BINARY), shape, name, other)
        return name

    def _expanded(self, shape: tuple[int, ...]) -> str:
        value = self.b.of_shape(shape)
        self.captured.append(value)
        return self.emit("Identity", shape, value.name)[0]

    def graph(self, outputs: Sequence[str], others: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:
        """Returns the body; its inputs are typed, and sometimes have a shape.

        The outputs have theirs, since those of a Loop without any step follow from them.
        """
        element, untyped = self.b.element, self.b.draw.chance(0.4)
        inputs = [
            helper.make_tensor_value_info(name, element, None if untyped else shape) for name, shape in self.inputs
        ]
        shapes = dict(self.values)
        results = [helper.make_tensor_value_info(name, element, shapes[name]) for name in outputs]
        return helper.make_graph(self.nodes, self.b.fresh("body"), [*others, *inputs], results)


def _emit(
    b: Sketch,
    op_type: str,
    inputs: Sequence[Value | None],
    bodies: Sequence[_Body],
    outputs: int,
    **attributes: object,
) -> list[Value]:
    captured = [value for body in bodies for value in body.captured]
    around = {value.name: value.array for value in captured}
    return b.emit(
        op_type,
        inputs,
        outputs,
        captured=captured,
        function=lambda node, arrays: with_bodies(node, arrays, around, b.opset),
        **attributes,
    )


def _condition(b: Sketch) -> Value:
    value = b.any()
    top = b.reduce("ReduceMax", value, range(value.rank), keepdims=0) if value.rank else value
    return b.one("Greater", top, b.scalar(b.draw.choice([-0.5, 0.0, 0.5])))


def if_(b: Sketch) -> list[Value]:
    shapes = [b.dims(b.draw.randint(0, 3)) for _ in range(b.draw.choice([1, 1, 2]))]
    bodies = [_Body(b), _Body(b)]
    graphs = [body.graph([body.of_shape(shape) for shape in shapes]) for body in bodies]
    branches = dict(zip(("then_branch", "else_branch"), graphs, strict=True))
    return _emit(b, "If", [_condition(b)], bodies, len(shapes), **branches)


def scan(b: Sketch) -> list[Value]:
    draw = b.draw
    steps = draw.randint(1, 4)  # ONNX Runtime runs none without a step
    states = [b.of_shape(b.dims(draw.randint(0, 3))) for _ in range(draw.choice([0, 1, 1, 2]))]
    shapes = [b.dims(draw.randint(0, 2)) for _ in range(draw.choice([1, 1, 2]))]
    axes = [draw.randint(0, len(shape)) for shape in shapes]
    sequences = [
        b.of_shape((*shape[:axis], steps, *shape[axis:])) for shape, axis in zip(shapes, axes, strict=True)
    ]
    inner = [(b.fresh("s"), shape) for shape in (*(state.shape for state in states), *shapes)]
    body = _Body(b, inner)
    results = [body.of_shape(state.shape) for state in states]
    elements = [b.dims(draw.randint(0, 2)) for _ in range(draw.choice([0, 1, 2]) if states else 1)]
    results += [body.of_shape(shape) for shape in elements]
    out_axes = [draw.randint(0, len(shape)) for shape in elements]
    return _emit(
        b,
        "Scan",
        [*states, *sequences],
        [body],
        len(results),
        body=body.graph(results),
        num_scan_inputs=len(sequences),
        scan_input_axes=b.maybe(axes) if not any(axes) else axes,
        scan_input_directions=b.maybe([draw.choice([0, 1]) for _ in sequences]),
        scan_output_axes=(b.maybe(out_axes) if not any(out_axes) else out_axes) or None,
        scan_output_directions=b.maybe([draw.choice([0, 1]) for _ in elements]) or None,
    )


def loop(b: Sketch) -> list[Value]:
    draw = b.draw
    states = [b.of_shape(b.dims(draw.randint(0, 3))) for _ in range(draw.choice([0, 1, 1, 2]))]
    body = _Body(b, [(b.fresh("s"), state.shape) for state in states])
    step, goes_on = b.fresh("s"), b.fresh("s")
    if draw.chance(0.5):
        body.emit("Cast", (), step, to=b.element)
    results = [body.of_shape(state.shape) for state in states]
    elements = [b.dims(draw.randint(0, 2)) for _ in range(draw.choice([0, 1, 2]) if states else 1)]
    results += [body.of_shape(shape) for shape in elements]
    limit = b.constant(np.int64(draw.randint(0, 3))) if draw.chance(0.8) else None
    last = b.fresh("c")
    tensor = helper.make_tensor(last, onnx.TensorProto.INT64, [], [draw.randint(0, 3) if limit is None else 9])
    body.emit("Constant", (), value=tensor)
    following = body.emit("Less", (), step, body.values[-1][0])[0]
    counters = [
        helper.make_tensor_value_info(name, element, [])
        for name, element in ((step, onnx.TensorProto.INT64), (goes_on, onnx.TensorProto.BOOL))
    ]
    graph = body.graph(results, counters)
    graph.output.insert(0, helper.make_tensor_value_info(following, onnx.TensorProto.BOOL, []))
    condition = _condition(b) if draw.chance(0.2) else None
    if not states and condition is None:
        condition = b.constant(np.bool_(True), onnx.TensorProto.BOOL)
    return _emit(b, "Loop", [limit, condition, *states], [body], len(results), body=graph)


ENTRIES = {("", "If"): if_, ("", "Loop"): loop, ("", "Scan"): scan}
