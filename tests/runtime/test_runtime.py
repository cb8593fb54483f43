"""Tests which implementation a session uses, and that all implementations agree."""

from __future__ import annotations

import importlib.resources

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError, LibraryError
from bngrad.opset import reference
from bngrad.opset.functions import FUNCTIONS, function_proto
from bngrad.runtime import native_library
from bngrad.runtime.session import IMPLEMENTATIONS, get_library_path, register, session
from op_models import CASES, GRAD, TOLERANCES, assert_matches, expected, op_feeds, op_model

# Contains every op; each reads outputs of another.
ALL_OPS = """<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>
g (T[N,3,H,W] dY, T[N,3,H,W] X, T[3] scale, T[3] bias, T[3] running_mean, T[3] running_var)
    => (T[N,3,H,W] Y, T[3] new_mean, T[3] new_var, T[3] mean, T[3] inv_std,
        T[N,3,H,W] dX, T[3] dscale, T[3] dbias, T[N,3,H,W] frozen_dX) {
    axes = Constant<value = int64[3] {0, 2, 3}>()
    Y, new_mean, new_var, saved_mean, saved_inv_std = bngrad.BatchNormalizationTraining
        <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 1>
        (X, scale, bias, running_mean, running_var, axes)
    mean, inv_std = bngrad.BatchNormalizationStatistics<epsilon = 0.001>(Y, axes)
    dX, dscale, dbias = bngrad.BatchNormalizationGrad<training_mode = 1>
        (dY, X, scale, saved_mean, saved_inv_std, axes)
    frozen_dX, a, b = bngrad.BatchNormalizationGrad<training_mode = 0>(dX, Y, scale, mean, inv_std, axes)
}"""
OUTPUTS = ("Y", "new_mean", "new_var", "mean", "inv_std", "dX", "dscale", "dbias", "frozen_dX")
TYPE_NAMES = {np.float32: "float", np.float64: "double"}
DTYPES = pytest.mark.parametrize("dtype", TYPE_NAMES, ids=TYPE_NAMES.values())


def all_ops(dtype=np.float32, *, functions=True):
    model = onnx.parser.parse_model(ALL_OPS.replace("T[", TYPE_NAMES[dtype] + "["))
    double = dtype == np.float64
    model.functions.extend(function_proto(name, 17, double=double) for name in FUNCTIONS if functions)
    return model


def all_feeds(rng, dtype=np.float32):
    draw = {name: rng.standard_normal((4, 3, 5, 2)).astype(dtype) for name in ("dY", "X")}
    draw |= {name: rng.standard_normal(3).astype(dtype) for name in ("scale", "bias", "running_mean")}
    return {**draw, "running_var": rng.uniform(0.5, 2, 3).astype(dtype)}


def all_expected(feeds):
    axes, epsilon = (0, 2, 3), float(np.float32(1e-3))
    forward = {name: feeds[name] for name in ("X", "scale", "bias", "running_mean", "running_var")}
    y, new_mean, new_var, *saved = reference.batch_normalization_training(
        **forward, axes=axes, epsilon=epsilon, momentum=float(np.float32(0.9)), unbiased_running_var=True
    )
    mean, inv_std = reference.batch_normalization_statistics(y, axes, epsilon)
    gradients = reference.batch_normalization_grad(feeds["dY"], feeds["X"], feeds["scale"], *saved, axes, True)
    frozen = reference.batch_normalization_grad(gradients.dX, y, feeds["scale"], mean, inv_std, axes, False)
    return dict(zip(OUTPUTS, (y, new_mean, new_var, mean, inv_std, *gradients, frozen.dX), strict=True))


@DTYPES
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_each_implementation_computes_what_the_reference_does(implementation, dtype, rng):
    feeds = all_feeds(rng, dtype)
    values = session(all_ops(dtype), implementation).run(list(OUTPUTS), feeds)
    assert all(value.dtype == dtype for value in values)
    assert_matches(dict(zip(OUTPUTS, values, strict=True)), all_expected(feeds), TOLERANCES[dtype], implementation)


@DTYPES
def test_python_calls_the_very_kernels_of_native(dtype, rng):
    feeds = all_feeds(rng, dtype)
    native, python = (
        session(all_ops(dtype), implementation).run(None, feeds) for implementation in ("native", "python")
    )
    for value, other in zip(native, python, strict=True):
        np.testing.assert_array_equal(value, other)


