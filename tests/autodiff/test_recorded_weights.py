"""The default weights of a file that records which initializers are parameters, and of one-hot labels."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from autodiff.small_models import model, summed
from bngrad.autodiff.weights import default_weights

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
W, T, C = "float[2] w = {1, 2}", "float[2] t = {1, 3}", "float[2, 2] val_7 = {1, 2, 3, 4}"


def parse(body, initializers, kinds, folded=None):
    forward = ir.from_proto(summed("float[N, 2] x", body, initializers=initializers))
    if kinds:
        lines = [f"p{i}: {kind} target='{name}'" for i, (name, kind) in enumerate(kinds.items())]
        forward.graph.metadata_props[SIGNATURE] = "\n".join(["# inputs", *lines, "# outputs", "loss: USER_OUTPUT"])
    for name, names in (folded or {}).items():
        forward.graph.initializers[name].metadata_props[FOLDED_FROM] = str(names)
    return forward.graph


BOTH = "a = Mul (x, w) y = Add (a, t)"
TIMES = "a = Mul (x, w) y = MatMul (a, val_7)"
P, B, K = "PARAMETER", "BUFFER", "CONSTANT_TENSOR"
WEIGHTS = {
    "two parameters": (parse(BOTH, f"{W}, {T}", {"w": P, "t": P}), ["w", "t"]),
    "a buffer": (parse(BOTH, f"{W}, {T}", {"w": P, "t": B}), ["w"]),
    "a constant tensor": (parse(BOTH, f"{W}, {T}", {"w": P, "t": K}), ["w"]),
    "a constant of the exporter": (parse(BOTH, f"{W}, {T}", {"w": P}), ["w"]),
    "an exponent that is a parameter": (parse("y = Pow (x, w)", W, {"w": P}), ["w"]),
    "made of a parameter": (
        parse(BOTH, f"{W}, {T}", {"w": P, "gamma": P}, {"t": ["gamma", "val_1"]}),
        ["w", "t"],
    ),
    "made of a buffer": (parse(BOTH, f"{W}, {T}", {"w": P, "pe": B}, {"t": ["pe"]}), ["w"]),
    "in the place of a lost parameter": (parse(TIMES, f"{W}, {C}", {"w": P, "lost": P}), ["w", "val_7"]),
    "in the place of none": (parse(TIMES, f"{W}, {C}", {"w": P}), ["w"]),
    "a record of another model": (parse(BOTH, f"{W}, {T}", {"other": P}), ["w", "t"]),
    "no record": (parse(BOTH, f"{W}, {T}", {}), ["w", "t"]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_a_record(name):
    graph, want = WEIGHTS[name]
    assert [value.name for value in default_weights(graph)] == want


LABELS = "h = MatMul (x, w) o = OneHot <axis = -1> (t, depth, values) d = Sub (h, o) y = Mul (d, d)"
JOINED = "a = Unsqueeze (off, z) b = Unsqueeze (on, z) values = Concat <axis = 0> (a, b)"
GIVEN = "float[2, 3] w = {1, 2, 3, 4, 5, 6}, int64 depth = {3}"
ONE_HOT = {
    "a vector": (LABELS, "float[2] values = {0, 1}"),
    "cast": (f"values = Cast <to = 1> (v) {LABELS}", "double[2] v = {0, 1}"),
    "off and on": (f"{JOINED} {LABELS}", "float on = {1}, float off = {0}, int64[1] z = {0}"),
    "label smoothing": (f"{JOINED} {LABELS}", "float on = {0.9}, float off = {0.05}, int64[1] z = {0}"),
}


@pytest.mark.parametrize("how", ONE_HOT)
def test_values_of_one_hot_labels_are_no_weights(how):
    body, initializers = ONE_HOT[how]
    forward = summed("float[N, 2] x, int64[N] t", body, initializers=f"{GIVEN}, {initializers}")
    assert [value.name for value in default_weights(ir.from_proto(forward).graph)] == ["w"]


def test_what_is_joined_and_read_elsewhere_is_a_weight():
    body = f"{JOINED} {LABELS.replace('y =', 'q =')} s = ReduceSum (values) y = Mul (q, s)"
    forward = model(
        "float[N, 2] x, int64[N] t",
        f"{body} loss = ReduceSum <keepdims = 0> (y)",
        initializers=f"{GIVEN}, float on = {{1}}, float off = {{0}}, int64[1] z = {{0}}",
    )
    onnx.checker.check_model(forward)
    assert {value.name for value in default_weights(ir.from_proto(forward).graph)} == {"w", "on", "off"}
