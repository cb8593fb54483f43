"""MaxPoolInputGrad's CUDA kernels in real sessions without a card: see test_cuda_conv_grad.py.

At most 100 windows are in a launch, unless a plane has more.
"""

from __future__ import annotations

import ctypes
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.parser
import pytest

import bngrad
from bngrad.opset.max_pool_grad import NAME
from bngrad.runtime.session import session
from bngrad.validation.training_ops.pooling import max_pool_grad_of_x
from max_pool_cases import WINDOWS, complete, feeds_of, model_of
from test_cuda_conv_grad import library, session_of  # noqa: F401 - library is a fixture
from test_max_pool_grad import DY, OVERLAP, REFUSED, RIGHT, SPECIAL, X, dtypes, windows
from test_programs import only_linux

pytestmark = only_linux

WINDOWS_TOGETHER = 100


def launches(library):  # noqa: F811
    driver = ctypes.CDLL(str(library.with_name("libfake_cuda_runs.so")))
    return ctypes.c_int.in_dll(driver, "fake_cuda_launches").value


def device_session(library, attributes, dtype=np.float32):  # noqa: F811
    """A session in which nothing but the kernels can run the op: the model has no function of it."""
    return session_of(library, model_of(complete(attributes), dtype, function=False).SerializeToString())


