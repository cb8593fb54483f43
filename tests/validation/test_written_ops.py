"""Every op that the package itself writes into models can be evaluated in float64."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx
import pytest

import bngrad
from bngrad.opset.functions import FUNCTIONS as OWN
from bngrad.opset.functions import NEWEST_OPSET
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.validation.float64 import is_in_evaluator
from bngrad.validation.training_ops import FUNCTIONS

WRITERS = ("autodiff", "functional", "graph", "passes", "training")
"""The packages whose models `validate` takes."""

MAKERS = {"op": "", "microsoft": MICROSOFT, "bngrad": "bngrad", "outputs_of": ""}
DOMAINS = {"MICROSOFT": MICROSOFT, "DOMAIN": "bngrad"}

REFERENCE_NEWEST = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())


def written_ops():
    """(Domain, op type) of each node whose maker is called with a literal op type."""
    package = Path(bngrad.__file__).parent
    for path in [path for name in WRITERS for path in sorted((package / name).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Attribute(attr=maker), [ast.Constant(str(op_type)), *_]) if maker in MAKERS:
                    domains = [DOMAINS[ast.unparse(k.value)] for k in node.keywords if k.arg == "domain"]
                    yield (domains or [MAKERS[maker]])[0], op_type


WRITTEN = sorted(set(written_ops()))


def test_the_list_has_ops_of_every_domain():
    assert {("", "Conv"), (MICROSOFT, "FusedMatMul"), ("bngrad", "BatchNormalizationTraining")} <= set(WRITTEN)


@pytest.mark.parametrize(("domain", "op_type"), WRITTEN, ids=[f"{d or 'ai.onnx'}.{name}" for d, name in WRITTEN])
def test_a_written_op_is_known(domain, op_type):
    has_function = (domain, op_type) in FUNCTIONS or (domain == "bngrad" and op_type in OWN)
    assert has_function or (domain == "" and is_in_evaluator(op_type, REFERENCE_NEWEST))


DEPTHWISE = """<ir_version: 8, opset_import: ["" : 15]>
    g (float[3,4,5,5] x, float[4,1,3,3] w, float[4] s, float[4] b, float[4] m, float[4] v) => (float loss) {
      c = Conv <group = 4, pads = [1, 1, 1, 1]> (x, w)
      y, m1, v1 = BatchNormalization <training_mode = 1> (c, s, b, m, v)
      r = Tanh (y)  loss = ReduceMean <keepdims = 0> (r) }"""


@pytest.mark.parametrize("target", ["stock", "ort"])
@pytest.mark.parametrize("rewritten", [False, True], ids=["differentiated", "rewritten"])
def test_a_graph_whose_functions_call_other_ops_is_compared_with_differences(target, rewritten):
    graph = bngrad.differentiate(onnx.parser.parse_model(DEPTHWISE), wrt=["x", "w", "s"], target=target)
    graph = bngrad.rewrite(graph) if rewritten else graph
    report = bngrad.validate(graph, against="numeric", implementation="function")
    assert report.passed, report.reason
    assert {row.tensor for check in report.checks for row in check.rows} >= {"x_grad", "w_grad", "s_grad"}
