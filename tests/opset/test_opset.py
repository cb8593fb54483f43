"""Tests the functions of the ops on stock ONNX Runtime, without a library, and on onnx's evaluator."""

from __future__ import annotations

import contextlib
import itertools
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from bngrad.opset import schemas
from bngrad.opset.axes import MAX_RANK
from bngrad.opset.functions import CALLS, DOMAIN, FUNCTIONS, MIN_OPSET, VERSION, function_proto
from op_models import (
    CASES,
    EXTENTS,
    GRAD,
    STATISTICS,
    TOLERANCES,
    TRAINING,
    assert_matches,
    expected,
    function_opsets,
    op_feeds,
    op_model,
    opset_versions,
    subsets,
)
from pairwise import pairwise

DTYPE_NAMES = {"float": np.float32, "double": np.float64}
DTYPES = pytest.mark.parametrize("dtype", DTYPE_NAMES.values(), ids=DTYPE_NAMES)
SOME_AXES = {
    6: ((0, 2, 3, 4, 5), (1, 3, 5)),
    7: ((0, 2, 3, 4, 5, 6), (0, 6)),
    8: ((0, *range(2, 8)), (1, 3, 5, 7)),
}
PATTERNS = {rank: SOME_AXES.get(rank, subsets(rank)) for rank in range(1, 9)}


class OnOrt:
    """Returns a model in a stock session without registered libraries."""

    def __init__(self, model):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, feeds):
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, feeds), strict=True))


class OnEvaluator:
    """Returns a model in onnx's reference evaluator."""

    def __init__(self, model):
        self._evaluator = ReferenceEvaluator(model)

    def __call__(self, feeds):
        return dict(zip(self._evaluator.output_names, self._evaluator.run(None, feeds), strict=True))


RUNTIMES = {"ort": OnOrt, "evaluator": OnEvaluator}


@cache
def newest_opset_of_ort():
    for version in reversed(opset_versions()):
        value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
        other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value], [other])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=8)
        with contextlib.suppress(Exception):  # what it raises differs by version
            OnOrt(model)
            return version
    raise AssertionError("this ONNX Runtime takes no opset from 15 on")


@pairwise(case=list(CASES), dtype=DTYPE_NAMES, runtime=RUNTIMES)
def test_every_pattern_of_axes(case, dtype, runtime, rng):
    op, attributes = CASES[case]
    run = runtime(op_model(op, attributes, dtype=dtype))
    for rank, patterns in PATTERNS.items():
        for axes in patterns:
            feeds = op_feeds(op, EXTENTS[:rank], axes, rng, dtype)
            assert_matches(run(feeds), expected(op, feeds, attributes), TOLERANCES[dtype], f"rank {rank} {axes}")


EDGES = {
    "no-axes": ((2, 3, 2), ()),
    "negative": ((2, 3, 2, 2), (-4, -1, -2)),
    "unsorted": ((2, 3, 2, 2), (3, 0, 2)),
    "m-is-1": ((1, 3, 1, 1), (0, 2, 3)),
    "empty-batch": ((0, 3, 2, 2), (0, 2, 3)),
    "no-channels": ((2, 0, 2), (0, 2)),
    "one-element": ((1,), (0,)),
    "one-channel": ((3, 1, 5), (0, 2)),
}


@DTYPES
@pytest.mark.parametrize("case", CASES)
def test_edges_on_ort(case, dtype, rng):
    op, attributes = CASES[case]
    run = OnOrt(op_model(op, attributes, dtype=dtype))
    for edge, (shape, axes) in EDGES.items():
        feeds = op_feeds(op, shape, axes, rng, dtype)
        want = expected(op, feeds, attributes)
        assert_matches(run(feeds), want, TOLERANCES[dtype], f"{edge}, axes fed")
        feeds.pop("axes", None)
        fixed = OnOrt(op_model(op, attributes, dtype=dtype, shape=shape, axes=axes))
        assert_matches(fixed(feeds), want, TOLERANCES[dtype], f"{edge}, axes constant")


