"""Synchronized batch norms and collectives in sessions of ONNX Runtime: several ranks, and what nodes refuse."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ranks import World, copies
from test_ort_op import SYNCHRONIZED

OUTPUTS = ["Y", "new_mean", "new_var", "dX", "dscale", "dbias", "of_relu", "loss"]
DATA = ("dY", "Z", "X", "Y", "dX", "of_relu")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return copies(tmp_path_factory.mktemp("ranks"), 8)


@pytest.fixture
def alone(libraries):
    libraries[0].unset()
    return libraries[0]


def make_session(rank, model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.register_custom_ops_library(str(rank.path))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(rank, model, feeds):
    """The outputs; the text of an error of ONNX Runtime is that of a RuntimeError."""
    try:
        return make_session(rank, model).run(None, feeds)
    except Exception as error:  # noqa: BLE001 - the classes differ between releases
        raise RuntimeError(str(error)) from None


def synchronized(dtype):
    return onnx.parser.parse_model(SYNCHRONIZED.replace("T[", f"{dtype}[").replace("P[", f"{dtype}["))


def feeds_of_batch(samples, dtype, rng):
    feeds = {name: rng.normal(1, 2, (samples, 3, 5)) for name in ("dY", "Z", "X")}
    feeds |= {name: rng.uniform(0.5, 1.5, 3) for name in ("scale", "bias", "running_mean", "running_var")}
    return {name: value.astype(dtype) for name, value in feeds.items()}


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(
    "counts", [(4,), (2, 2), (3, 0, 1), (0, 5), (2, 1, 2, 3), (1, 1, 0, 2, 1, 3, 1, 4)], ids=str
)
def test_ranks_compute_what_one_computes_with_the_whole_batch(libraries, counts, dtype, rng):
    numpy_type = {"float": np.float32, "double": np.float64}[dtype]
    tolerance = {"float": 2e-6, "double": 1e-13}[dtype]
    whole, model = feeds_of_batch(sum(counts), numpy_type, rng), synchronized(dtype)
    libraries[0].unset()
    expected = dict(zip(OUTPUTS, run(libraries[0], model, whole), strict=True))

    ends = list(itertools.accumulate(counts))
    parts = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    ranks = World(libraries[: len(counts)]).run(
        lambda rank: run(rank, model, {n: v[parts[rank.rank]] if n in DATA else v for n, v in whole.items()})
    )
    ranks = [dict(zip(OUTPUTS, outputs, strict=True)) for outputs in ranks]
    for name, want in expected.items():
        if name in DATA:
            got = np.concatenate([outputs[name] for outputs in ranks])
        elif name in ("dscale", "dbias"):
            got = np.sum([outputs[name] for outputs in ranks], axis=0)
        else:
            # The same on all ranks, bit for bit.
            got = ranks[0][name]
            assert all(outputs[name].tobytes() == got.tobytes() for outputs in ranks)
            want = want * len(counts) if name == "loss" else want  # noqa: PLW2901
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=10 * tolerance, err_msg=name)


def one_node(op, dtype=TensorProto.DOUBLE, rank=1, *, constant=None, **attributes):
    names = {"AllGather": ("value", "gathered"), "AllReduce": ("partial", "total")}[op]
    nodes, inputs = [helper.make_node(op, [names[0]], [names[1]], "exchange", domain="bngrad", **attributes)], []
    initializers = []
    if constant is None:
        inputs = [helper.make_tensor_value_info(names[0], dtype, [None] * rank)]
    else:
        initializers = [onnx.numpy_helper.from_array(constant, names[0])]
    outputs = [helper.make_tensor_value_info(names[1], dtype, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3), (1, 2) * 4], ids=str)
def test_exchanges_of_any_shape(libraries, shape, rng):
    values = [np.asarray(rng.normal(size=shape)) for _ in range(3)]
    world = World(libraries[:3])
    model = one_node("AllGather", rank=len(shape), key="a")
    for (gathered,) in world.run(lambda rank: run(rank, model, {"value": values[rank.rank]})):
        np.testing.assert_array_equal(gathered, values)
    model = one_node("AllReduce", rank=len(shape), key="a")
    for (total,) in world.run(lambda rank: run(rank, model, {"partial": values[rank.rank]})):
        np.testing.assert_array_equal(total, (values[0] + values[1]) + values[2])


def test_the_header_has_the_shape(libraries):
    """Arrays of as many bytes, and of another shape, are not exchanged."""
    shapes = [(2, 3), (3, 2)]
    model = one_node("AllGather", rank=2, key="bn1/moments")
    errors = World(libraries[:2]).run(lambda rank: run(rank, model, {"value": np.zeros(shapes[rank.rank])}))
    assert errors[0] == errors[1]
    assert "bngrad.AllGather, node 'exchange': ranks 0 and 1 do not match: rank 0 is at" in errors[0]
    assert "AllGather 'bn1/moments' of double[2,3], bngrad" in errors[0]
    assert "AllGather 'bn1/moments' of double[3,2], bngrad" in errors[0]


def test_constants_are_exchanged_when_the_session_is_created(libraries):
    """ONNX Runtime folds them; every rank does."""
    world = World(libraries[:2])
    model = {r: one_node("AllReduce", constant=np.array([1.0 + r]), key="weights") for r in range(2)}
    assert [total.tolist() for (total,) in world.run(lambda rank: run(rank, model[rank.rank], {}))] == [[3.0]] * 2


@pytest.mark.parametrize(("op", "name"), [("AllGather", "value"), ("AllReduce", "partial")])
@pytest.mark.parametrize(
    ("before", "now", "text"), [(1, 2, "made with 1 rank, now 2"), (2, 1, "made with 2 ranks, now 1")]
)
def test_a_collective_that_is_set_too_late(libraries, op, name, before, now, text):
    rank = libraries[0]

    def set_ranks(count):
        if count == 1:
            rank.unset()
        else:
            rank.set(lambda _, sent: sent * count, 0, count)

    set_ranks(before)
    session = make_session(rank, one_node(op, key="a"))
    set_ranks(now)
    with pytest.raises(Exception, match=rf"the collective was set after the session was created \({text}\); set"):
        session.run(None, {name: np.ones(3)})
    set_ranks(before)
    session.run(None, {name: np.ones(3)})


@pytest.mark.parametrize("op", ["AllGather", "AllReduce"])
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "attribute key is missing or not of type string"),
        ({"key": 3}, "attribute key is missing or not of type string"),
        ({"key": ""}, "key"),
    ],
    ids=["missing", "int", "empty"],
)
def test_a_bad_key(alone, op, attributes, message):
    with pytest.raises(Exception, match=rf"bngrad\.{op}, node 'exchange': {message}"):
        make_session(alone, one_node(op, **attributes))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("AllGather", "FLOAT"), ("AllGather", "INT64"), ("AllReduce", "FLOAT16"), ("AllReduce", "INT64")],
)
def test_a_type_that_is_not_exchanged(alone, op, dtype):
    with pytest.raises(Exception, match=op):
        make_session(alone, one_node(op, getattr(TensorProto, dtype), key="a"))


def test_a_rank_that_is_too_high(alone):
    session = make_session(alone, one_node("AllGather", rank=9, key="a"))
    with pytest.raises(Exception, match="value has rank 9; expected 1 to 8"):
        session.run(None, {"value": np.ones((1,) * 9)})


SIGNATURES = {
    "BatchNormalizationMergeMoments": ["gathered_moments", "running_mean", "running_var"],
    "BatchNormalizationApply": ["X", "scale", "bias", "batch_mean", "batch_inv_std", "axes"],
    "BatchNormalizationGradSums": ["dY", "X", "scale", "batch_mean", "batch_inv_std", "axes"],
    "BatchNormalizationReluGradSums": ["dZ", "Z", "X", "scale", "batch_mean", "batch_inv_std", "axes"],
    "BatchNormalizationGradApply": [
        *("dY", "X", "scale", "batch_mean", "batch_inv_std", "gathered_sums", "batch_count", "axes")
    ],
}
FIRST_OUTPUT_IS_DOUBLE = ("BatchNormalizationGradSums", "BatchNormalizationReluGradSums")
RIGHT = {
    "gathered_moments": np.ones((2, 3, 3)),
    "gathered_sums": np.ones((2, 2, 3)),
    "batch_count": np.array(8.0),
    "axes": np.array([0, 2]),
    **dict.fromkeys(("X", "dY", "dZ", "Z"), np.ones((4, 3, 2), np.float32)),
    **dict.fromkeys(("scale", "bias", "running_mean", "running_var"), np.ones(3, np.float32)),
    **dict.fromkeys(("batch_mean", "batch_inv_std"), np.ones(3)),
}
REFUSALS = [
    (
        "MergeMoments",
        {"gathered_moments": np.ones((2, 2, 3))},
        "gathered_moments has shape [2,2,3]; expected [R,3,3]",
    ),
    (
        "MergeMoments",
        {"gathered_moments": np.ones((0, 3, 3))},
        "gathered_moments has shape [0,3,3]; expected [R,3,3]",
    ),
    (
        "MergeMoments",
        {"running_var": np.ones(4, "f4")},
        "running_var has shape [4]; expected [3], the shape of running",
    ),
    ("MergeMoments", {"epsilon": -1.0}, "epsilon is -1.000000; expected a finite number >= 0"),
    ("MergeMoments", {"unbiased_running_var": 2}, "unbiased_running_var is 2; expected 0 or 1"),
    (
        "Apply",
        {"batch_mean": np.ones(4)},
        "batch_mean has shape [4]; expected [3], the shape [4,3,2] of X without axes",
    ),
    ("Apply", {"axes": np.array([3])}, "axis 3 is out of range"),
    ("GradSums", {"scale": np.ones(2, "f4")}, "scale has shape [2]; expected [3]"),
    ("GradSums", {"dY": np.ones((4, 3), "f4")}, "dY has shape [4,3]; expected [4,3,2], the shape of X"),
    ("ReluGradSums", {"Z": np.ones((4, 3), "f4")}, "Z has shape [4,3]; expected [4,3,2], the shape of X"),
    ("GradApply", {"gathered_sums": np.ones((2, 3, 3))}, "gathered_sums has shape [2,3,3]; expected [R,2,3]"),
    ("GradApply", {"gathered_sums": np.ones((2, 2))}, "gathered_sums has shape [2,2]; expected [R,2,3]"),
    ("GradApply", {"batch_count": np.ones(1)}, "batch_count has shape [1]; expected [], a scalar"),
]


@pytest.mark.parametrize(
    ("name", "wrong", "message"), [pytest.param(*r, id=f"{r[0]}-{next(iter(r[1]))}") for r in REFUSALS]
)
def test_refusals(alone, name, wrong, message):
    op = f"BatchNormalization{name}"
    merges = {"epsilon": 1e-3, "momentum": 0.9, "unbiased_running_var": 1} if name == "MergeMoments" else {}

    def computed(change):
        feeds = {n: change.get(n, RIGHT[n]) for n in SIGNATURES[op]}
        attributes = {n: change.get(n, value) for n, value in merges.items()}
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim)
            for n, v in feeds.items()
        ]
        kind = TensorProto.DOUBLE if op in FIRST_OUTPUT_IS_DOUBLE else TensorProto.FLOAT
        outputs = [helper.make_tensor_value_info("output", kind, None)]
        node = helper.make_node(op, list(feeds), ["output"], "the_node", domain="bngrad", **attributes)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
        graph = helper.make_graph([node], "g", inputs, outputs)
        return run(alone, helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds)

    computed({})
    with pytest.raises(RuntimeError) as caught:
        computed(wrong)
    assert f"bngrad.{op}, node 'the_node': " in str(caught.value)
    assert message in str(caught.value)
