"""The suite of hard batch norms: a careful implementation passes every case, and each pitfall fails its own."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import onnx
import pytest

from bngrad.errors import DeviceError, InputError, LibraryError
from bngrad.runtime.session import get_library_path
from bngrad.validation.hard_batch_norms.archive import write_cases
from bngrad.validation.hard_batch_norms.case import INPUTS
from bngrad.validation.hard_batch_norms.cases import cases
from bngrad.validation.hard_batch_norms.run import check_hard_batch_norms

CASES = {case.name: case for case in cases()}


def in_order(terms, dtype):
    """The sum over all axes but 1, one term after the other, each rounded to the type."""
    rows = np.moveaxis(terms, 1, 0).reshape(terms.shape[1], -1)
    return np.add.accumulate(rows, axis=1, dtype=dtype)[:, -1]


class Naive:
    """A batch norm as it is easily written; each pitfall is an argument."""

    def __init__(self, case, dtype=None, **pitfalls):
        self.case, self.pitfalls = case, pitfalls
        self.dtype = dtype or np.longdouble

    def __call__(self):
        case, inputs = self.case, {name: array.astype(self.dtype) for name, array in self.case.arrays.items()}
        ends = np.cumsum(case.parts)[:-1] if case.parts and (not case.joint or "averaged" in self.pitfalls) else []
        calls, running = [], (inputs["running_mean"], inputs["running_var"])
        for X, dY in zip(np.split(inputs["X"], ends), np.split(inputs["dY"], ends), strict=True):
            calls.append(self.call({**inputs, "X": X, "dY": dY}, *running))
            if "same_start" not in self.pitfalls and not case.joint and case.training_mode:
                running = calls[-1]["new_running_mean"], calls[-1]["new_running_var"]
        joined = {name: np.concatenate([call[name] for call in calls]) for name in ("Y", "dX")}
        joined |= {name: sum(call[name] for call in calls) for name in ("dscale", "dbias")}
        if case.training_mode:
            for name in ("new_running_mean", "new_running_var"):
                values = [call[name] for call in calls]
                joined[name] = sum(values) / len(values) if "averaged" in self.pitfalls else values[-1]
        return {name: value.astype(self.result_type(name)) for name, value in joined.items()}

    def result_type(self, name):
        return self.case.arrays[{"Y": "X", "dX": "X"}.get(name, "scale")].dtype

    def call(self, inputs, running_mean, running_var):
        X, dY, scale, bias = (inputs[name] for name in INPUTS[:4])
        kept = (-1, *[1] * (X.ndim - 2))
        M = X.size // scale.size
        epsilon = 1e-5 if "epsilon" in self.pitfalls else self.case.epsilon
        mean, var = running_mean, running_var
        results = {}
        if self.case.training_mode:
            mean = (in_order(X, self.dtype) / M).astype(self.dtype)
            centered = X - mean.reshape(kept)
            var = (in_order(centered * centered, self.dtype) / M).astype(self.dtype)
            if "squares" in self.pitfalls:
                var = (in_order(X * X, self.dtype) / M).astype(self.dtype) - mean * mean
            running = var * np.float64(M) / (M - 1) if "unbiased" in self.pitfalls else var
            keep = self.case.momentum
            results["new_running_mean"] = keep * running_mean + (1 - keep) * mean
            results["new_running_var"] = keep * running_var + (1 - keep) * running
        inv_std = (1 / np.sqrt(var + self.dtype(epsilon))).astype(self.dtype)
        xhat = (X - mean.reshape(kept)) * inv_std.reshape(kept)
        results["Y"] = Y = xhat * scale.reshape(kept) + bias.reshape(kept)
        if "from_y" in self.pitfalls:
            xhat = (Y - bias.reshape(kept)) / scale.reshape(kept)
        dbias, dscale = in_order(dY, self.dtype), in_order(dY * xhat, self.dtype)
        if "uncentered" in self.pitfalls:
            dscale = inv_std * (in_order(dY * X, self.dtype) - mean * dbias)
        if "divided" in self.pitfalls:
            dbias, dscale = dbias / M, dscale / M
        dX = dY
        if self.case.training_mode or "through_statistics" in self.pitfalls:
            dX = dY - (dbias.reshape(kept) + xhat * dscale.reshape(kept)) / self.dtype(M)
        return results | {"dX": dX * (scale * inv_std).reshape(kept), "dscale": dscale, "dbias": dbias}


def wrong(case, results):
    """The outputs of a case beyond their bounds."""
    expected = case.expected()
    with np.errstate(invalid="ignore"):
        return {
            name
            for name, (value, bound) in expected.items()
            if not np.all((results[name] == value) | (np.abs(results[name].astype(np.float64) - value) <= bound))
        }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_careful_implementation_passes(name):
    assert wrong(CASES[name], Naive(CASES[name])()) == set()


PITFALLS = {
    "constant_channels": ({"dtype": np.float32, "squares": True}, {"Y", "dX"}),
    "mean_1000": (
        {"dtype": np.float32, "squares": True, "uncentered": True},
        {"Y", "dX", "dscale", "new_running_var"},
    ),
    "one_value": ({"unbiased": True}, {"new_running_var"}),
    "terms_262144_float16": ({"dtype": np.float16}, {"Y", "dX", "dscale", "dbias"}),
    "parameters_float16": ({"dtype": np.float16}, {"Y", "dX"}),
    "unequal_ranks": ({"averaged": True}, {"Y", "dX", "new_running_mean", "new_running_var"}),
    "sum_loss": ({"divided": True}, {"dbias"}),
    "shared_layer": ({"same_start": True}, {"new_running_mean", "new_running_var"}),
    "running_var_of_two": ({"unbiased": True}, {"new_running_var"}),
    "frozen": ({"through_statistics": True}, {"dX"}),
    "scale_0": ({"from_y": True}, {"dX", "dscale"}),
    "epsilon_below_variance": ({"epsilon": True}, {"Y", "dX", "dscale"}),
    "values_1e20": ({"dtype": np.float32}, {"Y", "dX", "dscale"}),
    "double": ({"dtype": np.float32}, {"Y", "dX", "dscale", "dbias"}),
}


def test_every_case_has_a_pitfall():
    assert PITFALLS.keys() == CASES.keys()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_pitfall_fails(name):
    pitfalls, outputs = PITFALLS[name]
    assert wrong(CASES[name], Naive(CASES[name], **pitfalls)()) >= outputs


FAILING = {("values_1e20", "function")}
"""Without the library, sums of squares are in float."""


@pytest.fixture(scope="module")
def report():
    return check_hard_batch_norms("CPUExecutionProvider")


def test_onnx_runtime_on_the_cpu(report):
    assert {(row.subject, row.implementation) for row in report.checks[0].failures} == FAILING
    assert {row.subject for row in report.checks[0].rows if row.implementation == "native"} == CASES.keys()
    assert (report.verdict, len(report.checks)) == ("failed", 1)
    assert report.checks[0].failures[0].note == "The squares of X are infinite in float."


def test_a_library(tmp_path, monkeypatch):
    """It may be named without its folder, where the system's loader would search its own folders."""
    (tmp_path / "libops.so").symlink_to(get_library_path())
    monkeypatch.chdir(tmp_path)
    assert check_hard_batch_norms("libops.so").verdict == "passed"