EDGES = {
    "rank-1": ((5,), (0,)),
    "rank-8": ((2, 1, 2, 1, 2, 1, 2, 2), (0, 2, 3, 4, 5, 6, 7)),
    "channels-last": ((4, 5, 3), (0, 1)),
    "per-activation": ((4, 3, 5), (0,)),
    "mixed": ((2, 3, 4, 2), (1, 3)),
    "no-axes": ((2, 3), ()),
    "negative-unsorted": ((2, 3, 4), (-1, 0)),
    "m-is-1": ((1, 3, 1), (0, 2)),
    "empty-batch": ((0, 3, 2), (0, 2)),
    "no-channels": ((2, 0, 2), (0, 2)),
}


@DTYPES
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_edges_of_every_implementation(implementation, case, dtype, rng):
    op, attributes = CASES[case]
    run = session(op_model(op, attributes, dtype=dtype), implementation)
    names = [output.name for output in run.get_outputs()]
    for edge, (shape, axes) in EDGES.items():
        feeds = op_feeds(op, shape, axes, rng, dtype)
        got = dict(zip(names, run.run(None, feeds), strict=True))
        assert_matches(got, expected(op, feeds, attributes), TOLERANCES[dtype], edge)


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_a_registered_op_needs_no_function(implementation, rng):
    feeds = all_feeds(rng)
    bare = session(all_ops(functions=False), implementation).run(None, feeds)
    carrying = session(all_ops(), implementation).run(None, feeds)
    for value, other in zip(bare, carrying, strict=True):
        np.testing.assert_array_equal(value, other)


def test_the_registered_op_is_taken_not_the_function(rng):
    """A deliberately wrong function shows which implementation ran."""
    model = op_model(GRAD, {"training_mode": 0})
    (product,) = (node for node in model.functions[0].node if "dX" in node.output)
    product.op_type = "Sub"
    feeds = op_feeds(GRAD, (4, 3), (0,), rng)
    want = expected(GRAD, feeds, {"training_mode": 0})["dX"]
    for implementation in IMPLEMENTATIONS:
        right = np.allclose(session(model, implementation).run(["dX"], feeds)[0], want, atol=1e-5)
        assert right == (implementation != "function"), implementation


def test_the_library_is_told_of_a_gpu():
    """It registers ops with a kernel for a GPU only, which would hide their functions on the CPU."""
    options = onnxruntime.SessionOptions()
    register(options, device="cuda:1")
    assert options.get_session_config_entry("bngrad.device") == "cuda"
    options = onnxruntime.SessionOptions()
    register(options)
    with pytest.raises(RuntimeError, match=r"bngrad\.device"):
        options.get_session_config_entry("bngrad.device")
    with pytest.raises(InputError, match="device 'tpu' is not supported"):
        register(onnxruntime.SessionOptions(), device="tpu")


def test_without_functions_nothing_runs_unregistered():
    with pytest.raises(Exception, match=r"BatchNormalizationTraining.* is not a registered function/op"):
        session(all_ops(functions=False), "function")


