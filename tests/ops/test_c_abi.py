"""bngrad.runtime.native and the C ABI beneath it: what they refuse, and how they say so."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import bngrad
from bngrad.errors import InputError, LibraryError
from bngrad.opset.quantities import QUANTITIES
from bngrad.runtime import native, native_library

X = np.ones((2, 3, 4), np.float32)
C = np.ones(3, np.float32)


def grad(dY=X, X=X, scale=C, mean=C, inv_std=C, axes=(0, 2), training_mode=1):
    return native.batch_normalization_grad(dY, X, scale, mean, inv_std, axes, training_mode)


def training(X=X, scale=C, bias=C, running_mean=C, running_var=C, axes=(0, 2), epsilon=1e-5, momentum=0.9):
    return native.batch_normalization_training(
        X, scale, bias, running_mean, running_var, axes, epsilon, momentum, unbiased_running_var=False
    )


def statistics(X=X, axes=(0, 2), epsilon=1e-5):
    return native.batch_normalization_statistics(X, axes, epsilon)


def relu_grad(dZ=X, Z=X, X=X, scale=C, mean=C, inv_std=C, axes=(0, 2), training_mode=1):
    return native.batch_normalization_relu_grad(dZ, Z, X, scale, mean, inv_std, axes, training_mode)


def grad_grad(
    ddX=X, ddscale=C, ddbias=C, dY=X, X=X, scale=C, mean=C, inv_std=C, axes=(0, 2), training_mode=1
):  # fmt: skip
    arguments = (ddX, ddscale, ddbias, dY, X, scale, mean, inv_std, axes, training_mode)
    return native.batch_normalization_grad_grad(*arguments)


ops = pytest.mark.parametrize("op", [grad, relu_grad, grad_grad, training, statistics])
INPUTS = {
    grad: ("dY", "scale", "mean", "inv_std"),
    relu_grad: ("dZ", "Z", "scale", "mean", "inv_std"),
    grad_grad: ("ddX", "ddscale", "ddbias", "dY", "scale", "mean", "inv_std"),
    training: ("scale", "bias", "running_mean", "running_var"),
}
inputs = pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in INPUTS.items() for name in names])


@ops
def test_accepts(op):
    assert all(np.isfinite(output).all() for output in op())


@ops
@pytest.mark.parametrize("dtype", [np.int32, np.complex64, ">f4", ml_dtypes.float8_e4m3fn], ids=str)
def test_dtype_of_x(op, dtype):
    with pytest.raises(InputError, match=r"X has dtype .*; expected float32, float64, float16 or bfloat16"):
        op(X=X.astype(dtype))


@inputs
def test_other_inputs(op, name):
    right = X if QUANTITIES[name].shape == "data" else C
    with pytest.raises(InputError, match=f"{name} has dtype float64; expected float32, "):
        op(**{name: right.astype(np.float64)})
    with pytest.raises(InputError, match=rf"{name} has shape \[2\]; expected \[[234, ]+\]: .*X"):
        op(**{name: np.ones(2, np.float32)})


@inputs
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, ml_dtypes.bfloat16], ids=["float16", "double", "bfloat16"]
)
def test_parameters_are_like_x_or_float_and_like_each_other(op, name, dtype):
    kind = QUANTITIES[name].type_constraint
    group = [n for n in INPUTS[op] if QUANTITIES[n].type_constraint == kind]
    data = {n: X.astype(dtype) for n in (*INPUTS[op], "X") if QUANTITIES[n].shape == "data"}
    if kind == "T":
        with pytest.raises(
            InputError, match=f"{name} has dtype float32; expected {np.dtype(dtype)}, the dtype of X"
        ):
            op(**data | {name: X})
        return
    op(**data | {n: C.astype(dtype) for n in group})
    other = np.float16 if dtype != np.float16 else np.float64
    with pytest.raises(InputError, match=f"{name} has dtype {np.dtype(other)}; expected float32"):
        op(**data | {name: C.astype(other)})
    if len(group) > 1:
        with pytest.raises(InputError, match=r"has dtype .*; expected .*, the dtype of (scale|mean|running_mean)"):
            op(**data | {name: C.astype(dtype)})


@ops
@pytest.mark.parametrize(("axes", "message"), [([3], "out of range"), ([-4], "out of range"), ([0, -3], "twice")])
def test_axes(op, axes, message):
    with pytest.raises(InputError, match=message):
        op(axes=axes)


@ops
@pytest.mark.parametrize("rank", [0, 9])
def test_rank(op, rank):
    with pytest.raises(InputError, match=f"X has {rank} dimensions"):
        op(X=np.ones((1,) * rank, np.float32), axes=[])


@pytest.mark.parametrize("epsilon", [-1.0, np.nan, np.inf])
def test_epsilon(epsilon):
    for op in (training, statistics):
        with pytest.raises(InputError, match=r"epsilon is .*; expected a finite number >= 0"):
            op(epsilon=epsilon)


@pytest.mark.parametrize("momentum", [np.nan, -np.inf])
def test_momentum(momentum):
    with pytest.raises(InputError, match=r"momentum is .*; expected a finite number"):
        training(momentum=momentum)


def test_training_mode():
    for op in (grad, relu_grad, grad_grad):
        with pytest.raises(InputError, match="training_mode is 2; expected 0 or 1"):
            op(training_mode=2)


def test_views_are_taken_as_they_look():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5, 6)).astype(np.float32)
    turned, sliced = x.transpose(2, 0, 1), x[:, ::2, 1:]
    for view in (turned, sliced):
        for output, other in zip(statistics(view, [1]), statistics(view.copy(), [1]), strict=True):
            np.testing.assert_array_equal(output, other)


@pytest.mark.parametrize("by", [1, 2, 4])
def test_unaligned_buffers(by):
    def unaligned(array):
        moved = np.frombuffer(b"\0" * by + array.tobytes(), np.uint8)[by:].view(array.dtype)
        return moved.reshape(array.shape)

    x = np.random.default_rng(0).normal(size=(3, 5, 70)).astype(np.float32)
    c = np.linspace(1, 2, 5, dtype=np.float32)
    for output, other in zip(grad(x, x, c, c, c), grad(*(unaligned(a) for a in (x, x, c, c, c))), strict=True):
        np.testing.assert_array_equal(output, other)


@pytest.mark.parametrize("shape", [(5,), (1, 3), (5, 3, 7), (70, 33, 250)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_outputs_begin_at_a_cache_line(shape, dtype):
    x, ones = np.zeros(shape, dtype), np.ones(shape[1:2], dtype)
    dX, *_ = native.batch_normalization_grad(x, x, ones, ones, ones, [i for i in range(x.ndim) if i != 1], True)
    assert (dX.shape, dX.dtype, dX.ctypes.data % 64) == (shape, x.dtype, 0)
    assert dX.flags.c_contiguous
    assert dX.flags.writeable


# The environment.


def test_version():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert native_library.version() == project["project"]["version"]


def test_library_variable(monkeypatch, tmp_path):
    monkeypatch.setenv(native_library.LIBRARY_VARIABLE, str(tmp_path))
    with pytest.raises(LibraryError, match=f"{native_library.LIBRARY_VARIABLE}={tmp_path} is not a file"):
        native_library.library_path()
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"no library")
    monkeypatch.setenv(native_library.LIBRARY_VARIABLE, str(wrong))
    assert native_library.library_path() == wrong
    with pytest.raises(LibraryError, match="cannot be loaded as bngrad's native library"):
        native_library.version()


def test_library_is_looked_for_once(monkeypatch):
    """That takes longer than a small op."""
    monkeypatch.delenv(native_library.LIBRARY_VARIABLE, raising=False)
    library = native_library.loaded()
    monkeypatch.setattr(native_library.importlib.resources, "files", None)
    assert native_library.loaded() is library


def python(code, **environment):
    """Runs code in a process of its own: the library reads the environment once."""
    environment = os.environ | {"PYTHONPATH": str(Path(bngrad.__file__).parents[1])} | environment
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("isa", ["sse9", "AVX2", ""])
def test_unknown_isa(isa):
    done = python("from bngrad.runtime import native_library; native_library.active_isa()", BNGRAD_ISA=isa)
    assert f"LibraryError: BNGRAD_ISA={isa} is unknown; expected one of " in done.stderr
    done = python(
        "from bngrad.runtime import native; native.batch_normalization_statistics([1.0], [0], 0)", BNGRAD_ISA=isa
    )
    assert f"BNGRAD_ISA={isa} is unknown" in done.stderr


def test_unsupported_isa():
    """Needs a machine that lacks one."""
    lacking = [isa for isa, supported in native_library.isas().items() if not supported]
    if not lacking:
        pytest.skip("this machine has every instruction set that the library knows")
    done = python("from bngrad.runtime import native_library; native_library.active_isa()", BNGRAD_ISA=lacking[0])
    assert f"BNGRAD_ISA={lacking[0]} is not supported by this CPU or operating system; unset it" in done.stderr


def test_onnxruntime_too_old():
    """As much of one that serves no API 17 as is looked at: the first function of API 1, which makes a status."""
    messages = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code, message):
        messages.append((code, message.decode()))
        return 1234

    api = (ctypes.c_void_p * 275)(ctypes.cast(create_status, ctypes.c_void_p).value)

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    def get_api(version):
        return ctypes.addressof(api) if version <= 16 else None

    @ctypes.CFUNCTYPE(ctypes.c_void_p)
    def get_version():
        return ctypes.addressof(version)

    version = ctypes.create_string_buffer(b"1.16.3")
    base = (ctypes.c_void_p * 2)(*(ctypes.cast(f, ctypes.c_void_p).value for f in (get_api, get_version)))
    register = native_library.loaded().RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 1234
    assert messages == [(1, "bngrad: requires ONNX Runtime 1.17 or newer; this is 1.16.3. Upgrade ONNX Runtime")]


# What only C can do wrong.


def call_statistics(layout, x=X, error_size=200, epsilon=0.0, *, mean=True):
    library = native_library.loaded()
    error = ctypes.create_string_buffer(b"untouched", 200)
    out = np.empty(3, np.float32).ctypes.data_as(ctypes.c_void_p) if mean else None
    x = None if x is None else x.ctypes.data_as(ctypes.c_void_p)
    status = library.bngrad_batch_normalization_statistics(
        layout, ctypes.c_double(epsilon), x, out, None, 1, error, ctypes.c_size_t(error_size)
    )
    return status, error.value.decode()


def make_layout(dims=(2, 3, 4), axes=(0, 2), rank=None, axes_count=None, types=(1, 1, 1)):
    def array(values):
        return None if values is None else (ctypes.c_int64 * len(values))(*values)

    rank = len(dims) if rank is None else rank
    axes_count = len(axes) if axes_count is None else axes_count
    return native_library.Layout(array(dims), array(axes), rank, axes_count, *types)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (None, "layout is null; expected a bngrad_layout"),
        (make_layout(rank=-1), "rank is -1; expected 1 to 8"),
        (make_layout(axes_count=-1), "axes_count is -1; expected 0 to 3"),
        (make_layout(rank=2**31 - 1), "rank is 2147483647; expected 1 to 8"),
        (make_layout(axes_count=2**31 - 1), "axes_count is 2147483647; expected 0 to 3"),
        (make_layout(dims=None, rank=2), "dims is null; expected an array of 2 values"),
        (make_layout(axes=None, axes_count=2), "axes is null; expected an array of 2 values"),
        (make_layout(dims=(2, -3, 4)), "X has shape [2,-3,4]; expected dimensions of 0 or more"),
        (make_layout(dims=(2**40, 2**40, 0)), "too large to address; expected at most 2^59 elements"),
        (make_layout(dims=()), "rank is 0; expected 1 to 8"),
        (make_layout(axes=(5,)), "axes [5]: axis 5 is out of range for X of shape [2,3,4]; expected -3 to 2"),
        (make_layout(axes=(1, -2)), "axes [1,-2] contains dimension 1 of X of shape [2,3,4] twice"),
        (make_layout(types=(7, 7, 7)), "types 7, 7, 7 of X, scale and mean are not supported; expected 1 (float)"),
        (make_layout(types=(1, 11, 1)), "types 1, 11, 1"),
        (make_layout(types=(10, 10, 16)), "16 (bfloat16) for X, and the same or 1 for scale and mean"),
        (make_layout(types=(16, 1, 16)), "stat_type is 16; expected 1 for X of type 16"),
        (make_layout(types=(11, 11, 1)), "stat_type is 1; expected 11 for X of type 11"),
    ],
)  # fmt: skip
def test_c_refusals(layout, message):
    status, error = call_statistics(layout and ctypes.byref(layout))
    assert status == 1
    assert message in error


def test_c_null_data():
    status, error = call_statistics(ctypes.byref(make_layout()), x=None)
    assert (status, error) == (1, "x is null; expected an array of 24 elements")
    status, _ = call_statistics(ctypes.byref(make_layout(dims=(0, 3, 4))), x=None)
    assert status == 0


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("bngrad_batch_normalization_grad", "dy x scale mean inv_std"),
        ("bngrad_batch_normalization_relu_grad", "dz z x scale mean inv_std"),
        ("bngrad_batch_normalization_grad_grad", "ddx ddscale ddbias dy x scale mean inv_std"),
    ],
)
def test_c_every_null_input_has_its_name(function, names):
    names = names.split()
    data = X.ctypes.data_as(ctypes.c_void_p)
    for missing in names:
        error = ctypes.create_string_buffer(200)
        inputs = [None if name == missing else data for name in names]
        status = getattr(native_library.loaded(), function)(
            ctypes.byref(make_layout()), 1, *inputs, None, None, None, 1, error, ctypes.c_size_t(200)
        )
        count = 24 if missing in ("dy", "dz", "z", "x", "ddx") else 3
        expected = f"{missing} is null; expected an array of {count} elements"
        assert (status, error.value.decode()) == (1, expected)


SPLIT = {
    # Scalars before the arrays; inputs with their numbers of elements; the number of outputs.
    "moments": ((), {"x": 24}, 1),
    "apply": ((), {"x": 24, "scale": 3, "bias": 3, "batch_mean": 3, "batch_inv_std": 3}, 1),
    "grad_sums": ((), {"dy": 24, "z": 0, "x": 24, "batch_mean": 3, "batch_inv_std": 3}, 3),
    "grad_apply": (
        (ctypes.c_int64(2), ctypes.c_double(16.0)),
        {"dy": 24, "z": 0, "x": 24, "scale": 3, "batch_mean": 3, "batch_inv_std": 3, "gathered_sums": 12},
        1,
    ),
}


@pytest.mark.parametrize(
    ("op", "missing"),
    [(op, name) for op, (_, inputs, _) in SPLIT.items() for name, count in inputs.items() if count],
)
def test_c_every_null_input_of_a_split_batch_norm_has_its_name(op, missing):
    scalars, inputs, outputs = SPLIT[op]
    data, error = ctypes.c_void_p(X.ctypes.data), ctypes.create_string_buffer(200)
    arrays = [None if name == missing or count == 0 else data for name, count in inputs.items()]
    status = getattr(native_library.loaded(), f"bngrad_batch_normalization_{op}")(
        ctypes.byref(make_layout()), *scalars, *arrays, *[None] * outputs, 1, error, ctypes.c_size_t(200)
    )
    expected = f"{missing} is null; expected an array of {inputs[missing]} elements"
    assert (status, error.value.decode()) == (1, expected)


def test_c_moments_need_an_output():
    error, data = ctypes.create_string_buffer(200), ctypes.c_void_p(X.ctypes.data)
    status = native_library.loaded().bngrad_batch_normalization_moments(
        ctypes.byref(make_layout()), data, None, 1, error, ctypes.c_size_t(200)
    )
    assert (status, error.value.decode()) == (1, "moments is null; expected an array of 9 elements")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"ranks": 0}, "ranks is 0; expected 1 or more"),
        ({"ranks": -(2**40)}, "ranks is -1099511627776; expected 1 or more"),
        ({"channels": -1}, "channels is -1; expected 0 to "),
        ({"channels": 2**58}, "channels is 288230376151711744; expected 0 to "),
        ({"ranks": 2**62}, "channels is 3; expected 0 to 0 for 4611686018427387904 ranks"),
        ({"stat_type": 7}, "stat_type is 7; expected 1 (float), 10 (float16), 11 (double) or 16 (bfloat16)"),
        ({"epsilon": -1.0}, "epsilon is -1.000000; expected a finite number >= 0"),
        ({"gathered": None}, "gathered_moments is null; expected an array of 18 elements"),
        ({"mean": None}, "running_mean is null; expected an array of 3 elements"),
    ],
    ids=str,
)
def test_c_merge_moments(change, message):
    gathered, mean = np.ones((2, 3, 3)), np.ones(3, np.float32)
    right = {"ranks": 2, "channels": 3, "stat_type": 1, "epsilon": 1e-3, "gathered": gathered, "mean": mean}
    a, error = right | change, ctypes.create_string_buffer(200)
    pointers = [None if v is None else ctypes.c_void_p(v.ctypes.data) for v in (a["gathered"], a["mean"], mean)]
    status = native_library.loaded().bngrad_batch_normalization_merge_moments(
        ctypes.c_int64(a["ranks"]), ctypes.c_int64(a["channels"]), a["stat_type"], ctypes.c_double(a["epsilon"]),
        ctypes.c_double(0.9), 1, *pointers, *[None] * 5, error, ctypes.c_size_t(200),
    )  # fmt: skip
    assert (status, error.value.decode()[: len(message)]) == (int(bool(message)), message)


def call_grad(pointers):
    error = ctypes.create_string_buffer(200)
    status = native_library.loaded().bngrad_batch_normalization_grad(
        ctypes.byref(make_layout()), 1, *map(ctypes.c_void_p, pointers), 1, error, ctypes.c_size_t(200)
    )
    return status, error.value.decode()


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ({0: 1}, "dy is not aligned; expected an address that is a multiple of 4, the size of an element"),
        ({3: 2}, "mean is not aligned"),
        ({7: 3}, "dbias is not aligned"),
        ({5: -1024}, "dx overlaps inv_std; expected outputs that overlap no other array"),
        ({5: -1024 - 92}, "dx overlaps inv_std"),
        ({6: 4 - 1024}, "dscale overlaps dx"),
        ({7: -2048}, "dbias overlaps dx"),
        ({5: 12 - 1024}, ""),
        ({5: -1024 - 96}, ""),
        ({0: 1024, 3: 1024}, ""),
    ],
    ids=str,
)
def test_c_where_arrays_may_lie(moves, message):
    """Nine at 1024 bytes from each other, of 96 or 12 bytes; inputs may overlap, and arrays may touch."""
    memory = np.ones(9 * 256 + 1, np.float32)
    pointers = [memory.ctypes.data + 1024 * i + moves.get(i, 0) for i in range(8)]
    before = memory.copy()
    status, error = call_grad(pointers)
    assert (status, error[: len(message)]) == (int(bool(message)), message)
    assert np.array_equal(memory, before) == bool(message)


@pytest.mark.parametrize("count", [-1, 2**60, 2**63 - 1])
def test_c_add_arrays_count(count):
    error = ctypes.create_string_buffer(200)
    data = [np.ones(4, np.float32).ctypes.data_as(ctypes.c_void_p) for _ in range(3)]
    status = native_library.loaded().bngrad_add_arrays(
        ctypes.c_int64(count), *data, 1, error, ctypes.c_size_t(200)
    )
    assert status == 1
    assert error.value.decode().startswith(f"count is {count}; expected 0 to ")


@pytest.mark.parametrize(("size", "expected"), [(0, "untouched"), (1, ""), (8, "epsilon")])
def test_c_message_is_cut(size, expected):
    status, error = call_statistics(ctypes.byref(make_layout()), error_size=size, epsilon=-1)
    assert (status, error) == (1, expected)


def test_c_out_of_memory():
    """Scratch for the sums of 2^35 channels in 2^12 parts cannot be had, which shows before X is read."""
    status, error = call_statistics(ctypes.byref(make_layout(dims=(2**20, 2**35), axes=(0,))), mean=False)
    assert (status, error) == (2, "out of memory")


@pytest.mark.parametrize("training_mode", [0, 1])
@pytest.mark.parametrize(
    "dims",
    [
        *[(256, 5, 3), (35, 70, 49), (300, 4, 16), (13, 60, 40), (9, 3, 700), (37, 700, 1), (37, 300, 1)],
        # Written past the caches: short rows and columns that are whole cache lines, and that are not; long rows
        # whose last piece is short.
        *[(1100, 32, 32), (700, 30, 51), (4400, 256, 1), (4400, 250, 1), (2, 40, 16400)],
    ],
)
def test_c_sums_have_the_same_bits_whatever_is_wanted(dims, training_mode):
    """Elements may be mapped in the loop that sums: in the same order as it does alone."""
    rng = np.random.default_rng(dims)
    x, dy, dx = (rng.normal(3, 2, dims) for _ in range(3))
    scale, mean, inv_std = (rng.normal(1, 0.1, dims[1]) for _ in range(3))
    layout, results = make_layout(dims=dims, types=(11, 11, 11)), []
    for out in (dx, None):
        sums = np.zeros((2, dims[1]))
        arrays = (dy, x, scale, mean, inv_std, out, *sums)
        pointers = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
        error = ctypes.create_string_buffer(200)
        assert not native_library.loaded().bngrad_batch_normalization_grad(
            ctypes.byref(layout), training_mode, *pointers, 1, error, ctypes.c_size_t(200)
        ), error.value
        results.append(sums.tobytes())
    assert results[0] == results[1]
