"""Forward models of one or a few nodes, and what their gradients are checked against.

Every case is differentiated once, lowered to standard ONNX, and then, for several sizes of its symbolic dims:

- the lowered graph in float64 against central differences of the forward model in float64;
- the lowered graph on stock ONNX Runtime, in float, against itself in float64;
- ORT's own builder, where it is right, against that too; and its graph, lowered, on stock ONNX Runtime.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from onnx import helper

from bngrad.autodiff.training_graph import training_graph
from bngrad.oracle import prepare_forward
from bngrad.passes.pipeline import for_target
from bngrad.runtime import session
from bngrad.validation.float64 import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STEP = 1e-6
NUMERIC_LIMIT = 1e-6
"""Of a directional derivative, relative to the longest that it could be."""
FLOAT_LIMIT = 1e-5
"""Of float against float64, relative to the largest element."""
HALF_LIMIT = 4e-3
"""Of float16, the same."""


@dataclass(frozen=True, eq=False)
class Case:
    """A forward model that is differentiated."""

    name: str
    inputs: str
    """In ONNX's text form; ``float[N, 3] x, int64[N] labels``."""
    body: str
    """Nodes in the text form, of which y is the result; the loss is the sum of y times a random constant."""
    wrt: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)
    """What goes into the loss; several for a node with several outputs."""
    initializers: str = ""
    """In the text form, as ``float[3] w = {1, 2, 3}``."""
    dims: tuple[dict[str, int | tuple[int, ...]], ...] = ({"N": 2}, {"N": 3})
    """Numbers for the symbolic dimensions, and shapes of the inputs whose shape the model does not say."""
    draw: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(default_factory=dict)
    """How an input is drawn, if not from a normal distribution."""
    oracle: str = ""
    """Why ORT's builder is no oracle for it; empty where it is one."""
    opset: int = 18
    float_limit: float = FLOAT_LIMIT
    element: str = "float"
    """The type of the outputs and of the loss."""

    def __str__(self):
        return self.name

    @property
    def text(self):
        initializers = f"<{self.initializers}>" if self.initializers else ""
        outputs = ", ".join(f"{self.element} {name}" for name in self.outputs)
        return (
            f'<ir_version: 8, opset_import: ["" : {self.opset}, "com.microsoft" : 1]>\n'
            f"g ({self.inputs}) => ({outputs}) {initializers}\n"
            f"{{\n{self.body}\n}}"
        )


