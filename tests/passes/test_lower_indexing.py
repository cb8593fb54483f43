"""Concat, Split, Slice and Gather of ORT's dialect, lowered, against NumPy and ORT-training's own kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from bngrad.validation.float64 import evaluate
from pairwise import pairwise
from validation.training_op_cases import CASES, Case, ints, values

OPS = {"ConcatTraining", "SplitTraining", "SliceGrad", "GatherGrad", "GatherElementsGrad", "GatherNDGrad"}
REPEATED = np.array([[0, 2], [2, -1]], np.int32)
MORE = [
    Case("SplitTraining", "first-alone", (values(2, 7), ints(1, 4, 2)), {"axis": 1}, "a--"),
    Case("SplitTraining", "default-axis", (values(3, 2), ints(2, 1)), {}, "ab"),
    Case("ConcatTraining", "lengths-alone", (values(2, 1), values(2, 3)), {"axis": -1}, "-b"),
    Case("ConcatTraining", "no-lengths", (values(2, 1), values(2, 3)), {"axis": 1}, "a"),
    Case("SliceGrad", "nothing", (values(0, 5), ints(4, 5), ints(2), ints(2), ints(0))),
    Case("SliceGrad", "steps-of-1", (values(2, 5), ints(4, 5), ints(1), ints(3), ints(0), ints(1))),
    Case(
        "SliceGrad",
        "int32",
        (values(4, 2), ints(4, 5), *(i.astype(np.int32) for i in (ints(-3), ints(9), ints(-1), ints(2)))),
    ),
    Case("SliceGrad", "vector", (values(2), ints(5), ints(4), ints(0), ints(0), ints(-2))),
    Case("GatherGrad", "int32", (ints(3, 4, 5), REPEATED, values(3, 2, 2, 5)), {"axis": -2}),
    Case("GatherGrad", "vector", (ints(6), REPEATED, values(2, 2)), {"axis": 0}),
    Case("GatherElementsGrad", "fewer", (values(2, 1), ints(3, 2), np.array([[2], [2]])), {"axis": 0}),
    Case("GatherNDGrad", "negative", (ints(3, 4), np.array([[-1, -4], [2, 0]]), values(2))),
    Case(
        "GatherNDGrad",
        "two-batch-axes",
        (ints(2, 3, 4), np.array([[[1], [3], [1]], [[0], [0], [-1]]]), values(2, 3)),
        {"batch_dims": 2},
    ),
    Case("GatherNDGrad", "default", (ints(3, 4), np.array([0, 1]), values())),
]
MINE = [*(case for case in CASES if case.op in OPS), *MORE]
NEGATIVE_STEP = {"SliceGrad-backwards", "SliceGrad-vector"}
"""ORT's own kernel fails on a negative step along the last axis."""
ABSENT_OUTPUTS = {"SplitTraining-first-alone", "ConcatTraining-lengths-alone"}
"""ORT's own kernels have all outputs."""


