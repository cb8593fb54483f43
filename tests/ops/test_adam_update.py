"""AdamUpdate on every instruction set, through the C ABI and in ONNX Runtime: values, bits and refusals."""

from __future__ import annotations

import ctypes
import hashlib
import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

from adam_cases import CASES, adam_inputs, assert_adam_accurate
from bngrad.errors import InputError
from bngrad.opset.functions import DOMAIN
from bngrad.opset.schemas import signature
from bngrad.runtime import native, native_library
from bngrad.runtime.session import session
from op_models import ADAM, op_model
from test_kernels import newest_isa

cases = pytest.mark.parametrize("case", CASES)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])
INPUTS, OUTPUTS, _ = signature(ADAM)
ONE = np.ones(5, np.float32)
# Edges of a vector (16), of one thread (32768 elements) and of a task (16384).
SIZES = (*range(34), 63, 64, 65, 1000, 16383, 16384, 16385, 32767, 32768, 32769, 70001)


@newest_isa
@dtypes
@cases
def test_sizes(kernels, case, dtype):
    for size in SIZES:
        inputs = adam_inputs((size,), dtype, seed=size)
        assert_adam_accurate(kernels.call("adam_update", *inputs, CASES[case]), inputs, CASES[case])


@dtypes
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 5, 7), (2,) * 8], ids=str)
def test_shapes(kernels, shape, dtype):
    inputs = adam_inputs(shape, dtype)
    assert_adam_accurate(kernels.call("adam_update", *inputs, CASES["clipped"]), inputs, CASES["clipped"])


@dtypes
@pytest.mark.parametrize("size", [7, 1000, 100_003])
def test_no_instruction_set_and_no_thread_changes_a_bit(kernels, size, dtype):
    inputs = adam_inputs((size,), dtype)
    first = digest(native.adam_update(*inputs, CASES["clipped"]))
    for threads in (1, 2, 3, 8, 0):
        assert digest(kernels.call("adam_update", *inputs, CASES["clipped"], num_threads=threads)) == first


def digest(arrays):
    return [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]


@dtypes
def test_infinities_and_nan_stay_in_their_element(kernels, dtype):
    weight, gradient, exp_avg, exp_avg_sq = adam_inputs((40,), dtype)
    clean = kernels.call("adam_update", weight, gradient, exp_avg, exp_avg_sq, CASES["adamw"])
    gradient[[3, 20]], exp_avg_sq[7] = (np.nan, np.inf), -10.0
    got = kernels.call("adam_update", weight, gradient, exp_avg, exp_avg_sq, CASES["adamw"])
    assert np.flatnonzero(~np.isfinite(got[0])).tolist() == [3, 7, 20]  # inf / inf, and the root of a negative
    assert np.flatnonzero(~np.isfinite(got[1])).tolist() == [3, 20]
    rest = np.setdiff1d(np.arange(40), [3, 7, 20])
    for output, other in zip(got, clean, strict=True):
        np.testing.assert_array_equal(output[rest], other[rest])


@dtypes
def test_the_function_gives_the_same_bits(dtype):
    """Both round after every operation, in the same order; so a model may move between runtimes."""
    model = op_model(ADAM, {}, dtype=dtype)
    feeds = dict(zip(INPUTS, (*adam_inputs((1000,), dtype), np.array(CASES["clipped"])), strict=True))
    by_function, by_native = (
        session(model, implementation).run(None, feeds) for implementation in ("function", "native")
    )
    for output, other in zip(by_function, by_native, strict=True):
        np.testing.assert_array_equal(output, other)


@pytest.mark.parametrize("threads", [1, 2])
@dtypes
def test_in_a_session(dtype, threads):
    for shape in ((), (0,), (5,), (3, 4, 5), (40_000,)):
        inputs = adam_inputs(shape, dtype)
        model = op_model(ADAM, {}, dtype=dtype, function=False)
        feeds = dict(zip(INPUTS, (*inputs, np.array(CASES["adam, L2"])), strict=True))
        assert_adam_accurate(session(model, threads=threads).run(OUTPUTS, feeds), inputs, CASES["adam, L2"])


