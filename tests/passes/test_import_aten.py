"""ATen's batch-norm gradients -> bngrad's: every op, spelling, mode, type and rank, and every refusal."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.aten.gradients import ImportAtenPass
from dialects import node_model, rewritten, run, worst_error
from ort_values import DTYPES, IMPLEMENTATIONS, TOLERANCES
from pairwise import pairwise
from pass_models import content, find, model, ops

DIALECTS = Path(__file__).parents[2] / "docs" / "reference" / "dialects"
EPS = float(np.float32(1e-3))

ORDER = {
    "native_batch_norm_backward": "grad_out input weight running_mean running_var save_mean save_invstd "
    "train eps output_mask",
    "batch_norm_backward": "grad_out input weight running_mean running_var save_mean save_var "
    "update eps output_mask reserve",
    "cudnn_batch_norm_backward": "input grad_output weight running_mean running_var save_mean save_var "
    "epsilon reserveSpace",
    "miopen_batch_norm_backward": "input grad_output weight running_mean running_var save_mean save_var epsilon",
    "_batch_norm_impl_index_backward": "impl_index input grad_output weight running_mean running_var save_mean "
    "save_var_transform train eps output_mask reservedSpace",
}
NATIVE = "native_batch_norm_backward"
OPTIONAL_WEIGHT = (NATIVE, "_batch_norm_impl_index_backward")
MODES = [(op, train) for op in ORDER for train in (True, False) if train or not op.startswith(("cudnn", "miopen"))]
MODE_NAMES = {f"{op}-{'training' if train else 'frozen'}": (op, train) for op, train in MODES}
OUTPUTS = ("grad_input", "grad_weight", "grad_bias")
ALIASES = {
    "grad_output": "grad_out",
    "save_var": "save_invstd",
    "save_var_transform": "save_invstd",
    "update": "train",
    "epsilon": "eps",
}
SCALARS = ("impl_index", "train", "eps", "output_mask")
TYPES = [("float", "float"), ("double", "double")]
TYPES += [(data, parameter) for data in ("float16", "bfloat16") for parameter in (data, "float")]


def aten(t, train=True, eps=EPS):
    """The results of ATen on the CPU, in its own steps, channel by channel, in float64."""
    t = {name: None if value is None else value.astype(np.float64) for name, value in t.items()}
    x, grad_out = t["input"], t["grad_out"]
    channels = x.shape[1]
    n = x.size // channels
    grad_input, grad_weight, grad_bias = np.empty(x.shape), np.empty(channels), np.empty(channels)
    for f in range(channels):
        inputs, go = x[:, f], grad_out[:, f]
        if not train:
            mean, invstd = t["running_mean"].reshape(-1)[f], 1 / np.sqrt(t["running_var"].reshape(-1)[f] + eps)
        elif t["save_mean"] is None or t["save_invstd"] is None:
            mean, invstd = inputs.mean(), 1 / np.sqrt(inputs.var() + eps)
        else:
            mean, invstd = t["save_mean"].reshape(-1)[f], t["save_invstd"].reshape(-1)[f]
        w = 1.0 if t["weight"] is None else t["weight"].reshape(-1)[f]
        dotp = np.sum((inputs - mean) * go)
        k = dotp * invstd * invstd / n
        centered = go - go.sum() / n - (inputs - mean) * k
        grad_input[:, f] = (centered if train else go) * invstd * w
        grad_weight[f], grad_bias[f] = dotp * invstd, go.sum()
    return dict(zip(OUTPUTS, (grad_input, grad_weight, grad_bias), strict=True))


def tensors(rng, shape, data="float", parameter=None, *, without=()):
    """Arguments of about 1; in training the saved statistics are nearly those of the input."""
    channels = shape[1:2]
    x = rng.standard_normal(shape) * 1.5 + 0.5
    over = (0, *range(2, len(shape)))
    t = {
        "grad_out": rng.standard_normal(shape),
        "input": x,
        "weight": rng.standard_normal(channels),
        "running_mean": rng.standard_normal(channels),
        "running_var": rng.uniform(0.5, 2, channels),
        "save_mean": x.mean(axis=over) if x.size else np.zeros(channels),
        "save_invstd": 1 / np.sqrt(x.var(axis=over) + EPS) if x.size else np.ones(channels),
    }
    kinds = {name: data if name in ("grad_out", "input") else parameter or data for name in t}
    return {name: None if name in without else v.astype(DTYPES[kinds[name]]) for name, v in t.items()}


def scalars(train=True, eps=EPS, mask=(True, True, True)):
    return {"impl_index": 0, "train": train, "eps": eps, "output_mask": list(mask)}


def attribute_value(value):
    return (
        [int(v) for v in value] if isinstance(value, list) else value if isinstance(value, float) else int(value)
    )


def node(op, t, form="ATen", *, outputs=OUTPUTS, leave_out=(), **changes):
    """A model of one node: ``ATen`` has scalars as constant inputs; other forms are a domain and a prefix."""
    values = scalars(**changes)
    inputs, constants, attributes = {}, [], {}
    for name in ORDER[op].split():
        role = ALIASES.get(name, name)
        if role in leave_out:
            continue
        if role not in SCALARS:
            inputs[name] = t.get(role)
        elif form == "ATen":
            inputs[name] = np.asarray(
                values[role], {"eps": np.float32, "impl_index": np.int64}.get(role, np.bool_)
            )
            constants.append(name)
        else:
            attributes[name] = attribute_value(values[role])
    if form == "ATen":
        # ORT's gradient definitions have the namespace in the name, PyTorch's exporter has not.
        attributes = {"operator": f"aten::{op}", "overload_name": ""}
        return node_model("ATen", inputs, outputs, domain="org.pytorch.aten", constants=constants, **attributes)
    domain, _, prefix = form.partition(" ")
    return node_model(f"{prefix}{op}", inputs, outputs, domain=domain, constants=constants, **attributes)


def feeds(t):
    """By every name that some op has for it."""
    return {**t, **{name: t[role] for name, role in ALIASES.items() if role in t}}


def check(before, t, want, *, dtypes, implementation="function"):
    """``dtypes`` are those that grad_input, grad_weight and grad_bias must have."""
    got = run(rewritten(before, ImportAtenPass()), feeds(t), implementation)
    assert set(got) <= set(want)
    for name, value in got.items():
        assert value.dtype == DTYPES[dtypes[OUTPUTS.index(name)]], name
        assert worst_error(value, want[name]) <= TOLERANCES[dtypes[0]], name
    return got


def refused(before):
    """The reason, without the node's name; the model must be as before."""
    unchanged = content(before)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportAtenPass()(before)
    assert content(before) == unchanged
    what, _, reason = str(error.value).partition(" cannot be rewritten: ")
    assert "'foreign'" in what
    return reason