def exact_results(tmp_path, *, without=(), **other):
    results = {
        f"{case.name}/{output}": value for case in CASES.values() for output, (value, _) in case.expected().items()
    }
    path = tmp_path / "results.npz"
    np.savez(path, **{name: value for name, value in (results | other).items() if name not in without})
    return str(path)


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, "passed", ""),
        ({"without": ["frozen/Y"]}, "incomplete", "all results: skipped, {path} has no 'frozen/Y'"),
        ({"frozen/dbias": np.zeros(4)}, "failed", "hard batch norms: 1 of 82 comparisons failed"),
        ({"frozen/dbias": np.full(4, np.nan)}, "failed", "hard batch norms: 1 of 82 comparisons failed"),
        ({"frozen/dbias": np.zeros((1, 4))}, "failed", "hard batch norms: 1 of 82 comparisons failed"),
    ],
)
def test_results(changes, verdict, reason, tmp_path):
    path = exact_results(tmp_path, **changes)
    report = check_hard_batch_norms(path)
    assert (report.verdict, report.reason) == (verdict, reason.format(path=path))


def test_wrong_shapes_are_named(tmp_path):
    (row,) = check_hard_batch_norms(exact_results(tmp_path, **{"frozen/dbias": np.zeros(3)})).checks[0].failures
    assert row.note == "shape [3]; expected [4]"


@pytest.mark.parametrize(
    ("subject", "error", "message"),
    [
        (
            "CPUExecutionProvide",
            InputError,
            "is no execution provider of ONNX Runtime, and no file; .* did you mean",
        ),
        (
            "TensorrtExecutionProvider",
            DeviceError,
            "is built without TensorrtExecutionProvider; it has .*CPUExecutionProvider",
        ),
        ("CUDAExecutionProvider", DeviceError, "needs a build of ONNX Runtime for CUDA"),
        ("{folder}/results.npz", InputError, "has an array 'frozen/dx'; .* did you mean 'frozen/dX'"),
        ("{folder}/complex.npz", InputError, "has 'frozen/dX' in complex64; expected real numbers"),
        ("{folder}/library.so", LibraryError, "cannot register"),
    ],
)
def test_refused(subject, error, message, tmp_path):
    np.savez(tmp_path / "results.npz", **{"frozen/dx": np.zeros(3)})
    np.savez(tmp_path / "complex.npz", **{"frozen/dX": np.zeros(3, np.complex64)})
    (tmp_path / "library.so").write_bytes(b"no library")
    with pytest.raises(error, match=message):
        check_hard_batch_norms(subject.format(folder=tmp_path))


def test_an_implementation_is_for_providers():
    with pytest.raises(InputError, match="implementation 'native' is for execution providers"):
        check_hard_batch_norms(get_library_path(), "native")


def test_the_archive(tmp_path):
    """Its models are valid, its results those of the cases, and it has the same bytes every time."""
    paths = [tmp_path / name for name in ("first.zip", "second.zip")]
    for path in paths:
        write_cases(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[0]) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == CASES.keys()
        for name, case in CASES.items():
            for file in ("forward.onnx", "model.onnx"):
                onnx.checker.check_model(onnx.load_from_string(archive.read(f"{name}/{file}")), full_check=True)
            assert json.loads(archive.read(f"{name}/case.json"))["pitfall"] == case.pitfall
            exact = {output: value for output, (value, _) in case.expected().items()}
            for index, output in enumerate(case.outputs):
                tensor = onnx.TensorProto.FromString(archive.read(f"{name}/test_data_set_0/output_{index}.pb"))
                assert tensor.name == output
                exact[output] = onnx.numpy_helper.to_array(tensor)
            assert wrong(case, exact) == set()