@pytest.mark.parametrize("kept", [k for n in (1, 2, 3) for k in itertools.combinations(range(3), n)], ids=str)
def test_outputs_left_out(kept):
    model = op_model(ADAM, {}, function=False)
    (node,) = model.graph.node
    node.output[:] = [name if i in kept else "" for i, name in enumerate(OUTPUTS)]
    del model.graph.output[:]
    for i in kept:
        model.graph.output.append(helper.make_tensor_value_info(OUTPUTS[i], TensorProto.FLOAT, None))
    inputs = adam_inputs((50,), np.float32)
    feeds = dict(zip(INPUTS, (*inputs, np.array(CASES["adamw"])), strict=True))
    want = native.adam_update(*inputs, CASES["adamw"])
    for i, got in zip(kept, session(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(got, want[i])


def test_the_shape_of_the_new_weight_is_inferred():
    model = op_model(ADAM, {}, function=False, shape=(3, 4), axes=())
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("new_weight", TensorProto.FLOAT, None))
    assert session(model).get_outputs()[0].shape == [3, 4]


WRONG = {
    "gradient": ({"gradient": np.ones(4, np.float32)}, "gradient has shape [4]; expected [5], the shape of"),
    "rank": ({"exp_avg": np.ones((5, 1), np.float32)}, "exp_avg has shape [5,1]; expected [5]"),
    "scalar": ({"exp_avg_sq": np.array(1, np.float32)}, "exp_avg_sq has shape []; expected [5]"),
    "too few": ({"coefficients": np.ones(8)}, "coefficients has shape [8]; expected [9], a vector"),
    "a matrix": ({"coefficients": np.ones((1, 9))}, "coefficients has shape [1,9]; expected [9], a vector"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_shapes_in_a_session(case):
    change, message = WRONG[case]
    feeds = dict(zip(INPUTS, (*(ONE,) * 4, np.ones(9)), strict=True)) | change
    with pytest.raises(Exception, match="AdamUpdate, node 'bn'") as error:
        session(op_model(ADAM, {}, function=False)).run(None, feeds)
    assert message in str(error.value)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT32])
def test_types_without_kernels(dtype):
    model = op_model(ADAM, {}, function=False, types=dict.fromkeys((*INPUTS[:4], *OUTPUTS), dtype))
    with pytest.raises(Exception, match=f"{DOMAIN}.*{ADAM}|Type .* of input"):
        session(model)


NATIVE = {
    "16 bits": ({"weight": ONE.astype(np.float16)}, "weight has dtype float16; expected float32 or float64"),
    "big-endian": ({"weight": ONE.astype(">f4")}, "weight has dtype >f4; expected float32 or float64"),
    "mixed": ({"gradient": ONE.astype(np.float64)}, "gradient has dtype float64; expected float32"),
    "shape": ({"exp_avg": ONE[:4]}, "exp_avg has shape [4]; expected [5]: the shape of weight"),
    "coefficients": ({"coefficients": np.ones(3)}, "coefficients has shape [3]; expected [9]: their number"),
}  # fmt: skip


@pytest.mark.parametrize("case", NATIVE)
def test_native_refusals(case):
    change, message = NATIVE[case]
    arguments = dict(zip(INPUTS, (*(ONE,) * 4, np.ones(9)), strict=True)) | change
    with pytest.raises(InputError) as error:
        native.adam_update(**arguments)
    assert message in str(error.value)


def test_views_are_taken_as_they_look():
    arrays = adam_inputs((6, 5), np.float32)
    views = [array.T[::2] for array in arrays]
    copies = [view.copy() for view in views]
    of_views, of_copies = (native.adam_update(*arrays, CASES["adam"]) for arrays in (views, copies))
    for output, other in zip(of_views, of_copies, strict=True):
        np.testing.assert_array_equal(output, other)


NAMES = ("coefficients", *INPUTS[:4], *OUTPUTS)


def call(count=5, kind=1, **changes):
    arrays = {name: np.ones(9 if name == "coefficients" else 5, np.float64) for name in NAMES}
    pointers = {name: array.ctypes.data for name, array in arrays.items()} | changes
    pointers = {name: pointers[value] if isinstance(value, str) else value for name, value in pointers.items()}
    error = ctypes.create_string_buffer(200)
    status = native_library.loaded().bngrad_adam_update(
        ctypes.c_int64(count), kind, *map(ctypes.c_void_p, pointers.values()), 1, error, ctypes.c_size_t(200)
    )
    return status, error.value.decode()


C_CASES = {
    "accepted": ({}, ""),
    "no new averages": ({"new_exp_avg": None, "new_exp_avg_sq": None}, ""),
    "nothing": ({"count": 0, **dict.fromkeys(NAMES[1:])}, ""),
    "negative count": ({"count": -1}, "count is -1; expected 0 to "),
    "too large": ({"count": 2**62}, "count is 4611686018427387904; expected 0 to "),
    "type": ({"kind": 10}, "type is 10; expected 1 (float) or 11 (double)"),
    "null weight": ({"weight": None}, "weight is null; expected an array of 5 elements"),
    "null coefficients": ({"coefficients": None}, "coefficients is null; expected an array of 9 elements"),
    "in place": ({"new_weight": "weight"}, "new_weight overlaps weight; expected outputs that"),
}  # fmt: skip


@pytest.mark.parametrize("case", C_CASES)
def test_c_abi(case):
    changes, message = C_CASES[case]
    status, error = call(**changes)
    assert status == (1 if message else 0)
    assert message in error