# ---- what is matched ----

FORMS = ("ATen", "aten ", "pkg.onnxscript.torch_lib aten_", "my.domain aten::", " ")


@pairwise(mode=MODE_NAMES, form=FORMS, implementation=IMPLEMENTATIONS)
def test_every_op_mode_and_spelling(mode, form, implementation, rng):
    op, train = mode
    t = tensors(rng, (4, 3, 5, 2))
    check(node(op, t, form, train=train), t, aten(t, train), dtypes=["float"] * 3, implementation=implementation)


@pairwise(mode=MODE_NAMES, types={"-".join(types): types for types in TYPES}, implementation=IMPLEMENTATIONS)
def test_every_type(mode, types, implementation, rng):
    (op, train), (data, parameter) = mode, types
    t = tensors(rng, (8, 3, 4, 4), data, parameter)
    check(
        node(op, t, train=train),
        t,
        aten(t, train),
        dtypes=[data, parameter, parameter],
        implementation=implementation,
    )


@pytest.mark.parametrize("rank", range(2, 11))
@pytest.mark.parametrize("train", [True, False])
def test_every_rank(train, rank, rng):
    t = tensors(rng, (5, 3, 4, 2, 3, 2, 1, 2, 1, 2)[:rank])
    check(node(NATIVE, t, train=train), t, aten(t, train), dtypes=["float"] * 3)


