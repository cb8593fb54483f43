"""Batch norms and their gradients, split at their sums."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import InputError, LibraryError, UnsupportedNodeError
from bngrad.passes.distribute.collectives import is_collective
from bngrad.passes.distribute.synchronize_batch_norms import SynchronizeBatchNormsPass
from bngrad.passes.pipeline import rewrite
from bngrad.runtime.session import session
from pass_models import close, feeds_for, header, internal_and_grad, lines, model, ops, proto, run

X, C = "float[N,3,4]", "float[3]"
VALUES = f"{X} dz, {X} x, {C} s, {C} b, {C} m, {C} v"
TRAINING = "bngrad.BatchNormalizationTraining <epsilon = 0.001, momentum = 0.8, unbiased_running_var = 1>"
AXES = "axes = Constant <value_ints = [0, 2]> ()"
FORWARD = f"{AXES} [bn] y, nm, nv, mean, inv_std = {TRAINING} (x, s, b, m, v, axes)"
RELU = "[relu] z = Relu (y) [relu_grad] dy = com.microsoft.ReluGrad (dz, z)"
GRADIENT = "dx, ds, db = bngrad.BatchNormalizationGrad <training_mode = 1>"
BACKWARD = f"[bn_grad] {GRADIENT} (dy, x, s, mean, inv_std, axes)"
OUTPUTS = f"{X} z, {C} nm, {C} nv, {X} dx, {C} ds, {C} db"


def graph(body, outputs=OUTPUTS, values=VALUES):
    return header(17, "com.microsoft", "bngrad", "f") + f"g ({values}) => ({outputs}) {{ {body} }}"


WHOLE = graph(f"{FORWARD} {RELU} {BACKWARD}")


def collectives(ir_model):
    return [node.attributes["key"].as_string() for node in ir_model.graph if is_collective(node)]


def synchronized(text):
    ir_model = model(text)
    assert SynchronizeBatchNormsPass()(ir_model).modified
    return ir_model


def test_the_text_of_a_rewrite(golden):
    result = rewrite(ir.from_proto(proto(WHOLE)), sync=True)
    golden("synchronized.after.txt", lines(result.model))
    assert result.rewritten == {
        "BatchNormalizationMoments": 1,
        "AllGather": 2,
        "BatchNormalizationMergeMoments": 1,
        "BatchNormalizationApply": 1,
        "BatchNormalizationReluGradSums": 1,
        "BatchNormalizationReluGradApply": 1,
    }


TYPES = {"float": (np.float32, 2e-6), "double": (np.float64, 1e-13)}


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("implementation", ["native", "python"])
def test_one_rank_computes_what_the_batch_norms_do(implementation, dtype, fuse, rng):
    kind, tolerance = TYPES[dtype]
    text = proto(WHOLE.replace("float[", f"{dtype}["))
    feeds = feeds_for(text, rng, kind, N=5)
    synced, whole = (rewrite(ir.from_proto(text), fuse=fuse, sync=sync).model for sync in (True, False))
    close(
        run(ir.to_proto(synced), feeds, implementation), run(ir.to_proto(whole), feeds, implementation), tolerance
    )


def test_no_session_without_the_library():
    """Functions of the collectives would be those of one rank, and each process would train by itself."""
    result = ir.to_proto(rewrite(ir.from_proto(proto(WHOLE)), sync=True).model)
    assert not {"AllGather", "AllReduce"} & {function.name for function in result.functions}
    with pytest.raises(LibraryError, match="built with --sync: its AllGather and AllReduce"):
        session(result, "function")


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16], ids=["float16", "bfloat16"])
def test_one_rank_in_16_bits(dtype, rng):
    name = dtype.name.lower()
    text = WHOLE.replace(X, f"{name}[N,3,4]").replace(OUTPUTS, OUTPUTS + f", {C} mean, {C} inv_std")
    # Casts at the ends: ONNX Runtime feeds neither bfloat16 nor a ReLU in it.
    text = text.replace(RELU, "[same] z = Identity (y) [grad] dy = Identity (dz)")
    synced, whole = (ir.to_proto(rewrite(ir.from_proto(proto(text)), sync=sync).model) for sync in (True, False))
    feeds = feeds_for(proto(WHOLE), rng, N=5)
    for key in ("dz", "x"):
        feeds[key] = feeds[key].astype(dtype.numpy())
    got, want = (_run_in(dtype, graph, feeds) for graph in (synced, whole))
    unit = 2.0**-10 if dtype == ir.DataType.FLOAT16 else 2.0**-7
    for key, value in want.items():
        bound = 2 * unit if key in ("z", "dx") else 1e-5  # one rounding each
        np.testing.assert_allclose(got[key], value, rtol=bound, atol=bound, err_msg=key)


def _run_in(dtype, graph, feeds):
    """The outputs in float, of a graph with inputs and outputs in 16 bits."""
    if dtype == ir.DataType.FLOAT16:
        return {name: value.astype(np.float32) for name, value in run(graph, feeds, "native").items()}
    import onnxruntime

    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), onnx.TensorProto.BFLOAT16
        )
        if array.dtype.itemsize == 2
        else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    widened = onnx.ModelProto()
    widened.CopyFrom(graph)
    for output in widened.graph.output:
        if output.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            widened.graph.node.append(onnx.helper.make_node("Cast", [output.name], [f"{output.name}/w"], to=1))
            output.name = f"{output.name}/w"
    names = [output.name for output in widened.graph.output]
    results = session(widened, "native").run_with_ort_values(names, values)
    return {name.removesuffix("/w"): value.numpy() for name, value in zip(names, results, strict=True)}


@pytest.mark.parametrize("rank", [2, 5, 8])
def test_batch_norms_of_onnx_runtime_of_any_rank(rank, rng):
    text = proto(internal_and_grad(rank))
    feeds = feeds_for(text, rng)
    synced, whole = (ir.to_proto(rewrite(ir.from_proto(text), sync=sync).model) for sync in (True, False))
    close(run(synced, feeds, "native"), run(whole, feeds, "native"), 1e-5)


def test_a_gradient_of_x_that_nothing_reads_is_not_gathered_for():
    ir_model = synchronized(graph(f"{FORWARD} {RELU} {BACKWARD}", f"{X} z, {C} ds, {C} db"))
    assert collectives(ir_model) == ["bn/moments"]
    assert "bngrad.BatchNormalizationGradSums" in ops(ir_model)
    assert "bngrad.BatchNormalizationGradApply" not in ops(ir_model)
    assert "bn_grad" in [node.name for node in ir_model.graph]


def test_names_metadata_and_types_stay():
    before = model(WHOLE)
    (forward, backward) = (node for node in before.graph if node.domain == "bngrad")
    forward.metadata_props["scope"], backward.doc_string = "layer1", "why"
    types = {value.name: (value.type, value.shape) for value in before.graph.outputs}
    SynchronizeBatchNormsPass()(before)
    apply, gradient = (
        next(node for node in before.graph if node.op_type == f"BatchNormalization{what}Apply")
        for what in ("", "Grad")
    )
    assert (apply.name, apply.metadata_props["scope"]) == ("bn", "layer1")
    assert (gradient.name, gradient.doc_string) == ("bn_grad", "why")
    assert {value.name: (value.type, value.shape) for value in before.graph.outputs} == types


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_other_readers_of_the_statistics_get_them_in_their_type(dtype):
    outputs = OUTPUTS + f", {C} mean, {C} twice"
    text = graph(f"{FORWARD} {RELU} {BACKWARD} twice = Add (inv_std, inv_std)", outputs)
    ir_model = synchronized(text.replace("float[", f"{dtype}["))
    (merge,) = (node for node in ir_model.graph if node.op_type == "BatchNormalizationMergeMoments")
    casts = [node for node in ir_model.graph if node.op_type == "Cast"]
    assert len(casts) == (2 if dtype == "float" else 0)
    assert {value.name for value in ir_model.graph.outputs} >= {"mean", "twice"}
    (gradient,) = (node for node in ir_model.graph if node.op_type == "BatchNormalizationGradApply")
    assert gradient.inputs[3:5] == merge.outputs[2:4]


RESHAPED = """shape = Constant <value_ints = [1, 3, 1]> () flat = Constant <value_ints = [-1]> ()
    spread = Reshape (mean, shape) again = Reshape (spread, flat) same = Identity (inv_std)"""


def test_statistics_in_another_shape_between():
    body = f"{FORWARD} {RELU} {RESHAPED} {BACKWARD}".replace("s, mean, inv_std, axes)", "s, again, same, axes)")
    assert collectives(synchronized(graph(body))) == ["bn/moments", "bn_grad/sums"]


def test_keys_are_unique():
    twice = " ".join(
        f"""[bn] y{i}, nm{i}, nv{i}, mean{i}, inv_std{i} = {TRAINING} (x, s, b, m, v, axes)
            {name} dx{i}, ds{i}, db{i} = bngrad.BatchNormalizationGrad <training_mode = 1>
                (dz, x, s, mean{i}, inv_std{i}, axes)"""
        for i, name in enumerate(("", "", "[same]", "[same]"))
    )
    outputs = ", ".join(f"{X} y{i}, {X} dx{i}" for i in range(4))
    ir_model = synchronized(graph("axes = Constant <value_ints = [0, 2]> ()" + twice, outputs))
    keys = collectives(ir_model)
    assert len(keys) == len(set(keys)) == 8
    # A synchronized graph that gets another batch norm, under a name that is free again.
    for node in ir_model.graph:
        node.name = f"renamed_{node.name}"
    more = model(graph(FORWARD, f"{X} y"))
    names = {value.name: value for value in ir_model.graph.inputs}
    batch_norm = next(node for node in more.graph if node.domain == "bngrad")
    axes = next(node.outputs[0] for node in ir_model.graph if node.op_type == "Constant")
    inputs = [names[value.name] for value in batch_norm.inputs[:-1]]
    attributes = list(batch_norm.attributes.values())
    new = ir.Node("bngrad", "BatchNormalizationTraining", [*inputs, axes], attributes, num_outputs=5, name="bn")
    ir_model.graph.append(new)
    ir_model.graph.outputs.append(new.outputs[0])
    new.outputs[0].name = "more"
    assert SynchronizeBatchNormsPass()(ir_model).modified
    keys = collectives(ir_model)
    assert len(keys) == len(set(keys)) == 9


LEFT_ALONE = {
    "a frozen gradient": (BACKWARD.replace("training_mode = 1", "training_mode = 0"), VALUES),
    "a batch norm in inference mode": ("dx, n1, n2 = BatchNormalization (x, s, b, m, v)", VALUES),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case):
    body, _ = LEFT_ALONE[case]
    values = f"{VALUES}, {X} dy, {C} mean, {C} inv_std"
    ir_model = model(graph("axes = Constant <value_ints = [0, 2]> () " + body, f"{X} dx", values))
    before = lines(ir_model)
    assert not SynchronizeBatchNormsPass()(ir_model).modified
    assert lines(ir_model) == before


PER_SAMPLE = {
    "InstanceNormalization": "InstanceNormalization (x, s, b)",
    "GroupNormalization": "GroupNormalization <num_groups = 1> (x, s, b)",
    "LayerNormalization": "LayerNormalization <axis = -1> (x, w)",
}


@pytest.mark.parametrize("op", PER_SAMPLE)
def test_norms_of_one_sample_exchange_nothing(op):
    text = f"""<ir_version: 8, opset_import: ["" : 21]> g ({X} x) => (float loss)
        <{C} s = {{1, 2, 3}}, {C} b = {{0, 0, 0}}, float[4] w = {{1, 2, 3, 4}}>
        {{ [norm] y = {PER_SAMPLE[op]} q = Mul (y, y) loss = ReduceMean <keepdims = 0> (q) }}"""
    ir_model = ir.from_proto(bngrad.differentiate(onnx.parser.parse_model(text), sync=True))
    assert sorted(collectives(ir_model)) == ["gradients/0", "loss", "weights"]


SWAPPED = BACKWARD.replace("mean, inv_std", "inv_std, mean")
INSIDE = f"""on = Constant <value = bool {{1}}> () z = If (on) <
    then_branch = t () => ({X} ty) {{ [inner] ty, tm, tv, ts, ti = {TRAINING} (x, s, b, m, v, axes) }},
    else_branch = e () => ({X} ey) {{ ey = Identity (x) }}>"""
STATISTICS = "mean, inv_std = bngrad.BatchNormalizationStatistics <epsilon = 0.001> (x, axes) dy = Identity (dz)"
TWO = f"""[bn2] y2, nm2, nv2, mean2, inv_std2 = {TRAINING} (dz, s, b, m, v, axes)
    {BACKWARD.replace("mean, inv_std", "mean, inv_std2")}"""
SECOND = """a, c, e = bngrad.BatchNormalizationGradGrad <training_mode = 1>
    (dx, ds, db, dy, x, s, mean, inv_std, axes)"""
NOT_THOSE = r"node 'bn_grad' .*: its statistics .* are not those of a BatchNormalizationTraining"
REFUSALS = {
    "statistics from outside": (
        f"{AXES} [g] {GRADIENT} (dz, x, s, m, v, axes)",
        f"{X} dx",
        r"node 'g' .*: its statistics \(mean 'm'\) are not those of a BatchNormalizationTraining of the graph",
    ),
    "a forward node without axes": (
        f"{FORWARD.replace(', axes)', ')')} {RELU} {BACKWARD}",
        f"{X} dx",
        r"node 'bn' .*: it has 5 of 5 inputs; expected 6, all present",
    ),
    "a gradient without a scale": (
        f"{FORWARD} {RELU} {BACKWARD.replace('x, s,', 'x, ,')}",
        f"{X} dx",
        r"node 'bn_grad' .*: it has 5 of 6 inputs; expected 6, all present",
    ),
    "statistics computed anew": (
        f"{AXES} {STATISTICS} {BACKWARD}",
        f"{X} dx",
        NOT_THOSE,
    ),
    "mean and inv_std swapped": (f"{FORWARD} {RELU} {SWAPPED}", f"{X} dx", NOT_THOSE),
    "statistics of two batch norms": (f"{FORWARD} {RELU} {TWO}", f"{X} dx", NOT_THOSE),
    "an If": (f"{AXES} {INSIDE}", f"{X} z", r"node 'inner' .*: it is in a subgraph or function"),
    "second order": (
        f"{FORWARD} {RELU} {BACKWARD} {SECOND}",
        f"{X} a",
        "second derivatives cannot be synchronized",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_before_anything_changes(case):
    body, outputs, message = REFUSALS[case]
    ir_model = model(graph(body, outputs))
    before = lines(ir_model)
    with pytest.raises(ir.passes.PassError) as error:
        ir.passes.Sequential(SynchronizeBatchNormsPass())(ir_model)
    assert isinstance(error.value.__cause__, UnsupportedNodeError)
    with pytest.raises(UnsupportedNodeError, match=message):
        raise error.value.__cause__
    assert lines(ir_model) == before


def test_a_function_is_refused():
    text = (
        graph(f"{AXES} y = f.F (x, s, b, m, v, axes)", f"{X} y")
        + f"""
        <domain: "f", opset_import: ["" : 17, "bngrad" : 1]> F (x, s, b, m, v, axes) => (y)
        {{ [inner] y, nm, nv, mean, inv_std = {TRAINING} (x, s, b, m, v, axes) }}"""
    )
    with pytest.raises(UnsupportedNodeError, match=r"node 'inner' .*: it is in a subgraph or function, which the"):
        rewrite(ir.from_proto(proto(text)), sync=True)


def test_another_target_is_refused():
    with pytest.raises(
        InputError, match=r"^--sync \(sync=\) is given with target 'training'; expected target 'stock'"
    ):
        rewrite(ir.from_proto(proto(WHOLE)), target="training", sync=True)


def test_a_synchronized_graph_is_rewritten_to_itself():
    once = rewrite(ir.from_proto(proto(WHOLE)), sync=True).model
    again = rewrite(once, sync=True)
    assert lines(again.model) == lines(once)
    assert not any(again.rewritten.values())


@pytest.mark.parametrize(("sync", "notes"), [(True, 1), (False, 0)], ids=["sync", "no sync"])
def test_a_note_where_nothing_is_synchronized(sync, notes):
    frozen = BACKWARD.replace("training_mode = 1", "training_mode = 0")
    text = graph(f"{AXES} {frozen}", f"{X} dx", f"{VALUES}, {X} dy, {C} mean, {C} inv_std")
    matching = [note for note in rewrite(ir.from_proto(proto(text)), sync=sync).notes if "nothing to sync" in note]
    assert len(matching) == notes


def test_a_synchronized_graph_is_a_training_graph():
    once = ir.to_proto(rewrite(ir.from_proto(proto(WHOLE)), sync=True).model)
    with pytest.raises(bngrad.ModelError, match="the model is a training graph already"):
        bngrad.differentiate(once)
    with pytest.raises(bngrad.ModelError, match="the model is a training graph already"):
        bngrad.finalize(once, {})


def test_a_synchronized_forward_model_has_no_gradient():
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g ({X} x, {C} m, {C} v) => (float loss, {C} nm, {C} nv)
        <{C} s = {{1, 2, 3}}, {C} b = {{0, 0, 0}}>
        {{ [bn] y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, m, v)
           loss = ReduceMean <keepdims = 0> (y) }}"""
    synced = bngrad.rewrite(onnx.parser.parse_model(text), sync=True)
    expected = (
        r"node 'bn' .* cannot be differentiated: .* for ops that are synchronized over ranks: pass the model that"
    )
    with pytest.raises(UnsupportedNodeError, match=expected):
        bngrad.differentiate(synced)
