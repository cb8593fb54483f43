"""Tests the ops through onnxruntime-extensions: the types that it supports and how it reads outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from bngrad.opset.functions import FUNCTIONS
from bngrad.opset.quantities import QUANTITIES
from bngrad.opset.schemas import signature
from bngrad.runtime import extensions
from bngrad.runtime.session import register, session
from op_models import (
    ALL_GATHER,
    CASES,
    FIXED_TYPES,
    GRAD,
    STATISTICS,
    TOLERANCES,
    TRAINING,
    assert_dtypes,
    assert_matches,
    expected,
    op_feeds,
    op_model,
)

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])


def run(op, attributes, feeds, dtype, implementation="python"):
    names = signature(op)[1]
    values = session(op_model(op, attributes, dtype=dtype), implementation).run(names, feeds)
    return dict(zip(names, values, strict=True))


# The extension passes attributes as text with six significant digits, which causes this difference.
EPSILONS = {0.0: 0, 1e-12: 0, 1e-5: 0, 1e-3: 0, 0.5: 0, 1.234567e-5: 1e-5, 0.9999999: 1e-5}


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_epsilon(epsilon):
    """A variance far below epsilon, so that the result depends on epsilon."""
    x = np.array([[1e-9], [3e-9]], np.float64) * (epsilon or 1e9)
    feeds = {"X": x, "axes": np.array([0])}
    exact = float(np.float32(epsilon))
    got = run(STATISTICS, {"epsilon": epsilon}, feeds, np.float64)
    want = expected(STATISTICS, feeds, {"epsilon": exact})
    assert_matches(got, want, TOLERANCES[np.float64] + EPSILONS[epsilon])


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.9, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("unbiased", [0, 1])
def test_momentum(momentum, unbiased, rng):
    feeds = op_feeds(TRAINING, (4, 3), (0,), rng, np.float64)
    attributes = {"epsilon": 1e-3, "momentum": momentum, "unbiased_running_var": unbiased}
    got = run(TRAINING, attributes, feeds, np.float64)
    exact = {**attributes, "epsilon": float(np.float32(1e-3)), "momentum": float(np.float32(momentum))}
    assert_matches(got, expected(TRAINING, feeds, exact), TOLERANCES[np.float64])


@DTYPES
@pytest.mark.parametrize("case", CASES)
def test_float_and_double_live_under_one_name(case, dtype, rng):
    op, attributes = CASES[case]
    feeds = op_feeds(op, (4, 3, 2), (0, 2), rng, dtype)
    got = run(op, attributes, feeds, dtype)
    assert_dtypes(got, dtype)
    assert_matches(got, expected(op, feeds, attributes), TOLERANCES[dtype])


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != ALL_GATHER])
def test_16_bit_types_are_refused_by_the_session(name, data):
    inputs, outputs, _ = signature(name)
    element_type = getattr(TensorProto, data.upper())
    types = {n: element_type for n in inputs + outputs if QUANTITIES[n].type_constraint not in FIXED_TYPES}
    (attributes,) = {op: a for op, a in CASES.values() if op == name}.values()
    model = op_model(name, attributes, types=types, function=False)
    with pytest.raises(Exception, match=rf"Type 'tensor\({data}\)' of input .*{name}.* in node \(bn\) is invalid"):
        session(model, "python")


def test_a_node_that_lacks_an_attribute_is_refused():
    with pytest.raises(Exception, match="epsilon"):
        session(op_model(STATISTICS, {}, function=False), "python").run(None, {"X": np.ones((2, 3), np.float32)})


class Spied(np.ndarray):
    """An array that records how its elements are accessed."""

    asked: list[str]

    def _tell(self, what):
        type(self).asked.append(what)

    def __getitem__(self, index):
        self._tell("element")
        return super().__getitem__(index)

    def __iter__(self):
        self._tell("iteration")
        return super().__iter__()

    def __len__(self):
        self._tell("length")
        return super().__len__()

    def tolist(self):
        self._tell("list")
        return super().tolist()


def test_the_extension_takes_the_buffer_not_the_elements(monkeypatch, rng):
    """The whole point of _NoCopyOutput: the elements are not converted to Python floats."""
    calls = []

    class SpiedOutput(extensions._NoCopyOutput):
        def flatten(self):
            calls.append("flatten")
            return super().flatten()

        def tolist(self):
            calls.append("tolist")
            return super().tolist().view(Spied)

    Spied.asked = []
    monkeypatch.setattr(extensions, "_NoCopyOutput", SpiedOutput)
    feeds = op_feeds(GRAD, (4, 3, 2), (0, 2), rng)
    got = run(GRAD, {"training_mode": 1}, feeds, np.float32)
    assert_matches(got, expected(GRAD, feeds, {"training_mode": 1}), TOLERANCES[np.float32])
    assert calls == ["flatten", "tolist"] * 3
    assert Spied.asked == []


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(2, 3, 4),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10.0)[::3],
        np.float64(3),
        np.empty((0, 3)),
    ],
    ids=["contiguous", "transposed", "strided", "scalar", "empty"],
)
def test_a_handover_offers_what_an_array_does(array):
    handover = extensions._NoCopyOutput(np.asarray(array))
    assert handover.shape == np.shape(array)
    handed = handover.flatten().tolist()
    assert isinstance(handed, np.ndarray)
    assert handed.flags.c_contiguous
    assert handed.ndim == 1
    assert list(handed) == np.asarray(array).flatten().tolist()


def test_an_array_that_is_contiguous_is_not_copied():
    array = np.arange(24.0).reshape(2, 3, 4)
    assert np.shares_memory(extensions._NoCopyOutput(array).flatten().tolist(), array)


@pytest.mark.parametrize(("shape", "axes"), [((4,), (0,)), ((0, 3), (0,)), ((2, 0), (0,)), ((0,), (0,))], ids=str)
def test_outputs_without_dimensions_or_elements(shape, axes, rng):
    feeds = op_feeds(GRAD, shape, axes, rng)
    got = run(GRAD, {"training_mode": 1}, feeds, np.float32)
    assert_matches(got, expected(GRAD, feeds, {"training_mode": 1}), TOLERANCES[np.float32])


def test_defining_again_changes_nothing():
    extensions.define_ops()
    from onnxruntime_extensions._ocos import Opdef

    before = len(Opdef._odlist)
    extensions.define_ops()
    for _ in range(2):
        register(onnxruntime.SessionOptions(), "python")
    assert len(Opdef._odlist) == before
    ours = [d.op_type for d in Opdef._odlist.values() if d.op_type.startswith("bngrad::")]
    assert sorted(ours) == sorted(f"bngrad::{name}" for name in FUNCTIONS for _ in extensions._variants(name))


IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from bngrad.runtime import extensions
from bngrad.opset import reference
from bngrad.runtime.session import session
from op_models import CASES, TOLERANCES, assert_dtypes, assert_matches, expected, op_feeds, op_model
assert extensions._implementation() is reference
rng = np.random.default_rng(0)
for op, attributes in CASES.values():
    for dtype, tolerance in TOLERANCES.items():
        feeds = op_feeds(op, (4, 3, 2), (0, 2), rng, dtype)
        names = list(expected(op, feeds, attributes))
        values = session(op_model(op, attributes, dtype=dtype), "python").run(names, feeds)
        got = dict(zip(names, values))
        assert_matches(got, expected(op, feeds, attributes), tolerance)
        assert_dtypes(got, dtype)
print("computed by NumPy")
"""