@pytest.mark.parametrize(("op", "data"), [*((op, "float") for op in ORDER), *((NATIVE, data) for data in DTYPES)])
@pytest.mark.parametrize("without", ["save_mean", "save_invstd", "both"])
def test_statistics_that_were_not_saved_are_computed(without, op, data, rng):
    left_out = ("save_mean", "save_invstd") if without == "both" else (without,)
    t = tensors(rng, (8, 3, 6), data, without=left_out)
    check(node(op, t), t, aten(t), dtypes=[data] * 3)


@pairwise(op=OPTIONAL_WEIGHT, types={"-".join(types): types for types in TYPES}, train=[True, False])
def test_a_weight_that_is_left_out_is_1(op, types, train, rng):
    """Its gradient has the type of the statistics, as in PyTorch on the CPU."""
    data, parameter = types
    t = tensors(rng, (8, 3, 4), data, parameter, without=("weight",))
    check(node(op, t, train=train), t, aten(t, train), dtypes=[data, parameter, parameter])


def test_the_gradient_of_a_weight_that_is_left_out_has_the_type_that_the_graph_says(rng):
    t = tensors(rng, (8, 3, 4), "float16", without=("weight",))
    before = node(NATIVE, t, train=False)
    for output in before.graph.outputs[1:]:
        output.dtype = ir.DataType.FLOAT
    check(before, t, aten(t, train=False), dtypes=["float16", "float", "float"])


@pytest.mark.parametrize("train", [True, False])
def test_what_the_mode_does_not_take_may_be_missing(train, rng):
    unused = ("running_mean", "running_var") if train else ("save_mean", "save_invstd")
    t = tensors(rng, (4, 3, 5), without=unused)
    check(node(NATIVE, t, train=train), t, aten(t, train), dtypes=["float"] * 3)


def test_saved_statistics_may_be_empty_when_not_training(rng):
    """That is what ATen's forward pass returns then."""
    t = tensors(rng, (4, 3, 5))
    want = aten(t, train=False)
    empty = {**t, "save_mean": np.empty(0, np.float16), "save_invstd": np.empty(0, np.float16)}
    check(node(NATIVE, empty, train=False), empty, want, dtypes=["float"] * 3)


@pytest.mark.parametrize("mask", list(product([True, False], repeat=3))[:-1])
@pytest.mark.parametrize("form", ["ATen", "aten "])
@pytest.mark.parametrize("outputs", ["absent", "unused"])
def test_masked_outputs(outputs, form, mask, rng):
    t = tensors(rng, (4, 3, 5))
    names = [name if kept else "" for name, kept in zip(OUTPUTS, mask, strict=True)]
    before = node(NATIVE, t, form, outputs=names, mask=mask)
    if outputs == "unused":
        for value, name in zip(find_foreign(before).outputs, OUTPUTS, strict=True):
            value.name = name
    got = check(before, t, aten(t), dtypes=["float"] * 3)
    assert set(got) == {name for name in names if name}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_outputs_at_the_end_may_be_left_out(number, rng):
    t = tensors(rng, (4, 3, 5))
    got = check(node(NATIVE, t, outputs=OUTPUTS[:number]), t, aten(t), dtypes=["float"] * 3)
    assert list(got) == list(OUTPUTS[:number])


@pytest.mark.parametrize("kind", [np.bool_, np.int64, np.int32])
@pytest.mark.parametrize("extents", [(), (1,)])
@pytest.mark.parametrize("train", [True, False])
def test_constants_of_any_kind(train, extents, kind, rng):
    """ORT reads a bool from a tensor of bool or int64 that has no dimension, or one."""
    t = tensors(rng, (4, 3, 5))
    before = node(NATIVE, t, train=train)
    values = before.graph.initializers
    values["train"].const_value = ir.tensor(np.full(extents, train, kind))
    values["eps"].const_value = ir.tensor(np.full(extents, EPS, np.float64))
    values["output_mask"].const_value = ir.tensor(np.ones(3, kind))
    for name in ("train", "eps", "output_mask"):
        values[name].type, values[name].shape = ir.TensorType(values[name].const_value.dtype), None
    check(before, t, aten(t, train), dtypes=["float"] * 3)