@pytest.mark.parametrize(
    "pair", [(a, b) for a in ("native", "python") for b in ("native", "python")], ids="+".join
)
def test_a_session_takes_the_domain_once(pair):
    options = onnxruntime.SessionOptions()
    for implementation in pair:
        register(options, implementation)
    with pytest.raises(Exception, match=r"Domain already set in registry|Conflicting with a registered kernel"):
        onnxruntime.InferenceSession(all_ops().SerializeToString(), options)


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_many_sessions_in_one_process(implementation, rng):
    feeds = all_feeds(rng)
    first, second = session(all_ops(), implementation), session(all_ops(), implementation)
    for value, other in zip(first.run(None, feeds), second.run(None, feeds), strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize(
    ("node", "reason"),
    [("Foo (x)", "No Op registered for Foo"), ("Relu <foo = 1> (x)", "Unrecognized attribute: foo")],
)
def test_a_model_that_onnxruntime_refuses(node, reason):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) {{
        y = {node}
    }}""")
    with pytest.raises(bngrad.ModelError, match=f"ONNX Runtime refuses the model: .*{reason}"):
        session(model)


@pytest.mark.parametrize("kind", ["path", "str", "proto", "ir"])
def test_a_session_takes_a_model_of_any_kind(kind, tmp_path, rng):
    proto = all_ops()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    model = {"path": path, "str": str(path), "proto": proto, "ir": ir.from_proto(proto)}[kind]
    assert session(model, "function").run(["Y"], all_feeds(rng))[0].shape == (4, 3, 5, 2)


def test_external_data_beside_a_path_is_found(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Add(x, w) }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.testing.assert_array_equal(session(path, "function").run(None, {"x": np.ones(2, np.float32)})[0], [4, 5])


def test_the_options_of_a_session():
    options = session(all_ops(), "function", threads=1).get_session_options()
    assert options.intra_op_num_threads == 1
    assert not options.enable_mem_pattern
    assert session(all_ops(), "function").get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("call", [lambda p: register(onnxruntime.SessionOptions(), p), lambda p: session("x", p)])
@pytest.mark.parametrize("name", ["cuda", "Native", ""])
def test_an_unknown_implementation(call, name):
    with pytest.raises(InputError) as error:
        call(name)
    assert str(error.value) == f"implementation is {name!r}; expected one of native, python, function"


def test_an_argument_that_is_no_model():
    with pytest.raises(
        InputError, match=r"model has type int; expected a path, an onnx\.ModelProto or an onnx_ir\.Model"
    ):
        session(3, "function")


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "path"])
def test_a_model_that_is_not_there(kind, tmp_path):
    path = tmp_path / "none.onnx"
    with pytest.raises(InputError) as error:
        session(kind(path), "function")
    assert str(error.value) == f"{path} does not exist; expected an ONNX model file"


def test_the_library_of_the_environment(monkeypatch, tmp_path):
    library = tmp_path / "mine.so"
    library.write_bytes(b"")
    monkeypatch.setenv("BNGRAD_LIBRARY", str(library))
    assert get_library_path() == str(library)


def test_the_library_of_the_environment_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("BNGRAD_LIBRARY", str(tmp_path / "none.so"))
    message = f"BNGRAD_LIBRARY={tmp_path / 'none.so'} is not a file; expected the path of the native library"
    for call in (
        get_library_path,
        lambda: register(onnxruntime.SessionOptions()),
        lambda: session(all_ops()),
    ):
        with pytest.raises(LibraryError) as error:
            call()
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            native_library.__file__,
            r"bngrad is imported from .*, where `pip install -e \.` has not run: run it, or",
        ),
        ("site-packages/bngrad/runtime/native_library.py", "reinstall bngrad with a C\\+\\+ compiler available,"),
    ],
)
def test_the_library_was_not_built(monkeypatch, tmp_path, source, reason):
    monkeypatch.delenv("BNGRAD_LIBRARY", raising=False)
    monkeypatch.setattr(importlib.resources, "files", lambda _package: tmp_path)
    monkeypatch.setattr(native_library, "__file__", str(tmp_path / source))
    with pytest.raises(LibraryError, match=rf"is not installed: {reason} .*or set BNGRAD_LIBRARY to"):
        get_library_path()


def test_a_library_that_lacks_a_function():
    with pytest.raises(LibraryError, match=r"has no bngrad_of_tomorrow: it is older than this package; build it"):
        native_library.call("bngrad_of_tomorrow")


def test_a_library_that_is_none(monkeypatch, tmp_path):
    library = tmp_path / "text.so"
    library.write_text("not a library")
    monkeypatch.setenv("BNGRAD_LIBRARY", str(library))
    with pytest.raises(LibraryError) as error:
        register(onnxruntime.SessionOptions(), "native")
    message = str(error.value)
    assert message.startswith(f"ONNX Runtime {onnxruntime.__version__} cannot register {library}: ")
    assert "\n" not in message


def test_the_function_implementation_needs_no_library(monkeypatch, tmp_path, rng):
    monkeypatch.setenv("BNGRAD_LIBRARY", str(tmp_path / "none.so"))
    feeds = all_feeds(rng)
    (y,) = session(all_ops(), "function").run(["Y"], feeds)
    np.testing.assert_allclose(y, all_expected(feeds)["Y"], rtol=3e-5, atol=3e-5)


def test_the_library_path_is_a_file_that_ort_loads():
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(bngrad.get_library_path())
    onnxruntime.InferenceSession(all_ops(functions=False).SerializeToString(), options)