def python(code, library):
    here = str(Path(__file__).parents[1])
    environment = {**os.environ, "BNGRAD_LIBRARY": str(library)}
    environment["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_numpy_computes_where_there_is_no_library(tmp_path):
    done = python(IN_ANOTHER_PROCESS, tmp_path / "none.so")
    assert (done.returncode, done.stdout.strip()) == (0, "computed by NumPy"), done.stderr


ERRORS = {
    "axis": ({"axes": np.array([5])}, "out of range"),
    "twice": ({"axes": np.array([0, 0])}, "twice"),
    "shape": ({"scale": np.ones(7, np.float32)}, "scale has shape [7]; expected [3]"),
    "data": ({"dY": np.ones((4, 2), np.float32)}, "dY has shape [4, 2]; expected [4, 3]"),
    "gradient": ({"gradient": np.ones((4, 2), np.float32)}, "gradient has shape [4, 2]; expected [4, 3]"),
    "coefficients": ({"coefficients": np.ones(8)}, "coefficients has shape [8]; expected [9]"),
}


@pytest.mark.parametrize(
    ("name", "error"), [(n, e) for n in FUNCTIONS for e in ERRORS if ERRORS[e][0].keys() <= set(signature(n)[0])]
)
def test_an_op_that_fails_logs_the_reason_and_answers_nan(name, error, caplog, rng):
    """An exception that escapes would end the process."""
    change, reason = ERRORS[error]
    (attributes,) = {op: a for op, a in CASES.values() if op == name}.values()
    feeds = op_feeds(name, (4, 3), (0,), rng)
    got = run(name, attributes, feeds | change, np.float32)
    assert all(np.isnan(value).all() for value in got.values())
    assert all(got[o].shape == (4, 3) for o in got if QUANTITIES[o].shape == "data")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("bngrad.runtime.extensions", "ERROR")
    assert record.getMessage().startswith(f"bngrad.{name}: ")
    assert reason in record.getMessage()
    assert record.getMessage().endswith("; its outputs are NaN")


def test_statistics_that_fail_have_the_right_shape(caplog):
    feeds = {"X": np.ones((4, 3), np.float32), "axes": np.array([0])}
    got = run(STATISTICS, {"epsilon": -1.0}, feeds, np.float32)
    assert [value.shape for value in got.values()] == [(3,), (3,)]
    assert all(np.isnan(value).all() for value in got.values())
    assert "epsilon is -1" in caplog.text


PARAMETER_TYPES = [("T1",), ("T2",), ("T1", "T2")]


def has_input_of(op, kinds):
    return any(QUANTITIES[name].type_constraint in kinds for name in signature(op)[0])


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        pytest.param(case, kinds, id=f"{case}-{'-'.join(kinds)}")
        for case, (op, _) in CASES.items()
        for kinds in PARAMETER_TYPES
        if has_input_of(op, kinds)
    ],
)
def test_parameters_in_float_beside_data_in_double(case, kinds, rng):
    op, attributes = CASES[case]
    inputs, outputs, _ = signature(op)
    single = [n for n in inputs + outputs if QUANTITIES[n].type_constraint in kinds]
    model = op_model(
        op, attributes, dtype=np.float64, types=dict.fromkeys(single, TensorProto.FLOAT), function=False
    )
    feeds = op_feeds(op, (4, 3, 2), (0, 2), rng, np.float64)
    feeds = {name: value.astype(np.float32) if name in single else value for name, value in feeds.items()}
    got = dict(zip(outputs, session(model, "python").run(outputs, feeds), strict=True))
    for name, value in expected(op, feeds, attributes).items():
        dtype = np.float32 if name in single else np.float64
        assert got[name].dtype == dtype
        np.testing.assert_allclose(got[name], value, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_a_library_that_cannot_be_used_is_an_error_not_numpy(tmp_path):
    library = tmp_path / "text.so"
    library.write_text("not a library")
    done = python(
        "import onnxruntime, bngrad\nbngrad.register(onnxruntime.SessionOptions(), implementation='python')",
        library,
    )
    assert done.returncode == 1
    assert f"bngrad.errors.LibraryError: {library} cannot be loaded as bngrad's native library" in done.stderr