def test_an_epsilon_in_double_keeps_its_digits(rng):
    t = tensors(rng, (4, 3, 5), "double")
    t["running_var"] *= 1e-6
    before = node(NATIVE, t, train=False)
    eps = before.graph.initializers["eps"]
    eps.const_value = ir.tensor(np.array(1e-5))
    eps.type = ir.TensorType(ir.DataType.DOUBLE)
    check(before, t, aten(t, train=False, eps=1e-5), dtypes=["double"] * 3)


def test_an_epsilon_that_is_not_needed_need_not_be_known(rng):
    t = tensors(rng, (4, 3, 5))
    check(node(NATIVE, t, "aten ", leave_out=("eps", "output_mask")), t, aten(t), dtypes=["float"] * 3)


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (3, 1, 1), (1, 3)])
@pytest.mark.parametrize(("op", "train"), MODES)
def test_parameters_of_any_shape(op, train, shape, rng):
    """CuDNN and MIOpen look at the number of elements; the gradients have the weight's shape."""
    t = tensors(rng, (4, 3, 5, 2))
    want = aten(t, train)
    t = {name: v if name in ("grad_out", "input") else v.reshape(shape) for name, v in t.items()}
    want |= {name: want[name].reshape(shape) for name in OUTPUTS[1:]}
    check(node(op, t, train=train), t, want, dtypes=["float"] * 3)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_an_empty_batch(saved, train, rng):
    t = tensors(rng, (0, 3, 5), without=() if saved else ("save_mean", "save_invstd"))
    got = run(rewritten(node(NATIVE, t, train=train), ImportAtenPass()), feeds(t))
    assert got["grad_input"].shape == (0, 3, 5)
    np.testing.assert_array_equal(got["grad_bias"], np.zeros(3))


@pytest.mark.parametrize("train", [True, False])
def test_a_mean_far_from_zero(train, rng):
    t = tensors(rng, (8, 3, 16))
    for name in ("input", "save_mean", "running_mean"):
        t[name] += np.float32(1024)
    want = aten(t, train)
    got = run(rewritten(node(NATIVE, t, train=train), ImportAtenPass()), feeds(t))
    for name in OUTPUTS:
        assert worst_error(got[name], want[name]) <= 1e-5, name


@st.composite
def calls(draw):
    op, train = draw(st.sampled_from(MODES))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=6)))
    absent = [name for name in ("running_mean", "running_var") if train and draw(st.booleans())]
    absent += [name for name in ("save_mean", "save_invstd") if not train and draw(st.booleans())]
    absent += ["weight"] if op in OPTIONAL_WEIGHT and draw(st.booleans()) else []
    masked = "output_mask" in ORDER[op]
    mask = tuple(draw(st.booleans()) if masked else True for _ in range(3))
    if not any(mask):
        mask = (True, False, False)
    return op, train, shape, draw(st.sampled_from(TYPES)), absent, mask, draw(st.sampled_from(FORMS))