@DTYPES
@pytest.mark.parametrize(
    "case", [case for case, (op, _) in CASES.items() if {"dscale", "d_scale"} & set(schemas.signature(op)[1])]
)
def test_sums_over_nothing_are_zero(case, dtype, rng):
    """Also with the statistics of an empty batch, which are NaN."""
    op, attributes = CASES[case]
    feeds = op_feeds(op, (0, 3, 2), (0, 2), rng, dtype)
    for name in {"mean", "inv_std", "batch_mean", "batch_inv_std"} & set(feeds):
        feeds[name] = np.full_like(feeds[name], np.nan)
    want = expected(op, feeds, attributes)
    assert all(not value.any() for value in want.values())
    assert_matches(OnOrt(op_model(op, attributes, dtype=dtype))(feeds), want, TOLERANCES[dtype])


@st.composite
def shapes_and_axes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)))
    axes = draw(st.permutations(sorted(draw(st.sets(st.integers(0, len(shape) - 1))))))
    return shape, [axis - len(shape) * draw(st.booleans()) for axis in axes]


@pytest.mark.parametrize("case", CASES)
def test_any_shape_and_axes_on_ort(case):
    op, attributes = CASES[case]
    run = OnOrt(op_model(op, attributes, dtype=np.float64))

    @given(shapes_and_axes(), st.integers(0, 2**32 - 1))
    @settings(max_examples=25, deadline=None, derandomize=True)
    def check(problem, seed):
        feeds = op_feeds(op, *problem, np.random.default_rng(seed), np.float64)
        assert_matches(run(feeds), expected(op, feeds, attributes), TOLERANCES[np.float64], str(problem))

    check()


@pytest.mark.parametrize(
    ("case", "version", "dtype"),
    [
        (case, version, dtype)
        for case, (op, _) in CASES.items()
        for version, dtype in zip(function_opsets(op), itertools.cycle(DTYPE_NAMES.values()), strict=False)
    ],
)
def test_every_opset(case, version, dtype, rng):
    """The body is the same at every opset of onnx, and runs at every opset that ORT supports."""
    op, attributes = CASES[case]
    shape, axes = (2, 3, 4), (0, 2)
    model = op_model(op, attributes, dtype=dtype, opset=version, shape=shape, axes=axes)
    onnx.checker.check_model(model, full_check=True)
    feeds = op_feeds(op, shape, axes, rng, dtype)
    want = expected(op, feeds, attributes)
    feeds.pop("axes", None)
    run = OnOrt(model) if version <= newest_opset_of_ort() else OnEvaluator(model)
    assert_matches(run(feeds), want, TOLERANCES[dtype])


