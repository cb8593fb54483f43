"""Tests the readers of the records of PyTorch's modern exporter."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bngrad.graph.torch_records import (
    are_recorded_as_tied,
    batch_norm_call,
    folded_from,
    recorded_kinds,
    recorded_mode,
    recorded_module,
    updated_means,
    updated_tensors,
)

FX = "pkg.torch.onnx.fx_node"
ARGUMENTS = "%x, %p_w, %p_b, %b_m, %b_v"


def node(call="", name="n", **metadata):
    result = ir.node("BatchNormalization", [], name=name)
    result.metadata_props.update({FX: call} if call else {})
    result.metadata_props.update(metadata)
    return result


def call(op, arguments):
    return f"%y : [num_users=1] = call_function[target=torch.ops.aten.{op}](args = ({arguments}), kwargs = {{}})"


MODES = {
    "training": (
        node(call("_native_batch_norm_legit_functional.default", f"{ARGUMENTS}, True, 0.1, 1e-05")),
        True,
    ),
    "without a prefix": (
        node(
            "%y = call_function[target=aten._native_batch_norm_legit_functional.default](args = "
            f"({ARGUMENTS}, True, 0.1, 1e-05), kwargs = {{}})"
        ),
        True,
    ),
    "without a scale": (
        node(call("_native_batch_norm_legit_functional.default", "%x, None, None, %b_m, %b_v, True, 0.1, 1e-05")),
        True,
    ),
    "not decomposed": (node(call("batch_norm.default", f"{ARGUMENTS}, True, 0.1, 1e-05, False")), True),
    "updating": (node(call("_batch_norm_with_update.default", f"{ARGUMENTS}, 0.1, 1e-05")), True),
    "functional in evaluation mode": (
        node(call("_native_batch_norm_legit_functional.default", f"{ARGUMENTS}, False, 0.1, 1e-05")),
        False,
    ),
    "not decomposed, evaluation": (
        node(call("batch_norm.default", f"{ARGUMENTS}, False, 0.1, 1e-05, False")),
        False,
    ),
    "evaluation": (node(call("_native_batch_norm_legit_no_training.default", f"{ARGUMENTS}, 0.1, 1e-05")), False),
    "by name": (node(name="node__native_batch_norm_legit_functional_3__0"), True),
    "by name, evaluation": (node(name="node__native_batch_norm_legit_no_training__0"), False),
    "metadata before the name": (
        node(
            call("batch_norm.default", f"{ARGUMENTS}, False, 0.1, 1e-05, False"),
            name="node__native_batch_norm_legit_functional__0",
        ),
        False,
    ),
    "another op": (node(call("layer_norm.default", "%x, [8], %p_w, %p_b")), None),
    "no statistics": (node(call("_native_batch_norm_legit.no_stats", "%x, %p_w, %p_b, True, 0.1, 1e-05")), None),
    "another name": (node(name="batch_norm_functional"), None),
    "nothing": (node(), None),
    "text that is no call": (node("_native_batch_norm_legit_functional"), None),
}


@pytest.mark.parametrize("name", MODES)
def test_mode(name):
    batch_norm, mode = MODES[name]
    assert recorded_mode(batch_norm) is mode


def test_the_buffer_of_a_call():
    first = batch_norm_call(MODES["training"][0])
    assert [first.buffer(3), first.buffer(4)] == ["%b_m", "%b_v"]
    arguments = "%x, %p_w, %p_b, %getitem_3, %getitem_4, True, 0.1, 1e-05"
    second = batch_norm_call(node(call("_native_batch_norm_legit_functional.default", arguments)))
    assert second.buffer(3) is None


@pytest.mark.parametrize(
    ("scopes", "module"),
    [("['', 'm', 'm.bn', 'op']", "m.bn"), ("['op']", ""), ("[", ""), ("3", ""), ("", "")],
    ids=["a module", "the root", "damaged", "a number", "empty"],
)
def test_module(scopes, module):
    assert recorded_module(node(**{"pkg.torch.onnx.name_scopes": scopes})) == module


@pytest.mark.parametrize(
    ("calls", "tied"),
    [
        (("%p_w", "%p_w"), True),
        (("%p_w, %p_b", "%p_b, %p_c"), True),
        (("%p_w", "%p_v"), False),
        (("%x", "%x"), False),
    ],
)
def test_tied(calls, tied):
    assert are_recorded_as_tied([node(call("linear.default", f"%x, {argument}")) for argument in calls]) is tied


def test_the_signature():
    signature = """
# inputs
p_w: PARAMETER target='m.w'
b_m: BUFFER target='m.running_mean' persistent=True
c_t: CONSTANT_TENSOR target='t'
x: USER_INPUT

# outputs
getitem_3: BUFFER_MUTATION target='m.running_mean'
add: BUFFER_MUTATION target='m.num_batches_tracked'
mul: PARAMETER_MUTATION target='m.w'
loss: USER_OUTPUT
"""
    graph = ir.Graph([], [], nodes=[])
    assert recorded_kinds(graph) == {}
    assert updated_means(graph) == set()
    graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = signature
    assert recorded_kinds(graph) == {"m.w": "PARAMETER", "m.running_mean": "BUFFER", "t": "CONSTANT_TENSOR"}
    assert updated_means(graph) == {"m.running_mean"}
    assert updated_tensors(graph) == ["m.running_mean", "m.num_batches_tracked", "m.w"]


@pytest.mark.parametrize(
    ("written", "names"), [("['m.w', 'v']", {"m.w", "v"}), ("[", set()), ("1", set()), (None, set())]
)
def test_folded_from(written, names):
    value = ir.Value(name="v")
    if written is not None:
        value.metadata_props["pkg.onnxscript.optimizer.folded_from"] = written
    assert folded_from(value) == names
