"""The results of rewritten nodes, against TensorFlow itself, on the same inputs."""

from __future__ import annotations

import itertools
import json
import zlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import all_nodes
from bngrad.opset import reference
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from dialects import rewritten, run, worst_error
from ort_values import DTYPES
from tensorflow_formulas import (
    FORMATS,
    FORWARDS,
    GRADIENT_OUTPUTS,
    GRADIENTS,
    MODES,
    axes_of_format,
    converted,
    forward_inputs,
    gradient_inputs,
    shape_of,
)
from test_import_tensorflow_second_order import SECOND_ORDER

pytestmark = pytest.mark.long

TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
TOLERANCES = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""Two roundings: theirs and ours."""


class Job:
    """One call of TensorFlow's op."""

    def __init__(self, kind, op_type, data_format, dtype, mode, offset=0.0):
        self.kind, self.op_type, self.dtype = kind, op_type, dtype
        self.attributes = {"data_format": data_format, "is_training": MODES[mode], "epsilon": 1e-3}
        # No CPU kernel has frozen statistics with channels after N; XLA has.
        self.jit = mode == "frozen" and not data_format.endswith("C")
        self.name = f"{op_type}-{data_format}-{dtype}-{mode}" + (f"-{offset:g}" if offset else "")
        shape = shape_of(data_format)
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        if kind == "forward":
            self.inputs = forward_inputs(rng, shape, data_format, TYPES[dtype], offset=offset)
            self.attributes["exponential_avg_factor"] = 0.25
            return
        self.inputs = gradient_inputs(rng, shape, data_format, TYPES[dtype], offset=offset, op_type=op_type)
        if kind == "second_order":
            # In training TensorFlow computes the statistics again.
            self.axes = axes_of_format(data_format, len(shape))
            x = self.inputs["x"].astype(np.float64)
            if MODES[mode]:
                self.inputs["reserve_space_1"] = x.mean(self.axes).astype(np.float32)
                self.inputs["reserve_space_2"] = x.var(self.axes).astype(np.float32)
            self.inputs["U"] = rng.standard_normal(shape).astype(DTYPES[TYPES[dtype]])
            self.inputs |= {name: rng.standard_normal(3).astype(np.float32) for name in ("a", "b")}


def every(kind, op_types, data_formats=FORMATS, dtypes=TYPES, offsets=(0.0,)):
    return [Job(kind, *rest) for rest in itertools.product(op_types, data_formats, dtypes, MODES, offsets)]


JOBS = [
    *every("gradient", ["FusedBatchNormGradV3"]),
    *every("gradient", list(GRADIENTS)[:2], ["NHWC"], ["float32"]),
    *every("gradient", ["FusedBatchNormGradV3"], ["NHWC", "NDHWC"], ["float32"], [1000.0]),
    *every("forward", ["FusedBatchNormV3"]),
    *every("forward", list(FORWARDS)[:2], ["NHWC"], ["float32"]),
    *every("second_order", ["FusedBatchNormGradV3"]),
]


WRONG = {
    "rank-3": {"x": (2, 4, 3), "y_backprop": (2, 4, 3)},
    "y_backprop-of-another-shape": {"y_backprop": (2, 5, 5, 3)},
    "scale-of-two-dimensions": {"scale": (1, 3)},
    "mean-of-two-dimensions": {"reserve_space_1": (1, 3)},
    "variance-without-dimensions": {"reserve_space_2": ()},
    "scale-of-another-size": {"scale": (4,)},
    "mean-of-another-size": {"reserve_space_1": (4,)},
    "variance-of-another-size": {"reserve_space_2": (2,)},
    "a-format-that-is-not-there": {"data_format": "NWHC"},
    "channels-in-the-other-place": {"data_format": "NCHW"},
}
"""Faults of a gradient: the shapes of inputs, or the format."""


class WrongJob(Job):
    """A call that TensorFlow refuses."""

    def __init__(self, case):
        super().__init__("gradient", "FusedBatchNormGradV3", "NHWC", "float32", "training")
        self.name = case
        for name, value in WRONG[case].items():
            if name == "data_format":
                self.attributes[name] = value
            else:
                self.inputs[name] = np.ones(value, np.float32)


WRONG_JOBS = [WrongJob(case) for case in WRONG]
JOBS += WRONG_JOBS


@pytest.fixture(scope="module")
def answers(tensorflow, tmp_path_factory):
    """The results of TensorFlow for every job, by kind and name: one process for all."""
    directory = tmp_path_factory.mktemp("tensorflow")
    described = [
        {"kind": j.kind, "op_type": j.op_type, "dtype": j.dtype, "jit": j.jit, "attributes": _python(j.attributes)}
        for j in JOBS
    ]
    arrays = {f"{n}/{name}": np.float32(a) for n, job in enumerate(JOBS) for name, a in job.inputs.items()}
    np.savez(directory / "jobs.npz", jobs=np.array(json.dumps(described)), **arrays)
    tensorflow("run", directory / "jobs.npz", directory / "results.npz")
    results = np.load(directory / "results.npz")
    of_jobs = {}
    for number, job in enumerate(JOBS):
        prefix = f"{number}/"
        of_job = {name.removeprefix(prefix): results[name] for name in results.files if name.startswith(prefix)}
        of_jobs[job.kind, job.name] = of_job
    return of_jobs