def check(library, attributes, feeds):  # noqa: F811
    """Compares with the op of the CPU, and counts the launches: two for each part of the planes."""
    dtype, before = feeds["X"].dtype.type, launches(library)
    (dx,) = device_session(library, attributes, dtype).run(None, feeds)
    dY, planes = feeds["dY"], feeds["X"].shape[0] * feeds["X"].shape[1]
    of_plane = int(np.prod(dY.shape[2:]))
    together = max(1, WINDOWS_TOGETHER // of_plane) if of_plane else planes
    assert launches(library) - before == (2 * -(-planes // together) if dY.size and dx.size else 0)
    (expected,) = session(model_of(complete(attributes), dtype), "native").run(None, feeds)
    assert (dx.shape, dx.dtype, dx.tobytes()) == (expected.shape, expected.dtype, expected.tobytes())
    return dx


@dtypes
@windows
def test_the_kernels_have_the_bits_of_the_cpu(library, sizes, attributes, dtype, rng):  # noqa: F811
    """Of few different numbers, so that most windows have ties."""
    for batch, values in itertools.product((1, 3), (2, 1000)):
        x = rng.integers(-values, values, (batch, 2, *sizes)).astype(dtype)
        feeds = feeds_of(x, attributes, rng)
        dx = check(library, attributes, feeds)
        exact = max_pool_grad_of_x(feeds["dY"].astype(np.float64), x.astype(np.float64), **complete(attributes))
        np.testing.assert_allclose(dx, exact, rtol=0, atol=1e-5 if dtype == np.float32 else 1e-13)


@dtypes
@pytest.mark.parametrize("special", SPECIAL, ids=str)
def test_numbers_that_do_not_compare(library, special, dtype, rng):  # noqa: F811
    for sizes, attributes in (OVERLAP, WINDOWS["3-D, overlap"], WINDOWS["5x4, pads differ"], WINDOWS["2x2"]):
        x = rng.choice(special, (2, 3, *sizes)).astype(dtype)
        check(library, attributes, feeds_of(x, attributes, rng))


def test_gradients_that_are_no_numbers(library, rng):  # noqa: F811
    """They stay where they belong: elements that another window found add a zero, not a product with it."""
    feeds = feeds_of(rng.integers(0, 5, (2, 3, *OVERLAP[0])).astype(np.float32), OVERLAP[1], rng)
    feeds["dY"] = rng.choice(np.array([np.inf, -np.inf, -0.0, 1], np.float32), feeds["dY"].shape)
    feeds["dY"][0, 0, 0, 0] = np.nan
    dx = check(library, OVERLAP[1], feeds)
    assert not np.isnan(dx[1]).all()
    assert not np.signbit(dx[dx == 0]).any()


SHAPES = {
    "one large plane": (1, 1, 300, 300),
    "large planes": (5, 7, 64, 64),
    "many small planes": (3, 700, 7, 7),
    "a plane a part": (2, 2, 20, 20),
    "no images": (0, 3, 9, 12),
    "no channels": (2, 0, 9, 12),
    "no rows": (2, 3, 0, 12),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sizes(library, shape, rng):  # noqa: F811
    """More elements than the threads of a grid, several parts, and none."""
    x = rng.integers(0, 5, shape).astype(np.float32)
    rows, columns = ((size - 1) // 2 + 1 for size in shape[2:])
    feeds = {"dY": rng.standard_normal((*shape[:2], rows, columns)).astype(np.float32), "X": x}
    check(library, OVERLAP[1], feeds)


def test_no_windows(library):  # noqa: F811
    dx = check(library, {"kernel_shape": [7, 2]}, {"dY": np.zeros((2, 3, 0, 5), np.float32), "X": X + 1})
    assert not dx.any()


def test_windows_of_padding_add_nothing(library):  # noqa: F811
    ones = np.ones((1, 1, 3), np.float32)
    dx = check(library, {"kernel_shape": [2], "dilations": [4], "pads": [1, 1]}, {"dY": ones[..., :1], "X": ones})
    assert not dx.any()
    check(library, {"kernel_shape": [2], "pads": [5, 6]}, {"dY": np.full((1, 1, 13), 2, np.float32), "X": ones})


def test_later_runs_are_independent(library, rng):  # noqa: F811
    """Runs of a session share its scratch memory, at the same time and with other shapes."""
    runner = device_session(library, OVERLAP[1])
    shapes = [(1, 2, 9, 12), (3, 5, 20, 7), (2, 1, 40, 40), (1, 1, 3, 3)]
    feeds = [feeds_of(rng.integers(0, 5, shape).astype(np.float32), OVERLAP[1], rng) for shape in shapes]
    expected = [check(library, OVERLAP[1], feed).tobytes() for feed in feeds]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda i: runner.run(None, feeds[i % 4])[0].tobytes() == expected[i % 4], range(24))
    assert all(results)


MODEL = """<ir_version: 8, opset_import: ["": 18]>
    g (float[N,2,7,8] x, float w) => (float loss) {
        a = Mul (x, w)
        y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (a)
        q = Mul (y, y)
        loss = ReduceSum <keepdims = 0> (q)
    }"""


@pytest.mark.parametrize("device", ["cuda", None])
def test_the_node_of_a_model(library, rng, monkeypatch, device):  # noqa: F811
    """A gradient as `differentiate` writes it, with the function that ONNX Runtime would inline.

    A program that does not say that its session is on a GPU gets the kernels, too.
    """
    model = bngrad.differentiate(onnx.parser.parse_model(MODEL), loss="loss", wrt=["x"])
    feeds = {"x": rng.standard_normal((3, 2, 7, 8)).astype(np.float32), "w": np.float32(2)}
    feeds = {name: np.asarray(array) for name, array in feeds.items()}
    runner, before = session_of(library, model.SerializeToString(), device), launches(library)
    results = runner.run(None, feeds)
    assert launches(library) - before == 2
    expected = session(model, "native").run(None, feeds)
    assert [array.tobytes() for array in results] == [array.tobytes() for array in expected]
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuLaunchKernel")
    with pytest.raises(Exception, match=f"{NAME}.*launching max_pool_find failed with CUDA_ERROR_OUT_OF_MEMORY"):
        runner.run(None, feeds)


FAULTS = {
    "cuCtxGetDevice": (DY, "cuCtxGetDevice"),
    "cuLaunchKernel": (DY, "launching max_pool_find"),
    "cuMemsetD8Async": (DY[..., :0], "cuMemsetD8Async"),
}


@pytest.mark.parametrize("function", FAULTS)
def test_faults_of_the_driver(library, function, monkeypatch):  # noqa: F811
    """Each ends a run in one line that names the node, and the session goes on once it is over."""
    dY, message = FAULTS[function]
    attributes = RIGHT if dY.size else {**RIGHT, "kernel_shape": [2, 7]}
    runner = device_session(library, attributes)
    monkeypatch.setenv("FAKE_CUDA_FAIL", function)
    with pytest.raises(Exception, match=rf"bngrad\.{NAME}, node 'the_node'") as error:
        runner.run(None, {"dY": dY, "X": X})
    assert str(error.value).endswith(f"{message} failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
    monkeypatch.delenv("FAKE_CUDA_FAIL")
    assert not runner.run(None, {"dY": dY, "X": X})[0].any()


@pytest.mark.parametrize(("attributes", "dY", "x", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals(library, attributes, dY, x, reason):  # noqa: F811
    with pytest.raises(Exception, match=f"{NAME}, node 'the_node'.*{reason}"):
        session_of(library, model_of(attributes, function=False, rank=x.ndim).SerializeToString()).run(
            None, {"dY": dY, "X": x}
        )


def test_indices_beyond_32_bits_are_refused(library):  # noqa: F811
    """The CPU takes this padding."""
    feeds = {"dY": np.ones((1, 1, 3), np.float32), "X": np.ones((1, 1, 10), np.float32)}
    attributes = complete({"kernel_shape": [2], "strides": [2**30], "pads": [2**31 - 1, 0]})
    session(model_of(attributes), "native").run(None, feeds)
    with pytest.raises(Exception, match=f"{NAME}, node 'the_node'") as error:
        device_session(library, attributes).run(None, feeds)
    assert str(error.value).endswith(
        "a plane of X has elements, windows or padding up to an index of 2147483657; a GPU takes at most "
        "2147483647. Run the model on the CPU"
    )
