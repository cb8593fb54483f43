"""The models to mutate: forward models of every op, and training graphs of every dialect.

They come from the test tables of the gradient rules, from the documentation of other systems' nodes, and from
`STRUCTURES`, which adds control flow, functions and old opsets.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, NamedTuple

import onnx
import onnx_ir as ir

import autodiff.cases
from autodiff.gradient_cases import differentiated, forward
from bngrad.autodiff.training_graph import training_graph
from bngrad.training.differentiate import differentiate
from oracle.oracle_cases import CNN

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

DOCUMENTS = Path(__file__).parents[2] / "docs" / "reference" / "dialects"
PARAMETERS = "float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] m = {0, 0, 1}, float[3] v = {1, 2, 3}"
BATCH_NORM = "y, m2, v2 = BatchNormalization <training_mode = 1> (x, s, b, m, v)"
LOSS = "loss = ReduceMean <keepdims = 0> (z)"


class Seed(NamedTuple):
    """A valid model."""

    name: str
    content: bytes
    """The serialized model."""
    weights: dict[str, np.ndarray]
    """The weights for `finalize`."""


def _forward(body, *, header='<ir_version: 8, opset_import: ["" : 17]>', inputs="float[N,3,2,2] x", after=""):
    return f"{header} g ({inputs}) => (float loss) <{PARAMETERS}> {{ {body} }} {after}"


STRUCTURES = {
    "an-old-opset": _forward(
        f"y, m2, v2, m3, v3 = BatchNormalization (x, s, b, m, v) z = Relu(y) {LOSS}",
        header='<ir_version: 3, opset_import: ["" : 9]>',
        inputs="float[N,3,2,2] x, float[3] s, float[3] b, float[3] m, float[3] v",
    ),
    "opset-13": _forward(
        f"y = BatchNormalization (x, s, b, m, v) h = Relu(y) z = Dropout(h) {LOSS}",
        header='<ir_version: 7, opset_import: ["" : 13]>',
    ),
    "the-newest-opset": _forward(
        f"{BATCH_NORM} z = Gelu(y) {LOSS}", header='<ir_version: 10, opset_import: ["" : 23]>'
    ),
    "branches": _forward(
        f"""{BATCH_NORM} z = If(c) <then_branch = t () => (float[N,3,2,2] p) {{ p = Relu(y) }},
            else_branch = e () => (float[N,3,2,2] q) <float k = {{2}}> {{ q = Mul(y, k) }}> {LOSS}""",
        inputs="float[N,3,2,2] x, bool c",
    ),
    "a-loop": _forward(
        f"""{BATCH_NORM} n = Constant <value = int64 {{3}}> () c = Constant <value = bool {{1}}> ()
            z = Loop (n, c, y) <body = l (int64 i, bool ci, float[N,3,2,2] a) => (bool co, float[N,3,2,2] d)
                {{ co = Identity(ci) d = Neg(a) }}> {LOSS}"""
    ),
    "a-scan": _forward(
        f"""{BATCH_NORM} z = Scan <num_scan_inputs = 1, body = k (float[3,2,2] e) => (float[3,2,2] f)
                {{ f = Tanh(e) }}> (y) {LOSS}"""
    ),
    "functions": _forward(
        f"y = local.Norm(x, s, b, m, v) z = local.Twice(y) {LOSS}",
        header='<ir_version: 8, opset_import: ["" : 17, "local" : 1]>',
        after="""<domain: "local", opset_import: ["" : 17]> Norm (x, s, b, m, v) => (y)
            { y, m2, v2 = BatchNormalization <training_mode = 1> (x, s, b, m, v) }
            <domain: "local", opset_import: ["" : 17, "local" : 1]> Twice (a) => (c)
            { h = local.Once(a) c = local.Once(h) }
            <domain: "local", opset_import: ["" : 17]> Once (a) => (c) { c = Relu(a) }""",
    ),
    "ort-in-a-function": """<ir_version: 8, opset_import: ["" : 17, "local" : 1, "com.microsoft" : 1]>
        g (float[N,3,4] dy, float[N,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3,4] dx)
        { dx = local.Step(dy, x, s, b, m, v) }
        <domain: "local", opset_import: ["" : 17, "com.microsoft" : 1]> Step (dy, x, s, b, m, v) => (dx) {
            y, m2, v2, sm, si = com.microsoft.BatchNormInternal <epsilon = 0.001> (x, s, b, m, v)
            r = com.microsoft.ReluGrad(dy, y)
            dx, ds, db = com.microsoft.BatchNormalizationGrad <epsilon = 0.001> (r, x, s, sm, si)
        }""",
    "ort-in-a-branch": """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (bool c, float[N,3,4] dy, float[N,3,4] x, float[3] s, float[3] m, float[3] v) => (float[N,3,4] dx) {
            dx = If(c) <then_branch = t () => (float[N,3,4] p) {
                p, ds, db = com.microsoft.BatchNormalizationGrad <epsilon = 0.001> (dy, x, s, m, v) },
            else_branch = e () => (float[N,3,4] q) { q = com.microsoft.ReluGrad(dy, x) }>
        }""",
    "second-order": """<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
        g (float[2,4,3] x, float[3] s, float[3] o, float[2,4,3] dy) => (float[2,4,3] y, float[2,4,3] dx) {
            y, bm, bv, sm, sv, r = tf.FusedBatchNormV3 <epsilon = 0.001, data_format = "NHWC"> (x, s, o, , )
            dx, ds, d_o, u, w = tf.FusedBatchNormGradV3 <epsilon = 0.001, data_format = "NHWC">
                (dy, x, s, sm, sv, r)
        }""",
}


@cache
def seeds() -> dict[str, list[Callable[[], Seed]]]:
    """Returns a function for each seed, which builds it once; `cases.SHARES` has the frequencies of the groups."""
    cases = [case for table in _tables() for case in table.CASES]
    examples = {
        f"{path.stem} {number}": text
        for path in sorted(DOCUMENTS.glob("*.md"))
        for number, text in enumerate(re.findall(r"```\w+\n(<ir_version.*?)```", path.read_text(), re.DOTALL))
    }
    nets = {"cnn": CNN, **STRUCTURES}
    return {
        "op": [_seed(str(case), partial(forward, case)) for case in cases],
        "gradient": [_seed(f"the gradient of {case}", partial(_gradient, case)) for case in cases],
        "net": [_seed(name, partial(onnx.parser.parse_model, text)) for name, text in nets.items()],
        "training": [
            *(_seed(f"cnn for {target}", partial(_cnn, target)) for target in ("stock", "training", "ort")),
            _seed("frozen cnn", _frozen_cnn),
        ],
        "dialect": [_seed(name, partial(onnx.parser.parse_model, text)) for name, text in examples.items()],
    }


def _tables():
    names = sorted(module.name for module in iter_modules(autodiff.cases.__path__))
    return [import_module(f"autodiff.cases.{name}") for name in names]


def _gradient(case):
    return ir.to_proto(differentiated(case))


def _cnn(target):
    return ir.to_proto(differentiate(_parsed_cnn(), target=target).model)


def _frozen_cnn():
    return ir.to_proto(training_graph(_parsed_cnn(), frozen=["*"]).model)


def _parsed_cnn():
    return ir.from_proto(onnx.parser.parse_model(CNN))


def _seed(name: str, build: Callable[[], onnx.ModelProto]) -> Callable[[], Seed]:
    @cache
    def seed() -> Seed:
        model = build()
        floats = [i for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
        return Seed(name, model.SerializeToString(), {i.name: onnx.numpy_helper.to_array(i) for i in floats})

    return seed
