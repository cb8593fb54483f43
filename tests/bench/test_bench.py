"""Tests what bngrad.bench measures and how it counts; no test depends on timing."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

import optimizer_models
from bngrad.bench import timing
from bngrad.bench.case import ARRAYS, DTYPES, FREEZABLE, OPS, Case, cases_of_shapes, layout_axes
from bngrad.bench.measure import Measurement, measure
from bngrad.bench.prepared import PreparedCase
from bngrad.bench.session_case import SessionCase
from bngrad.bench.timing import Spread
from bngrad.errors import InputError, LibraryError, UnsupportedNodeError
from bngrad.opset import synchronized
from bngrad.opset.functions import FUNCTIONS
from bngrad.opset.quantities import QUANTITIES
from bngrad.opset.schemas import signature
from bngrad.runtime import native, native_library
from bngrad.runtime.session import session
from fake_cuda import fake_cuda  # noqa: F401

NCHW = (2, 3, 4, 5)
CASES = [Case(NCHW, (0, 2, 3), dtype, op, op in FREEZABLE) for op in OPS for dtype in DTYPES]


def label(case):
    return f"{case.op}-{case.dtype}"


# ---- what is counted ----


def test_every_batch_norm_op_can_be_timed():
    whole = {name for name in FUNCTIONS if "X" in signature(name)[0]} - {
        op.name for op in synchronized.BATCH_NORMS
    }
    assert set(OPS.values()) == whole
    for op, name in OPS.items():
        inputs, outputs, attributes = signature(name)
        assert ARRAYS[op] == sum(QUANTITIES[quantity].shape == "data" for quantity in inputs + outputs)
        assert (op in FREEZABLE) == ("training_mode" in attributes)


@pytest.mark.parametrize(("dtype", "size"), [("float", 4), ("double", 8), ("float16", 2), ("bfloat16", 2)])
def test_bytes(dtype, size):
    case = Case(NCHW, (0, 2, 3), dtype)
    assert case.data_bytes == 120 * size
    assert case.moved_bytes == 3 * 120 * size


def test_rates_are_bytes_by_the_median():
    case = Case((1000, 1000), (0,), op="relu-grad")  # 4 MB an array
    measurement = Measurement(case, 5, Spread(0.001, 0.002, 0.004), Spread(0.0005, 0.001, 0.0015))
    assert measurement.gb_per_s == pytest.approx(16e6 / 0.002 / 1e9)
    assert measurement.bandwidth_gb_per_s == pytest.approx(12e6 / 0.001 / 1e9)
    assert measurement.bandwidth_fraction == pytest.approx(8 / 12)
    row = measurement.to_dict()
    assert row["ms"] == pytest.approx({"low": 1, "median": 2, "high": 4})
    assert (row["count"], row["bytes"], row["bandwidth"]["bytes"]) == (5, 16_000_000, 12_000_000)


# ---- cases ----


@pytest.mark.parametrize(
    ("layout", "rank", "axes"),
    [("NCHW", 4, (0, 2, 3)), ("NHWC", 4, (0, 1, 2)), ("NCHW", 2, (0,)), ("NHWC", 2, (0,)), ("NCHW", 3, (0, 2))],
)
def test_layouts(layout, rank, axes):
    assert layout_axes(layout, rank) == axes


@pytest.mark.parametrize(
    ("options", "axes"),
    [
        ({}, (0, 2, 3)),
        ({"layout": "NHWC"}, (0, 1, 2)),
        ({"axes": "3,-4"}, (0, 3)),
        ({"axes": ""}, ()),
        ({"axes": "0,1,2,3"}, (0, 1, 2, 3)),
    ],
)
def test_what_a_command_line_reduces(options, axes):
    arguments = {"axes": None, "layout": None, "dtype": "float", "op": "grad", "frozen": False} | options
    assert cases_of_shapes(["2x3x4x5"], **arguments) == {Case(NCHW, axes): 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 0), (0,)), "shape 2x0 has an empty dimension; expected sizes of 1 or more"),
        (((2, 3), (2,)), "axis 2 is out of range for X of rank 2; expected -2 to 1"),
        (((2, 3), (0, -2)), "axes [0, -2] name a dimension of X twice; name each reduced dimension once"),
        (((1,) * 9, (0,)), "X has 9 dimensions; expected 1 to 8"),
        (((), ()), "X has 0 dimensions; expected 1 to 8"),
        (((2, 3), (0,), "int8"), "dtype is 'int8'; expected one of float, double, float16, bfloat16"),
        (
            ((2, 3), (0,), "float", "gradient"),
            "op is 'gradient'; expected one of grad, relu-grad, training, grad-grad, statistics",
        ),
        (
            ((2, 3), (0,), "float", "training", True),
            "op training has no frozen mode; expected one of grad, relu-grad, grad-grad",
        ),
    ],
)
def test_refusals_of_a_case(arguments, message):
    with pytest.raises(InputError) as error:
        Case(*arguments)
    assert str(error.value) == message


# ---- calls ----


@pytest.mark.parametrize("case", CASES, ids=label)
def test_the_call_that_is_timed_computes_the_op(case):
    prepared = PreparedCase(case, threads=1)
    arrays = prepared._arrays
    inputs, outputs, _ = signature(OPS[case.op])
    for name in outputs:
        arrays[name].fill(7)
    prepared.kernel()
    x = arrays["X"]
    assert x.dtype == ir.DataType[case.dtype.upper()].numpy()
    arguments = [arrays[name] for name in inputs if name != "axes"]
    attributes = {
        "BatchNormalizationTraining": (1e-5, 0.9, False),
        "BatchNormalizationStatistics": (1e-5,),
    }.get(OPS[case.op], (not case.frozen,))
    expected = {
        "grad": native.batch_normalization_grad,
        "relu-grad": native.batch_normalization_relu_grad,
        "training": native.batch_normalization_training,
        "grad-grad": native.batch_normalization_grad_grad,
        "statistics": native.batch_normalization_statistics,
    }[case.op](*arguments, case.axes, *attributes)
    for name, array in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
        assert arrays[name].dtype == array.dtype


@pytest.mark.parametrize("case", CASES, ids=label)
def test_the_addition_has_as_many_bytes_as_x(case):
    prepared = PreparedCase(case, threads=2)
    prepared.addition()
    a, b, c = (array.reshape(-1).view(np.float32) for array in prepared._addition_arrays)
    assert a.nbytes == case.data_bytes
    np.testing.assert_array_equal(c, a + b)
    for array in prepared._addition_arrays[:2]:
        floats = np.abs(array.reshape(-1).view(np.float32))
        assert not np.any((floats > 0) & (floats < np.finfo(np.float32).tiny))


def test_every_array_begins_a_cache_line():
    prepared = PreparedCase(Case((3, 5, 7), (0, 2), "bfloat16", "grad-grad"))
    assert {array.ctypes.data % 64 for array in prepared._arrays.values()} == {0}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_sessions_are_timed_where_the_library_is_not_called(op, dtype):
    """On the CPU, which has all kernels; a device refuses those that would run on the CPU."""
    case = SessionCase(Case((3, 5, 7), (0, 2), dtype, op), "cpu")
    assert case.runs > 1
    case.kernel()
    case.addition()


@pytest.mark.usefixtures("fake_cuda")
def test_a_measurement_on_a_device():
    row = measure(Case((2, 3, 4, 4), (0, 2, 3)), repeats=2, device="cuda")
    assert row.kernel.median > 0
    assert row.addition.median > 0


def test_an_op_without_a_kernel_for_the_device(fake_cuda):  # noqa: F811
    fake_cuda.session_error = RuntimeError(
        "nodes, but fallback to CPU EP has been explicitly disabled by the user"
    )
    with pytest.raises(UnsupportedNodeError) as error:
        SessionCase(Case((2, 3), (0,), "bfloat16", "grad-grad"), "cuda")
    assert str(error.value) == ("the library has no kernel of BatchNormalizationGradGrad for bfloat16 on cuda:0")


def test_more_than_the_memory_is_refused():
    with pytest.raises(InputError, match=r"^grad at 1000000x1000000x1000 needs 12000000\.0 GB; this machine has"):
        PreparedCase(Case((10**6, 10**6, 1000), (0,)))


# ---- c = a + b ----


@pytest.fixture
def add():
    function = ctypes.CDLL(str(native_library.library_path())).bngrad_add_arrays

    def call(count, *arrays, threads=2):
        message = ctypes.create_string_buffer(200)
        pointers = [None if a is None else ctypes.c_void_p(a.ctypes.data) for a in arrays]
        size = ctypes.c_size_t(len(message))
        status = function(ctypes.c_int64(count), *pointers, ctypes.c_int32(threads), message, size)
        return status, message.value.decode()

    return call


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("start", [0, 1, 3, 15])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3 << 18])
def test_arrays_of_any_size_and_alignment_are_added(count, start, threads, rng, add):
    a, b = rng.standard_normal((2, count + 20), dtype=np.float32)
    c = np.full(count + 20, 7, np.float32)
    inside = slice(start, start + count)
    assert add(count, a, b[start:], c[inside] if count else c, threads=threads) == (0, "")
    np.testing.assert_array_equal(c[inside], a[:count] + b[inside])
    c[inside] = 7
    np.testing.assert_array_equal(c, 7)


ARRAY = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, ARRAY, ARRAY, ARRAY), "count is -1; expected 0 to 1152921504606846975"),
        ((4, None, ARRAY, ARRAY), "a is null; expected an array of 4 elements"),
        ((4, ARRAY, None, ARRAY), "b is null; expected an array of 4 elements"),
        ((4, ARRAY, ARRAY, None), "c is null; expected an array of 4 elements"),
    ],
)
def test_refusals_of_the_addition(arguments, message, add):
    assert add(*arguments) == (1, message)


def test_nothing_may_be_nowhere(add):
    assert add(0, None, None, None) == (0, "")


# ---- trials ----


def test_ways_time_interleaved():
    log = []

    def way(name, seconds):
        def run(calls):
            log.append((name, calls))
            return seconds

        return run

    slow, fast = 1.0, timing.TRIAL_SECONDS / 4
    spreads = timing.time_interleaved({"slow": way("slow", slow), "fast": way("fast", fast)}, 2)
    assert log == [("slow", 1), ("fast", 1), *[("slow", 1), ("fast", 4)] * 2]
    assert spreads == {"slow": Spread(slow, slow, slow), "fast": Spread(fast, fast, fast)}


@pytest.mark.parametrize(("seconds", "calls"), [(0, 10_000), (1e-9, 10_000), (0.001, 5), (0.0049, 2), (60, 1)])
def test_a_trial_is_long_enough_for_the_clock(seconds, calls):
    assert timing.calls_per_trial(seconds) == calls


@pytest.mark.parametrize(("warm", "expected"), [(0, 4), (-1, 4), (2.5, 6)])
def test_a_trial_begins_with_calls_that_are_not_timed(warm, expected, monkeypatch):
    calls, clock = [], iter(range(100))
    monkeypatch.setattr(timing, "WARM_SECONDS", warm)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert timing.run_trial(lambda: calls.append(1), 3) == 1 / 3
    assert len(calls) == expected


def test_quartiles():
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(2, 3, 4)
    assert str(Spread(0.001, 0.0020004, 0.25)) == "2 (1-250)"


def test_a_measurement_has_both_times():
    measurement = measure(Case((4, 3), (0,)), count=2, threads=1, repeats=1)
    assert measurement.count == 2
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in (*measurement.kernel, *measurement.addition))


def test_a_library_that_lacks_a_function_is_too_old(monkeypatch):
    monkeypatch.setattr(native_library, "loaded", SimpleNamespace)
    with pytest.raises(
        LibraryError, match=r"has no bngrad_batch_normalization_grad: it is older than this package"
    ):
        PreparedCase(Case((4, 3), (0,)))


# ---- the update of an optimizer ----


@pytest.mark.parametrize("optimizer", optimizer_models.STATE)
def test_the_updates_that_are_timed_are_the_same(optimizer, monkeypatch, rng):
    shapes = [(3, 4, 1, 1), (5,), (2, 3, 3, 3)]
    monkeypatch.setattr(optimizer_models, "shapes", lambda: shapes)
    names = f"g{optimizer_models.STATE[optimizer]}"
    arrays = {f"{n}{i}": rng.uniform(0.5, 1, s).astype(np.float32) for i, s in enumerate(shapes) for n in names}
    feeds = {**arrays, "coefficients": optimizer_models.COEFFICIENTS}
    results = {}
    for form in ("standard", "function", "native") if optimizer == "adamw" else ("standard",):
        runner = session(
            optimizer_models.update_model(optimizer, form), "native" if form == "native" else "function"
        )
        outputs = [value.name for value in runner.get_outputs()]
        results[form] = dict(zip(outputs, runner.run(outputs, feeds), strict=True))
    scratch = np.empty(100, np.float32)
    for i in range(len(shapes)):
        optimizer_models.update_in_place(optimizer, scratch, **{n: arrays[f"{n}{i}"] for n in names})
    for form, result in results.items():
        for name, value in result.items():
            np.testing.assert_allclose(value, arrays[name.removesuffix("_new")], rtol=2e-6, err_msg=form)