@cache
def forward(case: Case) -> onnx.ModelProto:
    """The case's model with its loss."""
    model = onnx.parser.parse_model(case.text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    types = {value.name: value for value in inferred.graph.output}
    graph = model.graph
    del graph.output[:]
    parts = []
    for name in case.outputs:
        weight = onnx.ValueInfoProto()
        weight.CopyFrom(types[name])
        weight.name = f"{name}_weight"
        graph.input.append(weight)
        graph.node.append(helper.make_node("Mul", [name, weight.name], [f"{name}_weighted"], name=f"weigh_{name}"))
        summed = f"{name}_sum"
        graph.node.append(
            helper.make_node("ReduceSum", [weight.name[:-7] + "_weighted"], [summed], keepdims=0, name=summed)
        )
        parts.append(summed)
    total = parts[0]
    for index, part in enumerate(parts[1:]):
        graph.node.append(helper.make_node("Add", [total, part], [f"total_{index}"], name=f"total_{index}"))
        total = f"total_{index}"
    graph.node.append(helper.make_node("Identity", [total], ["loss"], name="loss"))
    element = types[case.outputs[0]].type.tensor_type.elem_type
    graph.output.append(helper.make_tensor_value_info("loss", element, []))
    onnx.checker.check_model(model)
    return model


@cache
def lowered(case: Case) -> onnx.ModelProto:
    """The case's training graph, by our builder, in standard ONNX."""
    training, _ = training_graph(ir.from_proto(forward(case)), loss="loss", wrt=case.wrt)
    return in_standard_onnx(training)


def in_standard_onnx(training: ir.Model) -> onnx.ModelProto:
    """A training graph that stock ONNX Runtime runs; itself where it does already."""
    return ir.to_proto(for_target(training, target="stock", functions=True)[0])


def feeds_of(case: Case, dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a case, the weights of the loss among them."""
    rng = np.random.default_rng(zlib.crc32(repr((case.name, sorted(dims.items()))).encode()))
    model = forward(case)
    feeds = {}
    for value in model.graph.input:
        if value.name.endswith("_weight"):
            continue
        extents = value.type.tensor_type.shape.dim
        shape = dims.get(value.name, tuple(dims[d.dim_param] if d.dim_param else d.dim_value for d in extents))
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        draw = case.draw.get(value.name, lambda rng, shape: rng.standard_normal(shape))
        feeds[value.name] = np.asarray(draw(rng, shape)).astype(dtype)
    for name, y in evaluate(_forward_only(case), feeds, case.outputs).items():
        (weight,) = (value for value in model.graph.input if value.name == f"{name}_weight")
        dtype = helper.tensor_dtype_to_np_dtype(weight.type.tensor_type.elem_type)
        feeds[weight.name] = rng.standard_normal(y.shape).astype(dtype)
    return feeds


@cache
def _forward_only(case: Case) -> onnx.ModelProto:
    model = onnx.parser.parse_model(case.text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    return model


def check_against_differences(case: Case, dims: Mapping[str, int]) -> None:
    """The lowered graph in float64 against central differences of the forward model."""
    feeds = feeds_of(case, dims)
    names = [f"{name}_grad" for name in case.wrt]
    gradients = evaluate(lowered(case), feeds, names)
    rng = np.random.default_rng(7)
    for wrt, name in zip(case.wrt, names, strict=True):
        value = feeds[wrt].astype(np.float64)
        gradient = gradients[name]
        assert gradient.shape == value.shape
        for _ in range(3):
            direction = rng.standard_normal(value.shape)
            ahead, behind = (
                float(
                    np.squeeze(
                        evaluate(forward(case), {**feeds, wrt: value + sign * STEP * direction}, ["loss"])["loss"]
                    )
                )
                for sign in (1, -1)
            )
            want = (ahead - behind) / (2 * STEP)
            got = float(np.sum(gradient * direction))
            longest = np.linalg.norm(gradient) * np.linalg.norm(direction)
            assert abs(got - want) <= NUMERIC_LIMIT * max(longest, 1e-2, abs(ahead) * 1e-2), (wrt, got, want)


def check_on_stock(case: Case, dims: Mapping[str, int]) -> None:
    """The lowered graph on stock ONNX Runtime against itself in float64."""
    _compare(case, dims, lowered(case))


def check_in_float16(case: Case, dims: Mapping[str, int]) -> None:
    """The lowered graph of the model in float16 on stock ONNX Runtime against that in float64."""
    in_half = replace(case, inputs=case.inputs.replace("float[", "float16["), element="float16")
    feeds = {name: _half(array) for name, array in feeds_of(case, dims).items()}
    names = [f"{name}_grad" for name in case.wrt]
    exact = evaluate(lowered(case), {name: _single(array) for name, array in feeds.items()}, names)
    runner = session(lowered(in_half), "function", threads=1)
    given = {value.name for value in runner.get_inputs()}
    results = runner.run(names, {name: array for name, array in feeds.items() if name in given})
    for name, got in zip(names, results, strict=True):
        assert got.dtype == np.float16
        _close(replace(case, float_limit=HALF_LIMIT), name, got, exact[name])


def check_is_valid_in_bfloat16(case: Case) -> None:
    """The lowered graph of the model in bfloat16 passes onnx's checker; ONNX Runtime has few kernels to run it."""
    training = lowered(replace(case, inputs=case.inputs.replace("float[", "bfloat16["), element="bfloat16"))
    assert training.graph.output[-1].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def _half(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16) if array.dtype == np.float32 else array


def _single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float16 else array


def check_against_oracle(case: Case, dims: Mapping[str, int], oracle) -> None:
    """ORT's builder on ORT's kernels, and its graph lowered on stock ONNX Runtime, against ours in float64."""
    feeds = feeds_of(case, dims)
    prepared = prepare_forward(forward(case), "loss", case.wrt)
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt)
    names = [f"{name}_grad" for name in case.wrt]
    exact = evaluate(lowered(case), feeds, names)
    values = oracle.run(training, {**prepared.values, **feeds}, names)
    for name in names:
        _close(case, name, values[name], exact[name])
    _compare(case, dims, in_standard_onnx(ir.from_proto(training)), prepared.values)


def _compare(case: Case, dims, model: onnx.ModelProto, values=None) -> None:
    feeds = feeds_of(case, dims)
    names = [f"{name}_grad" for name in case.wrt]
    exact = evaluate(lowered(case), feeds, names)
    runner = session(model, "function", threads=1)
    given = {value.name for value in runner.get_inputs()} | {v.name for v in runner.get_overridable_initializers()}
    results = runner.run(
        names, {name: array for name, array in {**(values or {}), **feeds}.items() if name in given}
    )
    for name, got in zip(names, results, strict=True):
        _close(case, name, got, exact[name])


def _close(case: Case, name: str, got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape, name
    error = float(np.max(np.abs(got - want), initial=0.0))
    assert error <= case.float_limit * max(float(np.max(np.abs(want), initial=0.0)), 1e-30), name
