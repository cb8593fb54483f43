"""Forward models of one or a few nodes, their training graphs, and their feeds."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

from bngrad.autodiff.training_graph import training_graph
from bngrad.passes.pipeline import for_target
from bngrad.validation.float64 import Evaluator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Dims = Mapping[str, int | tuple[int, ...]]
    """Numbers for the symbolic dimensions, and shapes of the inputs whose shape the model does not say."""

NO_RULE = "ORT's builder has no rule for it"
SYMBOLS = "ORT's builder takes dimensions of different names for equal"
FLOAT_ALONE = "ORT's builder differentiates float alone"
"""Reasons why it is no oracle, which several tables give."""


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
    """The values that the loss reads; several for a node with several outputs."""
    initializers: str = ""
    """In the text form, as ``float[3] w = {1, 2, 3}``."""
    dims: tuple[Dims, ...] = ({"N": 2}, {"N": 3})
    draw: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = field(default_factory=dict)
    """The draws of inputs by name; other inputs are drawn from a normal distribution."""
    oracle: str = ""
    """The reason why ORT's builder is not an oracle for it; empty where it is one."""
    opset: int = 18
    float_limit: float = 1e-5
    """The largest difference of float and float64, relative to the largest element."""
    element: str = "float"
    """The type of the outputs and of the loss."""
    is_long: bool = False
    """True if only `make test-long` runs it, since other cases have every two of its properties."""

    def __str__(self):
        return self.name

    @property
    def gradients(self):
        """The names of the gradients in the training graph."""
        return [f"{name}_grad" for name in self.wrt]

    @property
    def text(self):
        initializers = f"<{self.initializers}>" if self.initializers else ""
        outputs = ", ".join(f"{self.element} {name}" for name in self.outputs)
        return (
            f'<ir_version: 8, opset_import: ["" : {self.opset}, "com.microsoft" : 1]>\n'
            f"g ({self.inputs}) => ({outputs}) {initializers}\n"
            f"{{\n{self.body}\n}}"
        )


def positive(rng, shape):
    """A draw of numbers away from 0."""
    return rng.uniform(0.5, 2, shape)


@dataclass(frozen=True)
class Between:
    """A draw of numbers between two; campaigns of random graphs stay there too."""

    low: float
    high: float

    def __call__(self, rng, shape):
        return rng.uniform(self.low, self.high, shape)


def fixed(*numbers):
    """Draws these numbers."""
    return lambda _rng, _shape: numbers


def every(**tables: Sequence[Case]) -> pytest.MarkDecorator:
    """Parametrizes a test with every case of some tables."""
    assert all(tables.values()), "a table has no cases"
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=f"{table}: {case}", marks=[pytest.mark.long] * case.is_long)
            for table, cases in tables.items()
            for case in cases
        ],
    )


@cache
def written(case: Case) -> onnx.ModelProto:
    """The case's model as its text has it, with names for the nodes."""
    model = onnx.parser.parse_model(case.text)
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{index}"
    return model


@cache
def forward(case: Case) -> onnx.ModelProto:
    """The case's model with its loss."""
    model = onnx.ModelProto()
    model.CopyFrom(written(case))
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
        weighted, summed = f"{name}_weighted", f"{name}_sum"
        graph.node.append(helper.make_node("Mul", [name, weight.name], [weighted], name=f"weigh_{name}"))
        graph.node.append(helper.make_node("ReduceSum", [weighted], [summed], keepdims=0, name=summed))
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


@lru_cache(maxsize=1)
def forward_evaluator(case: Case) -> Evaluator:
    """Evaluates the case's model with its loss in float64."""
    return Evaluator(forward(case))


def differentiated(case: Case) -> ir.Model:
    """The case's training graph, by our builder."""
    return training_graph(ir.from_proto(forward(case)), loss="loss", wrt=case.wrt).model


@cache
def lowered(case: Case) -> onnx.ModelProto:
    """The case's training graph, by our builder, in standard ONNX."""
    return in_standard_onnx(differentiated(case))


def in_standard_onnx(training: ir.Model) -> onnx.ModelProto:
    """A training graph that stock ONNX Runtime runs; itself where it does already."""
    return ir.to_proto(for_target(training, target="stock", functions=True)[0])


def feeds_of(case: Case, dims: Dims) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a case, the weights of the loss among them."""
    rng = np.random.default_rng(zlib.crc32(repr((case.name, sorted(dims.items()))).encode()))
    feeds = inputs_of(case, dims, rng)
    inputs = {value.name: value for value in forward(case).graph.input}
    no_weights = {f"{name}_weight": np.zeros([]) for name in case.outputs}
    for name, y in forward_evaluator(case)({**feeds, **no_weights}, case.outputs).items():
        weight = inputs[f"{name}_weight"]
        feeds[weight.name] = rng.standard_normal(y.shape).astype(_dtype(weight))
    return feeds


def inputs_of(case: Case, dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays for the inputs of only a case."""
    feeds = {}
    for value in written(case).graph.input:
        extents = value.type.tensor_type.shape.dim
        shape = dims.get(value.name, tuple(dims[d.dim_param] if d.dim_param else d.dim_value for d in extents))
        draw = case.draw.get(value.name, lambda rng, shape: rng.standard_normal(shape))
        feeds[value.name] = (np.zeros(shape) if 0 in shape else np.asarray(draw(rng, shape))).astype(_dtype(value))
    return feeds


def _dtype(value: onnx.ValueInfoProto) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