@given(calls(), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_call(call, seed):
    op, train, shape, (data, parameter), absent, mask, form = call
    t = tensors(np.random.default_rng(seed), shape, data, parameter, without=absent)
    outputs = [name if kept else "" for name, kept in zip(OUTPUTS, mask, strict=True)]
    before = node(op, t, form, train=train, mask=mask, outputs=outputs)
    got, want = run(rewritten(before, ImportAtenPass()), feeds(t)), aten(t, train)
    # A sum of few terms may cancel, and then its error is that of the terms, whatever is left of them.
    inv_std = t["save_invstd"] if train else 1 / np.sqrt(t["running_var"].astype(np.float64) + EPS)
    terms = np.abs(t["grad_out"]).max() * max(1, np.abs(inv_std).max()) * 4 * max(shape)
    for name, value in got.items():
        assert value.dtype == DTYPES[data if name == "grad_input" else parameter], name
        error = np.abs(value.astype(np.float64) - want[name]).max()
        assert error <= TOLERANCES[data] * max(np.abs(want[name]).max(), terms), name


# ---- where it is, and what survives ----


def find_foreign(graph):
    (result,) = (n for n in graph.graph if n.name == "foreign")
    return result


def test_names_survive(rng):
    t = tensors(rng, (4, 3, 5))
    before = node(NATIVE, t)
    foreign = find_foreign(before)
    foreign.doc_string = "why"
    foreign.metadata_props["namespace"] = "model/bn"
    ImportAtenPass()(before)
    after = find_foreign(before)
    assert (after.domain, after.op_type) == ("bngrad", "BatchNormalizationGrad")
    assert after.doc_string == "why"
    assert after.metadata_props == {"namespace": "model/bn"}
    assert [v.name for v in after.inputs[:5]] == ["grad_out", "input", "weight", "save_mean", "save_invstd"]
    assert [v.name for v in after.outputs] == list(OUTPUTS)
    assert [v.name for v in before.graph.outputs] == list(OUTPUTS)


def test_a_second_run_changes_nothing(rng):
    before = node(NATIVE, tensors(rng, (4, 3, 5)), train=False)
    assert ImportAtenPass()(before).modified
    after = content(before)
    assert not ImportAtenPass()(before).modified
    assert content(before) == after


def test_constants_that_nothing_else_reads_go(rng):
    before = node(NATIVE, tensors(rng, (4, 3, 5)))
    foreign = find_foreign(before)
    other = ir.node("Cast", [before.graph.initializers["eps"]], {"to": 11}, name="other")
    before.graph.insert_before(foreign, other)
    before.graph.inputs.append(before.graph.initializers["output_mask"])
    ImportAtenPass()(before)
    assert list(before.graph.initializers) == ["eps", "output_mask"]
    text = """g (float[N,3] x, float[3] c) => (float[N,3] p) {
        train = Constant<value = int64 {1}>()
        eps = Constant<value = float {0.001}>()
        mask = Constant<value = int64[3] {1, 0, 0}>()
        p = org.pytorch.aten.ATen<operator = "native_batch_norm_backward">(x, x, c, , , c, c, train, eps, mask)
    }"""
    result = model(text.replace("float[N,3] p)", "float[N,3] p, int64[3] mask)"), 17, "org.pytorch.aten")
    ImportAtenPass()(result)
    assert ops(result) == ["Constant", "Constant", "bngrad.BatchNormalizationGrad"]


@pytest.mark.parametrize(
    "text",
    [
        'org.pytorch.aten.ATen<operator = "aten::native_layer_norm_backward">(x)',
        'org.pytorch.aten.ATen<operator = "aten::native_batch_norm">(x)',
        "aten.native_group_norm_backward(x)",
        "bngrad.BatchNormalizationGrad<training_mode = 1>(x, x, c, c, c, axes)",
    ],
)
def test_other_nodes_are_left_alone(text):
    result = model(
        f"g (float[N,3] x, float[3] c, int64[1] axes) => (y) {{ y = {text} }}",
        17,
        "org.pytorch.aten",
        "aten",
        "bngrad",
    )
    before = content(result)
    assert not ImportAtenPass()(result).modified
    assert content(result) == before


IN_A_FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "net" : 1, "aten" : 1]>
main (T[N,3,4] grad_out, T[N,3,4] input, P[3] weight, P[3] running_mean, P[3] running_var, P[3] save_mean,
      P[3] save_invstd) => (T[N,3,4] grad_input, P[3] grad_weight, P[3] grad_bias) {
    grad_input, grad_weight, grad_bias =
        net.backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd)
}
<domain: "net", opset_import: ["" : 17, "aten" : 1]>
backward (dy, x, w, rm, rv, sm, si) => (dx, dw, db) {
    dx, dw, db = aten.native_batch_norm_backward<train: int = TRAIN, eps: float = 0.001>
        (dy, x, WEIGHT, rm, rv, SAVED)
}"""


@pytest.mark.parametrize("weight", ["w", ""], ids=["weight", "no-weight"])
@pytest.mark.parametrize("mode", ["train", "recompute", "eval"])
@pytest.mark.parametrize(("data", "parameter"), [("float", "float"), ("float16", "float")])
def test_in_a_function_where_no_type_and_no_rank_is_known(data, parameter, mode, weight, rng):
    text = IN_A_FUNCTION.replace("T[", f"{data}[").replace("P[", f"{parameter}[")
    text = text.replace("TRAIN", str(int(mode != "eval"))).replace("SAVED", "sm, si" if mode == "train" else ",")
    text = text.replace("WEIGHT", weight)
    without = [*(["save_mean", "save_invstd"] if mode == "recompute" else []), *([] if weight else ["weight"])]
    t = tensors(rng, (5, 3, 4), data, parameter)
    want = aten({name: None if name in without else v for name, v in t.items()}, mode != "eval")
    before = ir.from_proto(onnx.parser.parse_model(text))
    check(before, t, want, dtypes=[data, parameter, parameter])


def test_in_a_function_of_a_model_that_computes_in_double(rng):
    text = IN_A_FUNCTION.replace("T[", "double[").replace("P[", "double[").replace("TRAIN", "0")
    text = text.replace("WEIGHT", "w").replace("SAVED", ",").replace("=> (", "=> (double[N,3,4] known, ", 1)
    call = (
        "known = aten.native_batch_norm_backward<train = 1>(grad_out, input, weight, , , save_mean, save_invstd)"
    )
    text = text.replace(
        "    grad_input, grad_weight, grad_bias =", f"    {call}\n    grad_input, grad_weight, grad_bias =", 1
    )
    t = tensors(rng, (5, 3, 4), "double")
    after = rewritten(ir.from_proto(onnx.parser.parse_model(text)), ImportAtenPass())
    got, want = run(after, feeds(t)), aten(t, train=False)
    assert worst_error(got.pop("known"), aten(t)["grad_input"]) <= TOLERANCES["double"]
    for name, value in got.items():
        assert worst_error(value, want[name]) <= TOLERANCES["double"], name


def test_no_reshape_is_left_of_an_output_that_goes():
    result = ir.from_proto(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "aten" : 1]>
        g (float x, float[3] c) => (float[3] q) {
            p, q = aten.native_batch_norm_backward<train = 1, output_mask = [0, 1, 0]>(x, x, c, , , c, c)
        }""")
    )
    for value in result.graph.inputs[:1]:
        value.shape = None
    ImportAtenPass()(result)
    assert ops(result)[-1] == "bngrad.BatchNormalizationGrad"
    assert ops(result).count("Reshape") == 2


