"""MaxPoolInputGrad in ONNX Runtime: values, ties, bits and refusals."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from bngrad.opset.max_pool_grad import NAME
from bngrad.runtime.native_library import has_cuda, library_path
from bngrad.runtime.session import session
from bngrad.validation.training_ops.pooling import max_pool_grad_of_x
from max_pool_cases import TYPES, WINDOWS, complete, feeds_of, model_of

dtypes = pytest.mark.parametrize("dtype", TYPES, ids=["float", "double"])
windows = pytest.mark.parametrize(("sizes", "attributes"), WINDOWS.values(), ids=WINDOWS)
OVERLAP = WINDOWS["3x3, stride 2, padded"]


def results(attributes, feeds, dtype=np.float32, **options):
    """dX by the kernel and by the function."""
    model = model_of(complete(attributes), dtype, **options)
    return [session(model, way).run(None, feeds)[0] for way in ("native", "function")]


@dtypes
@windows
def test_the_kernel_has_the_bits_of_the_function(sizes, attributes, dtype, rng):
    """Of few different numbers, so that most windows have ties."""
    for batch, values in itertools.product((1, 3), (2, 1000)):
        x = rng.integers(-values, values, (batch, 2, *sizes)).astype(dtype)
        feeds = feeds_of(x, attributes, rng)
        native, function = results(attributes, feeds, dtype)
        np.testing.assert_array_equal(native, function)
        exact = max_pool_grad_of_x(feeds["dY"].astype(np.float64), x.astype(np.float64), **complete(attributes))
        np.testing.assert_allclose(native, exact, rtol=0, atol=1e-5 if dtype == np.float32 else 1e-13)


SPECIAL = [
    [np.nan, 1, 2],
    [np.nan],
    [-np.inf],
    [-np.inf, -1e38],
    [np.inf, -np.inf],
    [0.0, -0.0],
    [np.nan, -np.inf, np.inf, 0],
]


@dtypes
@pytest.mark.parametrize("special", SPECIAL, ids=str)
def test_numbers_that_do_not_compare(special, dtype, rng):
    """A NaN is the largest element only if it is the first, as in MaxPool with indices."""
    for sizes, attributes in (OVERLAP, WINDOWS["3-D, overlap"], WINDOWS["5x4, pads differ"], WINDOWS["2x2"]):
        x = rng.choice(special, (2, 3, *sizes)).astype(dtype)
        native, function = results(attributes, feeds_of(x, attributes, rng), dtype)
        np.testing.assert_array_equal(native, function)


def test_a_window_of_padding_adds_nothing():
    """The elements of its dilated kernel lie before and after X."""
    attributes = {"kernel_shape": [2], "dilations": [4], "pads": [1, 1]}
    feeds = {"dY": np.full((1, 1, 1), 5, np.float32), "X": np.ones((1, 1, 3), np.float32)}
    assert not results(attributes, feeds)[0].any()


@pytest.mark.parametrize("shape", [(0, 3, 9, 12), (5, 7, 64, 64), (3, 700, 7, 7), (1, 1, 300, 300)], ids=str)
def test_no_number_of_threads_changes_a_bit(shape, rng):
    attributes = OVERLAP[1]
    feeds = feeds_of(rng.integers(0, 5, shape).astype(np.float32), attributes, rng)
    model = model_of(complete(attributes)).SerializeToString()
    outputs = []
    for threads in (1, 2, 3):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.register_custom_ops_library(str(library_path()))
        runner = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        outputs.append(runner.run(None, feeds)[0])
    assert {output.tobytes() for output in outputs} == {results(attributes, feeds)[1].tobytes()}


@pytest.mark.parametrize("opset", [16, 18, 22])
def test_its_function_in_other_opsets(opset, rng):
    sizes, attributes = WINDOWS["ceil"]
    feeds = feeds_of(rng.standard_normal((2, 3, *sizes)).astype(np.float32), attributes, rng)
    native, function = results(attributes, feeds, opset=opset)
    np.testing.assert_array_equal(native, function)


X = np.zeros((2, 3, 6, 6), np.float32)
DY = np.zeros((2, 3, 3, 3), np.float32)
RIGHT = complete({"kernel_shape": [2, 2], "strides": [2, 2]})
REFUSED = {
    "fewer windows": (RIGHT, DY[..., :2], X, r"dY has shape \[2,3,3,2\]; expected \[2,3,3,3\]"),
    "more windows": ({**RIGHT, "strides": [3, 2]}, DY, X, r"expected \[2,3,2,3\]"),
    "other channels": (RIGHT, DY[:, :2], X, r"expected \[2,3,3,3\]"),
    "a kernel that does not fit": ({**RIGHT, "kernel_shape": [7, 2]}, DY, X, r"expected \[2,3,0,3\]"),
    "too few dimensions": (RIGHT, DY[0], X[0], r"X has shape \[3,6,6\]; expected \[N, C\] and 2 spatial"),
    "too many dimensions": (RIGHT, DY[None], X[None], r"expected \[N, C\] and 2 spatial dimensions"),
    "no kernel": ({**RIGHT, "kernel_shape": [0, 2]}, DY, X, "kernel_shape is .*expected 2 values of 1 or more"),
    "four dimensions": ({**RIGHT, "kernel_shape": [2] * 4}, DY, X, "kernel_shape is .*expected 1 to 3 values"),
    "stride 0": ({**RIGHT, "strides": [2, 0]}, DY, X, "strides is .*expected 2 values of 1 or more"),
    "one stride": ({**RIGHT, "strides": [2]}, DY, X, "strides is .*expected 2 values"),
    "dilation 0": ({**RIGHT, "dilations": [1, 0]}, DY, X, "dilations is .*expected 2 values of 1 or more"),
    "negative pads": ({**RIGHT, "pads": [0, -1, 0, 0]}, DY, X, "pads is .*expected 4 values of 0 or more"),
    "two pads": ({**RIGHT, "pads": [0, 0]}, DY, X, "pads is .*expected 4 values"),
    "pads beyond 32 bits": ({**RIGHT, "pads": [0, 2**40, 0, 0]}, DY, X, "pads is .*expected 4 values"),
    "ceil_mode 2": ({**RIGHT, "ceil_mode": 2}, DY, X, "ceil_mode"),
}


@pytest.mark.parametrize(("attributes", "dY", "x", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(attributes, dY, x, reason):
    with pytest.raises(Exception, match=f"MaxPoolInputGrad, node 'the_node'.*{reason}"):
        session(model_of(attributes, function=False, rank=x.ndim), "native").run(None, {"dY": dY, "X": x})


@pytest.mark.parametrize("missing", RIGHT)
def test_every_attribute_is_required(missing):
    attributes = {name: value for name, value in RIGHT.items() if name != missing}
    with pytest.raises(Exception, match=missing):
        session(model_of(attributes, function=False, rank=4), "native")


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_16_bits_are_refused(element):
    with pytest.raises(Exception, match="float16"):
        session(model_of(RIGHT, element, function=False), "native")


def test_a_session_on_a_gpu_has_the_function_without_a_kernel(rng):
    """The data would be copied to the CPU and back."""
    if has_cuda():
        pytest.skip("the library has a kernel for GPUs")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("bngrad.device", "cuda")
    options.register_custom_ops_library(str(library_path()))
    with pytest.raises(Exception, match=NAME):
        onnxruntime.InferenceSession(
            model_of(RIGHT, function=False).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    runner = onnxruntime.InferenceSession(
        model_of(RIGHT).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = feeds_of(X, {"kernel_shape": [2, 2], "strides": [2, 2]}, rng)
    np.testing.assert_array_equal(runner.run(None, feeds)[0], results(RIGHT, feeds)[0])