def model_of(case, *, fixed, opset=18, dtype=np.float32):
    """The case with constant shapes and indices, or with nothing known but ranks."""
    model = replace(case, opset=opset).model()
    results = evaluate(model, case.feeds)
    graph = model.graph
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for value in (*graph.input, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            tensor.elem_type = elem_type
        shape = case.feeds[value.name].shape if value.name in case.feeds else results[value.name].shape
        tensor.ClearField("shape")
        tensor.shape.SetInParent()
        for axis, extent in enumerate(shape):
            # The last dimension of the indices of GatherND is how many axes they index.
            symbolic = not fixed and not (case.op == "GatherNDGrad" and value.name == "x1")
            tensor.shape.dim.add(**({"dim_param": f"{value.name}_{axis}"} if symbolic else {"dim_value": extent}))
    if fixed:
        constants = [value for value in graph.input if value.type.tensor_type.elem_type != elem_type]
        for value in constants:
            graph.initializer.append(numpy_helper.from_array(case.feeds[value.name], value.name))
            graph.input.remove(value)
    return model


def run(model, case, dtype=np.float32, threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    feeds = {
        name: array.astype(dtype) if array.dtype == np.float32 else array for name, array in case.feeds.items()
    }
    results = session.run(names, {name: array for name, array in feeds.items() if name in inputs})
    return dict(zip(names, results, strict=True))


def lower(model):
    return ir.to_proto(rewrite(ir.from_proto(model)).model)


def assert_close(got, want, limit):
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].shape == array.shape
        largest = np.max(np.abs(array), initial=1)
        np.testing.assert_allclose(got[name].astype(np.float64), array, rtol=0, atol=limit * largest, err_msg=name)


@pairwise(case=MINE, opset=[16, 18, 21], fixed={"fixed": True, "symbolic": False})
def test_agrees_with_numpy(case, opset, fixed):
    lowered = lower(model_of(case, fixed=fixed, opset=opset))
    assert_close(run(lowered, case), evaluate(case.model(), case.feeds), 1e-6)


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1e-15), (np.float16, 2e-3)], ids=["double", "half"])
@pytest.mark.parametrize("case", MINE, ids=str)
def test_other_types(case, dtype, limit):
    exact = {
        name: array.astype(dtype) if array.dtype == np.float32 else array for name, array in case.feeds.items()
    }
    wide = {name: array.astype(np.float64) if array.dtype == dtype else array for name, array in exact.items()}
    lowered = lower(model_of(case, fixed=False, dtype=dtype))
    assert_close(run(lowered, case, dtype), evaluate(case.model(), wide), limit)


@pytest.mark.parametrize("case", [case for case in MORE if case.id not in NEGATIVE_STEP | ABSENT_OUTPUTS], ids=str)
def test_numpy_agrees_with_ort(case, oracle):
    """Of the other cases this is tested where the NumPy ops are."""
    got = oracle.run(case.model(), case.feeds)
    assert_close(got, evaluate(case.model(), case.feeds), 1e-6)


def test_adds_exactly_on_several_threads(rng):
    """Few rows and many indices: two threads that add at once would lose an addition."""
    indices = rng.integers(0, 5, 20000)
    dY = rng.integers(-4, 5, (20000, 64)).astype(np.float32)
    case = Case("GatherGrad", "threads", (ints(5, 64), indices, dY), {"axis": 0})
    lowered = lower(model_of(case, fixed=False))
    want = np.zeros([5, 64])
    np.add.at(want, indices, dY)
    for _ in range(5):
        np.testing.assert_array_equal(run(lowered, case, threads=4)["a"], want)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("GatherGrad", "rank", (ints(3, 4), ints(0), values(1, 4))), "rank of its dX"),
        (
            Case("GatherNDGrad", "length", (ints(3, 4), np.array([[0]]), values(1, 4))),
            "last dimension of its indices",
        ),
    ],
    ids=str,
)
def test_refusals(case, message):
    model = case.model()
    model.graph.input[1].type.tensor_type.shape.dim[-1].dim_param = "K"
    with pytest.raises(UnsupportedNodeError, match=message):
        lower(model)


@pytest.mark.parametrize("case", [case for case in MINE if case.what in {"leading", "axis0", "points"}], ids=str)
def test_refuses_an_unknown_type(case):
    """The output of another training op has a type only if the model states it."""
    model = model_of(case, fixed=True)
    (dX,) = model.graph.output
    model.graph.node.append(onnx.helper.make_node("Identity", ["a"], ["b"], name="copy"))
    dX.name = "b"
    with pytest.raises(UnsupportedNodeError, match="of its dX is not known"):
        lower(model)


def test_static_slices_are_pads():
    case = next(case for case in MINE if case.id == "SliceGrad-negative")
    types = [node.op_type for node in lower(model_of(case, fixed=True)).graph.node]
    assert types == ["Constant", "Pad"]