def test_in_a_branch(rng):
    text = """g (bool c, float[N,3,4] dy, float[N,3,4] x, float[3] w, float[3] m, float[3] v)
        => (float[N,3,4] dx) {
        mask = Constant<value = bool[3] {1, 0, 0}>()
        eps = Constant<value = float {0.001}>()
        no = Constant<value = bool {0}>()
        dx = If(c) <
            then_branch = yes () => (float[N,3,4] a) {
                a, b, d = org.pytorch.aten.ATen<operator = "native_batch_norm_backward">
                    (dy, x, w, m, v, , , no, eps, mask)
            },
            else_branch = otherwise () => (float[N,3,4] e) { e = Identity(dy) }
        >
    }"""
    text = text.replace("bool[3] {1, 0, 0}", "int64[3] {1, 0, 0}").replace("bool {0}", "int64 {0}")
    before = model(text, 17, "org.pytorch.aten")
    t = tensors(rng, (4, 3, 4))
    inputs = {
        "dy": t["grad_out"],
        "x": t["input"],
        "w": t["weight"],
        "m": t["running_mean"],
        "v": t["running_var"],
    }
    after = rewritten(before, ImportAtenPass())
    assert "bngrad.BatchNormalizationGrad" in ops(after)
    got = run(after, {**inputs, "c": np.array(True)})["dx"]
    assert worst_error(got, aten(t, train=False)["grad_input"]) <= TOLERANCES["float"]
    np.testing.assert_array_equal(run(after, {**inputs, "c": np.array(False)})["dx"], t["grad_out"])


def test_the_saved_statistics_of_a_forward_pass_of_ours_are_not_touched():
    """The rank is not known, so data is reshaped, but only that of the gradient."""
    text = """g (float[K] flat, int64[R] to, float[3] w, float[3] m, float[3] v, int64[A] axes)
        => (float[K] y, float[K] dx) {
        all = Constant<value = int64[1] {-1}>()
        x = Reshape(flat, to)
        Y, a, b, mean, inv_std = bngrad.BatchNormalizationTraining
            <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 1>(x, w, w, m, v, axes)
        dX, dw, db = aten.native_batch_norm_backward<train = 1, eps = 0.001, output_mask = [1, 1, 1]>
            (x, x, w, m, v, mean, inv_std)
        y = Reshape(Y, all)
        dx = Reshape(dX, all)
    }"""
    after = rewritten(model(text, 17, "aten", "bngrad"), ImportAtenPass())
    forward, backward = (find(after, f"BatchNormalization{op}") for op in ("Training", "Grad"))
    assert forward.inputs[0].name == "x"
    assert backward.inputs[0].name != "x"


