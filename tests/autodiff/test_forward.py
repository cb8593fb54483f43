"""The preparation of a forward model before it is differentiated: above all the modes of its batch norms."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import in_standard_onnx
from autodiff.small_models import differentiated, output_names, summed
from bngrad.api import differentiate
from bngrad.autodiff.prepare_forward import set_modes
from bngrad.errors import InputError, ModelError
from bngrad.runtime.session import session
from bngrad.training.differentiate import differentiate as differentiate_ir
from bngrad.validation.float64 import evaluate

STATISTICS = "float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {1, 1}"
OWN = f"{STATISTICS}, float[2] m2 = {{0, 0}}, float[2] v2 = {{1, 1}}"
TRAINING = "BatchNormalization <training_mode = 1>"


def two_batch_norms(second="m2, v2", *, initializers=OWN, outputs="float loss", extra=""):
    body = f"""{extra} [layer1_bn] h, m_new, v_new = {TRAINING} (x, s, b, m, v) [relu] r = Relu(h)
        [layer2_bn] y, m2_new, v2_new = {TRAINING} (r, s, b, {second})"""
    return summed("float[N, 2] x", body, initializers=initializers, outputs=outputs)


def modes(training):
    """The modes of the batch norms, by the names of their nodes."""
    kinds = {"BatchNormInternal": "training", "BatchNormalization": "frozen"}
    return {node.name: kinds[node.op_type] for node in training.graph if node.op_type in kinds}


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, ["training", "training"]),
        ({"frozen": ["layer1_bn"]}, ["frozen", "training"]),
        ({"frozen": ["layer*"]}, ["frozen", "frozen"]),
        ({"frozen": ["*"], "training": ["layer2*"]}, ["frozen", "training"]),
        ({"frozen": ["layer1_bn", "layer2_bn"]}, ["frozen", "frozen"]),
        ({"training": ["*"]}, ["training", "training"]),
        ({"frozen": ["layer1_bn"], "training": ["*"]}, ["frozen", "training"]),
        ({"frozen": ["layer1*"], "training": ["*"]}, ["frozen", "training"]),
        ({"frozen": ["layer?_bn"], "training": ["layer1_bn", "*"]}, None),
        ({"frozen": ["*", "layer2_bn"], "training": ["layer2*"]}, ["frozen", "frozen"]),
        ({"frozen": ["*"], "training": ["*"]}, None),
        ({"frozen": ["layer1_bn"], "training": ["layer1_bn"]}, None),
    ],
)
def test_modes_of_batch_norms(options, want):
    """The narrower of two patterns decides; None: the options contradict each other."""
    if want is None:
        with pytest.raises(
            ModelError, match=r"^batch norm 'layer._bn' is matched by --frozen '.*' and by --training"
        ):
            differentiated(two_batch_norms(), wrt=["s"], **options)
        return
    training = differentiated(two_batch_norms(), wrt=["s"], **options)
    assert modes(training) == dict(zip(("layer1_bn", "layer2_bn"), want, strict=True))


@pytest.mark.parametrize("builder", ["bngrad", "ort"])
@pytest.mark.parametrize(
    ("names", "options", "want"),
    [
        (("", ""), {"frozen": ["*"]}, 0),
        (("", ""), {"frozen": ["h"]}, 1),
        (("", ""), {"frozen": ["*"], "training": ["y"]}, 1),
        (("bn", ""), {"frozen": ["bn"]}, 1),
        (("bn", "bn"), {"frozen": ["bn"]}, 0),
    ],
)
def test_modes_of_batch_norms_without_a_name_of_their_own(names, options, want, builder):
    forward = two_batch_norms()
    for node, name in zip(forward.graph.node[::2], names, strict=False):
        node.name = name
    model = ir.from_proto(forward)
    graph = differentiate_ir(model, wrt=["s"], builder=builder, target="training", **options)
    assert len(graph.running_statistics) == 2 * want


def test_mode_of_a_batch_norm_is_what_its_node_says():
    forward = summed("float[N, 2] x", "[bn] y = BatchNormalization(x, s, b, m, v)", initializers=STATISTICS)
    assert modes(differentiated(forward, wrt=["s"])) == {"bn": "frozen"}
    assert modes(differentiated(forward, wrt=["s"], training=["bn"])) == {"bn": "training"}


def test_a_name_that_is_a_pattern_too():
    """``bn[1]`` as a pattern matches only ``bn1``."""
    body = f"""[bn] h, m_new, v_new = {TRAINING} (x, s, b, m, v)
        [bn1] y, m2_new, v2_new = {TRAINING} (h, s, b, m2, v2)"""
    forward = summed("float[N, 2] x", body, initializers=OWN)
    forward.graph.node[0].name = "bn[1]"
    assert modes(differentiated(forward, wrt=["s"], frozen=["bn[1]"])) == {"bn[1]": "frozen", "bn1": "training"}


@pytest.mark.parametrize("option", ["frozen", "training"])
def test_a_pattern_that_matches_no_batch_norm(option):
    message = "'layer3_*' is not a batch norm of this model; did you mean 'layer2_bn' or 'layer1_bn'?"
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        differentiated(two_batch_norms(), wrt=["s"], **{option: ["layer*", "layer3_*"]})


def test_new_running_statistics_are_outputs():
    training = differentiated(two_batch_norms(outputs="float loss, float[2] v_new"), wrt=["s"])
    assert output_names(training) == ["loss", "v_new", "m_new", "m2_new", "v2_new", "s_grad"]
    assert {"m", "v", "m2", "v2"} <= {value.name for value in training.graph.inputs}


def test_new_running_statistics_of_a_batch_norm_that_has_none():
    forward = summed("float[N, 2] x", f"[bn] y = {TRAINING} (x, s, b, m, v)", initializers=STATISTICS)
    assert output_names(differentiated(forward, wrt=["s"])) == ["loss", "m_new", "v_new", "s_grad"]


def test_a_frozen_batch_norm_gives_the_statistics_it_was_given():
    training = differentiated(
        two_batch_norms(outputs="float loss, float[2] m_new"), wrt=["s"], frozen=["layer1_bn"]
    )
    result = evaluate(in_standard_onnx(training), {"x": np.array([[1, 2], [3, 5]], np.float32)})
    assert output_names(training) == ["loss", "m_new", "m2_new", "v2_new", "s_grad"]
    np.testing.assert_array_equal(result["m_new"], [3, 4])


SHARED_STATISTICS = {
    "initializer": two_batch_norms("m, v", initializers=STATISTICS),
    "identity": two_batch_norms("i, j", initializers=STATISTICS, extra="i = Identity(m) j = Identity(v)"),
}


@pytest.mark.parametrize("kind", SHARED_STATISTICS)
def test_shared_running_statistics_get_copies(kind):
    training = differentiated(SHARED_STATISTICS[kind], wrt=["s"])
    nodes = [node for node in training.graph if node.op_type == "BatchNormInternal"]
    statistics = [value for node in nodes for value in node.inputs[3:5]]
    assert len(set(statistics)) == 4
    assert all(value.is_graph_input() and value.is_initializer() for value in statistics)
    feeds = {"x": np.array([[1, 2], [3, 5]], np.float32)}
    run = session(in_standard_onnx(training), "function")
    assert all(np.isfinite(array).all() for array in run.run(None, feeds))


@pytest.mark.parametrize("kind", SHARED_STATISTICS)
def test_the_forward_model_stays_as_it_is(kind):
    forward = SHARED_STATISTICS[kind]
    before = forward.SerializeToString(deterministic=True)
    differentiate(forward, wrt=["s"])
    assert forward.SerializeToString(deterministic=True) == before


def test_an_unknown_way_to_share_statistics():
    with pytest.raises(InputError, match="shared_statistics is 'tied'; expected one of separate, chain"):
        differentiate(ir.from_proto(two_batch_norms()), wrt=["s"], shared_statistics="tied")


def test_running_statistics_that_are_constants():
    constants = "m = Constant <value = float[2] {0, 0}> () v = Constant <value = float[2] {1, 1}> ()"
    forward = summed(
        "float[N, 2] x",
        f"{constants} [bn] y = {TRAINING} (x, s, b, m, v)",
        initializers="float[2] s = {1, 2}, float[2] b = {0, 1}",
    )
    training = differentiated(forward, wrt=["s"])
    (node,) = (node for node in training.graph if node.op_type == "BatchNormInternal")
    assert all(value.is_graph_input() and value.is_initializer() for value in node.inputs[3:5])


@pytest.mark.parametrize("option", ["frozen", "training"])
def test_a_pattern_sets_every_batch_norm_without_a_name(option):
    forward = ir.from_proto(two_batch_norms())
    for node in forward.graph:
        node.name = None
    set_modes(forward, **{"frozen": [], "training": [], option: ["*"]})
    batch_norms = [node for node in forward.graph if node.op_type == "BatchNormalization"]
    assert [node.attributes["training_mode"].value for node in batch_norms] == [int(option == "training")] * 2


MERGED = {
    "by name": "y = BatchNormalization (x, s, b, b, s)",
    "by Identity": "m = Identity(b) v = Identity(s) y = BatchNormalization (x, s, b, m, v)",
}


@pytest.mark.parametrize("how", MERGED)
def test_frozen_statistics_do_not_move_with_a_weight_of_the_same_initializer(how):
    forward = summed("float[N, 2] x", MERGED[how], initializers="float[2] s = {1, 1}, float[2] b = {0, 0}")
    feeds = {"x": np.float32([[1, 2], [3, 5]]), "s": np.float32([2, 4]), "b": np.float32([1, -1])}
    training = differentiated(forward)
    assert output_names(training) == ["loss", "s_grad", "b_grad"]
    result = evaluate(in_standard_onnx(training), feeds)
    xhat = feeds["x"] / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(result["loss"], (xhat * feeds["s"] + feeds["b"]).sum(), rtol=1e-6)
    np.testing.assert_allclose(result["s_grad"], xhat.sum(0), rtol=1e-6)


IN_IF = """low = Constant <value = float {-9}> () least = ReduceMin <keepdims = 0> (x) c = Greater (least, low)
    h = If (c) <then_branch = t () => (float[N, 2] i) { BN },
        else_branch = e () => (float[N, 2] j) { j = Relu (x) }>"""
IN_LOOP = """two = Constant <value = int64 {2}> () c = Constant <value = bool {1}> ()
    h = Loop (two, c, x) <body = l (int64 n, bool go, float[N, 2] u) => (bool on, float[N, 2] i) {
        on = Identity (go) BN }>"""
IN_SCAN = """h = Scan <num_scan_inputs = 1, body = l (float[2] row) => (float[1, 2] i) {
        z = Constant <value = int64[1] {0}> () x1 = Unsqueeze (row, z) BN }> (x)"""
IN_BODY = f"[bn] i, p, q = {TRAINING} (x, s, b, m, v)"
FROZEN_IN_BODY = "[bn] i = BatchNormalization (x, s, b, m, v)"
BODIES = {
    "if": (IN_IF, IN_BODY, {}, 1),
    "loop": (IN_LOOP, IN_BODY.replace("(x", "(u"), {}, 1),
    "scan": (IN_SCAN, IN_BODY.replace("(x", "(x1"), {}, 1),
    "asked for": (IN_IF, FROZEN_IN_BODY, {"training": ["b*"]}, 1),
    "recorded": (IN_IF, FROZEN_IN_BODY.replace("bn", "node__native_batch_norm_legit_functional__0"), {}, 1),
    "new statistics read": (IN_LOOP, IN_BODY.replace("(x", "(u") + " r = Add (p, q)", {}, None),
    "frozen": (IN_IF, FROZEN_IN_BODY, {}, 0),
    "frozen by its name": (IN_IF, IN_BODY, {"frozen": ["bn"]}, 0),
    "frozen in a loop": (IN_LOOP, IN_BODY.replace("(x", "(u") + " r = Add (p, q)", {"frozen": ["*"]}, 0),
}


def test_a_batch_norm_in_the_branch_of_a_constant_condition():
    text = IN_IF.replace("Greater (least, low)", "Constant <value = bool {1}> ()").replace("BN", IN_BODY)
    forward = summed(
        "float[N, 2] x", f"{text} y = Mul (h, k)", initializers=f"{STATISTICS}, float[2] k = {{1, 2}}"
    )
    graph = differentiate_ir(ir.from_proto(forward), loss="loss", wrt=["k"])
    assert graph.running_statistics == {"m": "p", "v": "q"}
    assert not any(node.op_type == "If" for node in graph.model.graph)


@pytest.mark.parametrize("case", BODIES)
def test_batch_norms_in_bodies(case):
    """In training mode, outputs of the training graph hold their new running statistics."""
    place, body, options, mode = BODIES[case]
    text = place.replace("BN", body) + " y = Mul (h, k)"
    forward = summed("float[N, 2] x", text, initializers=f"{STATISTICS}, float[2] k = {{1, 2}}")
    forward.producer_name = "test"
    if mode is None:
        with pytest.raises(
            ModelError, match=r"'bn' .*is a batch norm in training mode in the body of another node"
        ):
            differentiate(forward, loss="loss", wrt=["k"], **options)
        return
    graph = differentiate_ir(ir.from_proto(forward), loss="loss", wrt=["k"], **options)
    assert graph.running_statistics == ({"m": "m_new", "v": "v_new"} if mode else {})
    if mode:
        return
    assert not any("updated" in warning for warning in graph.warnings)
    (node,) = (n for n in graph.model.graph.all_nodes() if n.op_type == "BatchNormalization")
    assert len(node.outputs) == 1
    assert not node.attributes.get_int("training_mode", 0)
    x = np.float32([[1, 2], [3, 5]])
    (gradient,) = session(graph.model).run(["k_grad"], {"x": x})
    once = (x - [3, 4]) / np.sqrt(1 + 1e-5) * [1, 2] + [0, 1]
    twice = (once - [3, 4]) / np.sqrt(1 + 1e-5) * [1, 2] + [0, 1]
    np.testing.assert_allclose(gradient, (twice if place is IN_LOOP else once).sum(axis=0), rtol=1e-5, atol=1e-5)