def _python(attributes):
    return attributes | {"is_training": bool(attributes["is_training"])}


def of_kind(kind):
    jobs = [job for job in JOBS if job.kind == kind and job not in WRONG_JOBS]
    return pytest.mark.parametrize("job", jobs, ids=[job.name for job in jobs])


def compare(got, theirs, job):
    assert "error" not in theirs, theirs["error"]
    names = [name for name in theirs if not name.endswith("/dtype")]
    assert names
    for name in names:
        dtype = str(theirs[f"{name}/dtype"])
        assert got[name].dtype.name == dtype
        tolerance = TOLERANCES[dtype]
        assert worst_error(got[name], theirs[name].astype(np.float64)) <= tolerance, (job.name, name)


@of_kind("gradient")
def test_the_gradient(job, answers):
    got = run(converted(job.op_type, job.inputs, GRADIENT_OUTPUTS[:3], **job.attributes), job.inputs)
    compare(got, answers[job.kind, job.name], job)


@pytest.mark.parametrize("job", WRONG_JOBS, ids=list(WRONG))
def test_what_both_refuse(job, answers):
    assert "error" in answers[job.kind, job.name]
    with pytest.raises(UnsupportedNodeError):
        converted(job.op_type, job.inputs, **job.attributes)


@of_kind("forward")
def test_the_forward(job, answers):
    theirs = dict(answers[job.kind, job.name])
    if not job.attributes["is_training"]:
        # Uninitialised memory in some of TensorFlow's kernels.
        theirs = {name: value for name, value in theirs.items() if not name.startswith("reserve")}
    got = run(converted(job.op_type, job.inputs, **job.attributes), job.inputs)
    compare(got, theirs, job)


@of_kind("second_order")
def test_the_second_order(job, answers):
    theirs = answers[job.kind, job.name]
    names = ("U", "a", "b", "y_backprop", "x", "scale", "reserve_space_1")
    arrays = [job.inputs[name].astype(np.float32) for name in names]
    training = job.attributes["is_training"]
    x = arrays[4].astype(np.float64)
    mean, variance = (
        (x.mean(job.axes), x.var(job.axes))
        if training
        else (arrays[6], job.inputs["reserve_space_2"].astype(np.float64))
    )
    inv_std = 1 / np.sqrt(variance + job.attributes["epsilon"])
    want = reference.batch_normalization_grad_grad(*arrays[:6], mean, inv_std, job.axes, bool(training))
    for name, value in want._asdict().items():
        tolerance = TOLERANCES[str(theirs[f"{name}/dtype"])]
        assert worst_error(theirs[name], value) <= tolerance, name
    if x.ndim == 4:
        model = ir.from_proto(onnx.parser.parse_model(SECOND_ORDER.replace("MODE", str(training))))
        EmbedFunctionsPass()(model)
        input_names = ("ddX", "ddscale", "ddbias", "dY", "X", "scale", "mean", "inv_std", "axes")
        values = (*arrays[:6], np.float32(mean), np.float32(inv_std), np.array(job.axes, np.int64))
        got = run(model, dict(zip(input_names, values, strict=True)))
        for name, value in want._asdict().items():
            assert worst_error(got[name], value) <= 4e-6, name


CONVERSIONS = {
    "both-kept": "FusedBatchNormV3,FusedBatchNormGradV3",
    # The forward op becomes a BatchNormalization of six outputs.
    "gradient-kept": "FusedBatchNormGradV3",
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_a_converted_training_step(case, tensorflow, tmp_path):
    tensorflow("convert", CONVERSIONS[case], tmp_path)
    model = ir.from_proto(onnx.load(tmp_path / "step.onnx"))
    before = {node.op_type: node for node in all_nodes(model)}
    assert "FusedBatchNormGradV3" in before
    if case == "gradient-kept":
        assert len(before["BatchNormalization"].outputs) == 6
    arrays = dict(np.load(tmp_path / "step.npz"))
    got = run(rewritten(model, ImportTensorflowPass()), arrays)
    want = {name.removeprefix("want/"): value for name, value in arrays.items() if name.startswith("want/")}
    assert set(got) == set(want)
    for name, value in want.items():
        assert worst_error(got[name], value.astype(np.float64)) <= 4e-6, name


@pytest.mark.parametrize("labels", ["sparse", "dense"])
def test_a_gradient_tape(labels, tensorflow, tmp_path):
    """All gradients of a network, rewritten as tf2onnx leaves them."""
    tensorflow("gradient_tape", labels, tmp_path)
    model = onnx.load(tmp_path / "step.onnx")
    foreign = {node.op_type for node in model.graph.node if node.domain}
    assert len(foreign) == 19, foreign
    feeds = dict(np.load(tmp_path / "step.npz"))
    want = {name.removeprefix("want/"): value for name, value in feeds.items() if name.startswith("want/")}
    session = bngrad.session(bngrad.rewrite(model))
    inputs = {value.name: feeds[value.name] for value in session.get_inputs()}
    got = dict(zip([value.name for value in session.get_outputs()], session.run(None, inputs), strict=True))
    # The gradient of a bias before a batch norm is 0.
    assert np.abs(got.pop("d_bias")).max() < 1e-6
    assert np.abs(want.pop("d_bias")).max() < 1e-6
    assert set(got) == set(want)
    for name, value in want.items():
        assert worst_error(got[name], value.astype(np.float64)) <= 4e-6, name