# ---- what is refused ----

SHAPE = (4, 3, 5)


def edited(rng, change, *arguments, **options):
    before = node(NATIVE, tensors(rng, SHAPE), *arguments, **options)
    change(before)
    return before


def set_type(name, dtype):
    def change(graph):
        (value,) = (v for v in graph.graph.inputs if v.name == name)
        value.dtype = dtype

    return change


def set_shape(name, *extents):
    def change(graph):
        (value,) = (v for v in graph.graph.inputs if v.name == name)
        value.shape = ir.Shape(extents)

    return change


def set_attribute(attribute):
    def change(graph):
        find_foreign(graph).attributes[attribute.name] = attribute

    return change


def feed(name):
    def change(graph):
        graph.graph.inputs.append(graph.graph.initializers[name])

    return change


def add_inputs(graph):
    foreign = find_foreign(graph)
    foreign.resize_inputs(12)
    foreign.replace_input_with(11, graph.graph.inputs[0])


def rename(op_type):
    def change(graph):
        find_foreign(graph).op_type = op_type

    return change


FOLD = "fold the model's constants and inline its functions first"
INT = ir.AttributeType.INT
REFUSALS = {
    "overload": (
        lambda r: edited(r, set_attribute(ir.AttrString("overload_name", "out"))),
        "its overload is 'out'; expected the default one",
    ),
    "overload-of-an-op-type": (
        lambda r: edited(r, rename(f"{NATIVE}.out"), "aten "),
        "its overload is 'out'; expected the default one",
    ),
    "surplus-inputs": (
        lambda r: edited(r, add_inputs),
        "it has 2 more inputs than ATen's schema has arguments",
    ),
    "no-grad-out": (
        lambda r: node(NATIVE, {**tensors(r, SHAPE), "grad_out": None}),
        "it has no grad_out; expected one",
    ),
    "no-input": (
        lambda r: node(NATIVE, {**tensors(r, SHAPE), "input": None}),
        "it has no input; expected one",
    ),
    "no-weight-for-cudnn": (
        lambda r: node("cudnn_batch_norm_backward", {**tensors(r, SHAPE), "weight": None}),
        "it has no weight; expected one",
    ),
    "no-weight-for-miopen": (
        lambda r: node("miopen_batch_norm_backward", {**tensors(r, SHAPE), "weight": None}),
        "it has no weight; expected one",
    ),
    "tensor-as-attribute": (
        lambda r: edited(r, set_attribute(ir.AttrFloat32s("weight", [1.0])), "aten "),
        "its weight is an attribute; expected an input",
    ),
    "attribute-type": (
        lambda r: edited(r, set_attribute(ir.AttrString("train", "True")), "aten "),
        "its attribute train is of type STRING; expected INT",
    ),
    "mask-length": (
        lambda r: node(NATIVE, tensors(r, SHAPE), mask=(True, True)),
        "its output_mask has 2 elements; expected 3",
    ),
    "no-train": (
        lambda r: node(NATIVE, tensors(r, SHAPE), "aten ", leave_out=("train",)),
        "it has no train; expected one",
    ),
    "no-update": (
        lambda r: node("batch_norm_backward", tensors(r, SHAPE), "aten ", leave_out=("train",)),
        "it has no update; expected one",
    ),
    "train-fed": (lambda r: edited(r, feed("train")), f"its train is not constant; {FOLD}"),
    "train-of-a-caller": (
        lambda r: edited(r, set_attribute(ir.RefAttr("train", "training", INT)), "aten "),
        f"its train is not constant; {FOLD}",
    ),
    "no-eps": (
        lambda r: node(NATIVE, tensors(r, SHAPE), "aten ", train=False, leave_out=("eps",)),
        "it has no eps; expected one",
    ),
    "no-epsilon": (
        lambda r: node(
            "miopen_batch_norm_backward", tensors(r, SHAPE, without=("save_mean",)), "aten ", leave_out=("eps",)
        ),
        "it has no epsilon; expected one",
    ),
    "eps-fed": (lambda r: edited(r, feed("eps"), train=False), f"its eps is not constant; {FOLD}"),
    "no-running-mean": (
        lambda r: node(NATIVE, tensors(r, SHAPE, without=("running_mean",)), train=False),
        "it has no running_mean and is not training; expected one",
    ),
    "no-running-var": (
        lambda r: node(NATIVE, tensors(r, SHAPE, without=("running_var",)), train=False),
        "it has no running_var and is not training; expected one",
    ),
    "masked-output-used": (
        lambda r: node(NATIVE, tensors(r, SHAPE), mask=(True, False, True)),
        "its output 'grad_weight' is used but undefined; expected output_mask[1] to be true",
    ),
    "data-type": (
        lambda r: edited(r, set_type("input", ir.DataType.INT32)),
        "its input 'input' is int32; expected one of float, double, float16, bfloat16",
    ),
    "data-types": (
        lambda r: edited(r, set_type("input", ir.DataType.FLOAT16)),
        "its input 'input' is float16; expected float, the type of the data before it",
    ),
    "parameter-type": (
        lambda r: edited(r, set_type("weight", ir.DataType.FLOAT16)),
        "its input 'weight' is float16; expected float",
    ),
    "statistics-types": (
        lambda r: node(NATIVE, {**tensors(r, SHAPE, "float16"), "save_mean": np.zeros(3, np.float32)}),
        "its statistics are float and float16; expected one type",
    ),
    "rank-1": (lambda r: node(NATIVE, tensors(r, (3, 3)) | {"input": np.zeros(3, np.float32)}), None),
    "channels": (
        lambda r: edited(r, set_shape("save_mean", 4)),
        "its input 'save_mean' has 4 elements; expected 3, one per channel",
    ),
    "empty-statistics": (
        lambda r: edited(r, set_shape("save_invstd", 0)),
        "its input 'save_invstd' has 0 elements; expected 3, one per channel",
    ),
    "sync-reduce": (
        lambda r: edited(r, rename("batch_norm_backward_reduce"), "aten "),
        "it is part of SyncBatchNorm, which sums across devices; expected BatchNorm",
    ),
    "sync-elemt": (
        lambda r: edited(r, set_attribute(ir.AttrString("operator", "aten::batch_norm_backward_elemt"))),
        "it is part of SyncBatchNorm, which sums across devices; expected BatchNorm",
    ),
}
REFUSALS["rank-1"] = (REFUSALS["rank-1"][0], "its input has rank 1; expected 2 or more ([N, C, ...])")


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case, rng):
    build, reason = REFUSALS[case]
    assert refused(build(rng)).startswith(reason)