def test_ort_ran_some_opsets():
    assert newest_opset_of_ort() >= 20


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_body_has_no_op_newer_than_the_oldest_opset(name):
    proto = function_proto(name, MIN_OPSET)
    assert proto.domain == DOMAIN
    ours = {(DOMAIN, VERSION)} if name in CALLS else set()
    assert {(o.domain, o.version) for o in proto.opset_import} == {("", MIN_OPSET), *ours}
    for node in proto.node:
        schema = onnx.defs.get_schema(node.op_type, MIN_OPSET, node.domain)
        assert schema.since_version <= MIN_OPSET
        assert {a.name for a in node.attribute} <= set(schema.attributes), node.op_type
        assert len(node.input) <= len(schema.inputs) or node.op_type in ("Concat", "Max", "Min")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_body_holds_none_of_the_traps(name):
    """Shape arithmetic makes ORT's shape inference hang; ORT's training batch norm overwrites its feeds."""
    nodes = function_proto(name, 17).node
    assert not {node.op_type for node in nodes} & {"Range", "BatchNormalization", "NonZero"}
    shapes = {node.output[0] for node in nodes if node.op_type == "Shape"}
    readers = {(node.op_type, list(node.input).index(s)) for node in nodes for s in shapes & set(node.input)}
    assert readers <= {("Expand", 1), ("Min", 0), ("Reshape", 1), ("Shape", 0)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_body_has_no_size_of_data(name):
    """A GPU provider without a Size copies the data to the CPU for it."""
    assert "Size" not in {node.op_type for node in function_proto(name, 17).node}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_attributes_have_no_default(name):
    """Ops of onnxruntime-extensions reject nodes without an attribute, so the functions must, too."""
    proto = function_proto(name, 17)
    assert list(proto.attribute) == list(schemas.signature(name)[2])
    assert not proto.attribute_proto


@DTYPES
def test_a_frozen_gradient_does_not_see_an_infinity_of_the_sums(dtype):
    big = np.finfo(dtype).max / 2
    run = OnOrt(op_model(GRAD, {"training_mode": 0}, dtype=dtype))
    unit = np.ones(1, dtype)
    feeds = {"dY": np.full((4, 1), big, dtype), "X": np.full((4, 1), 3, dtype), "scale": unit}
    got = run({**feeds, "mean": unit, "inv_std": unit, "axes": np.array([0])})
    assert np.isinf(got["dbias"]).all()
    np.testing.assert_array_equal(got["dX"], feeds["dY"])


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)
@pytest.mark.parametrize("training_mode", [0, 1], ids=["frozen", "training"])
def test_mean_and_inv_std_are_not_swapped(training_mode, runtime, rng):
    """They have the same shape and type, so only the values distinguish them."""
    attributes = {"training_mode": training_mode}
    feeds = op_feeds(GRAD, (4, 3, 5), (0, 2), rng)
    feeds["mean"] = np.array([3, -2, 0.5], np.float32)
    swapped = {**feeds, "mean": feeds["inv_std"], "inv_std": feeds["mean"]}
    run = runtime(op_model(GRAD, attributes))
    got, got_swapped = run(feeds), run(swapped)
    assert_matches(got, expected(GRAD, feeds, attributes), TOLERANCES[np.float32])
    for name in ("dX", "dscale"):
        assert np.abs(got[name] - got_swapped[name]).max() > 0.1, name


def test_saved_mean_and_saved_inv_std_are_not_swapped(rng):
    feeds = op_feeds(TRAINING, (8, 3), (0,), rng)
    feeds["X"] += 100
    got = OnOrt(op_model(TRAINING, CASES["training-biased"][1]))(feeds)
    assert (got["saved_mean"] > 90).all()
    assert (got["saved_inv_std"] < 10).all()


@DTYPES
def test_a_mean_far_from_zero_costs_the_gradient_no_digits(dtype, rng):
    """X - mean is computed first; sum(dY * X) - mean * sum(dY) would lose all digits in float."""
    x = (rng.integers(-4, 5, (64, 2)) + 2**20).astype(dtype)
    feeds = op_feeds(GRAD, (64, 2), (0,), rng, dtype)
    feeds.update(X=x, mean=np.full(2, 2**20, dtype), inv_std=np.ones(2, dtype))
    got = OnOrt(op_model(GRAD, {"training_mode": 1}, dtype=dtype))(feeds)
    assert_matches(got, expected(GRAD, feeds, {"training_mode": 1}), 10 * TOLERANCES[dtype])


def test_the_gradient_of_what_the_forward_saved_is_that_of_the_statistics_op(rng):
    x = rng.standard_normal((4, 3, 5)).astype(np.float32)
    feeds = {**op_feeds(TRAINING, x.shape, (0, 2), rng), "X": x}
    forward = OnOrt(op_model(TRAINING, CASES["training-biased"][1]))(feeds)
    statistics = OnOrt(op_model(STATISTICS, CASES["statistics"][1]))({"X": x, "axes": feeds["axes"]})
    np.testing.assert_array_equal(forward["saved_mean"], statistics["mean"])
    np.testing.assert_array_equal(forward["saved_inv_std"], statistics["inv_std"])


def test_every_function_has_a_reference():
    assert {op for op, _ in CASES.values()} == set(FUNCTIONS)
    for op, attributes in CASES.values():
        feeds = op_feeds(op, (2, 3), (0,), np.random.default_rng(0))
        assert all(v.dtype == np.float64 for v in expected(op, feeds, attributes).values())
    assert max(PATTERNS) == MAX_RANK