def test_one_refusal_stops_all():
    text = """g (float[N,3] x, float[3] c) => (float[N,3] p, float[N,3] q) {
        p = aten.native_batch_norm_backward<train = 1>(x, x, c, , , c, c)
        [foreign] q = aten.native_batch_norm_backward(x, x, c, , , c, c)
    }"""
    assert refused(model(text, 17, "aten")) == "it has no train; expected one"


# ---- the documents ----


def fenced(name):
    (text,) = re.findall(r"```onnx\n(.*?)```", (DIALECTS / name).read_text("utf-8"), re.DOTALL)
    return text


def test_the_example_of_the_document(rng):
    before = ir.from_proto(onnx.parser.parse_model(fenced("pytorch.md")))
    t = tensors(rng, (4, 3, 5))
    after = rewritten(before, ImportAtenPass())
    assert ops(after).count("bngrad.BatchNormalizationGrad") == 2
    arguments = {"dy": t["grad_out"], "x": t["input"], "weight": t["weight"], "running_mean": t["running_mean"]}
    arguments |= {"running_var": t["running_var"], "save_mean": t["save_mean"], "save_invstd": t["save_invstd"]}
    got = run(after, arguments)
    for name, train in (("dx", True), ("dx_frozen", False)):
        assert worst_error(got[name], aten(t, train)["grad_input"]) <= TOLERANCES["float"], name
