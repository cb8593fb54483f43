"""Tests all commands and functions with external data while the current folder is not the model's."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad import cli
from bngrad.errors import InputError, ModelError
from bngrad.io import files

# Some models have frozen batch norms, about which the public functions warn.
pytestmark = pytest.mark.filterwarnings("ignore::bngrad.BngradWarning")

FORWARD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4,3,N] x, bool c) => (float loss, float[4,3,N] y) {
    h = Mul(x, w)
    y = BatchNormalization<training_mode = 0>(h, s, s, m, v)
    flat = Reshape(y, shape)
    r = If(c) <then_branch = t () => (float[M] p) { p = Add(flat, q) },
        else_branch = e () => (float[M] n) { n = Neg(flat) }>
    k = Constant<value = float {2}>()
    a = Mul(y, k)
    loss = ReduceMean<keepdims = 0>(a) }"""
TRAINING = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[4,3,N] dY, float[4,3,N] X, bool c) => (float[4,3,N] dX, float[3] ds, float[M] r) {
    dX, ds, db = com.microsoft.BatchNormalizationGrad(dY, X, s, m, v)
    flat = Reshape(dX, shape)
    r = If(c) <then_branch = t () => (float[M] p) { p = Add(flat, q) },
        else_branch = e () => (float[M] n) { n = Neg(flat) }>
    k = Constant<value = float {2}>() }"""


def save(text, folder, n):
    """Writes a model with all tensors, including those of branches and Constants, as external data."""
    model = onnx.parser.parse_model(text.replace("N]", f"{n}]").replace("[M]", f"[{12 * n}]"))
    values = {
        **{name: np.arange(1, 4, dtype=np.float32) for name in "smv"},
        "w": np.linspace(0.5, 2, n, dtype=np.float32),
        "shape": np.array([-1], np.int64),
    }
    used = {name for node in model.graph.node for name in node.input}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in values.items() if name in used]
    model.graph.initializer.extend(tensors)
    (branch,) = (node for node in model.graph.node if node.op_type == "If")
    q = onnx.numpy_helper.from_array(np.ones(12 * n, np.float32), "q")
    branch.attribute[0].g.initializer.append(q)
    folder.mkdir()
    path = folder / "m.onnx"
    options = {"save_as_external_data": True, "location": "m.bin", "size_threshold": 0, "convert_attribute": True}
    onnx.save(model, path, **options)
    return path


@pytest.fixture(params=[3, 300], ids=["small", "large"])
def models(request, tmp_path, monkeypatch):
    """The paths and shapes of two models outside of the current folder."""
    n = request.param
    paths = save(FORWARD, tmp_path / "forward", n), save(TRAINING, tmp_path / "training", n)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return paths


def _calls(forward, training):
    keep = {"outputs": ["y"]}
    return {
        "rewrite": (bngrad.rewrite, training, {}),
        "rewrite-training": (bngrad.rewrite, training, {"target": "training"}),
        "differentiate": (bngrad.differentiate, forward, {"loss": "loss"}),
        "differentiate-training-mode": (bngrad.differentiate, forward, {"loss": "loss", "training": ["*"]}),
        "differentiate-by-ort": (bngrad.differentiate, forward, {"loss": "loss", "builder": "ort", "wrt": ["w"]}),
        "finalize": (lambda model, **options: bngrad.finalize(model, {}, **options), forward, keep),
    }


CALLS = list(_calls("", ""))


def feeds(session, rng):
    shapes = {value.name: value.shape for value in session.get_inputs()}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items() if name != "c"}
    return {**arrays, **({"c": np.array(True)} if "c" in shapes else {})}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_python_functions_return_holds_its_weights(name, models, rng):
    run, path, options = _calls(*models)[name]
    result = run(path, **options)
    for tensor in result.graph.initializer:
        assert tensor.data_location == onnx.TensorProto.DEFAULT, tensor.name
    session = bngrad.session(result, "function")
    arrays = feeds(session, rng)
    want = session.run(None, arrays)
    assert all(np.isfinite(value).all() for value in want)
    onnx.save(result, "out.onnx")
    for again in (bngrad.session("out.onnx"), bngrad.session(onnx.load("out.onnx"), "function")):
        for got, value in zip(again.run(None, arrays), want, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=5e-5)  # sums of 300 terms in float
    returned = run(ir.load(path), **options)
    assert isinstance(returned, ir.Model)
    for got, value in zip(bngrad.session(returned, "function").run(None, arrays), want, strict=True):
        np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("external_data", [(), ("--external-data", "copied")], ids=["inside", "copied"])
def test_every_command(models, external_data, rng, tmp_path):
    forward, training = map(str, models)
    np.savez("w.npz", s=np.full(3, 2, np.float32))
    out = str(tmp_path / "out.onnx")
    for arguments in (
        ("inspect", forward),
        ("rewrite", training, "-o", out, *external_data),
        ("differentiate", forward, "--loss", "loss", "-o", out, *external_data),
        ("finalize", forward, "--weights", "w.npz", "--keep", "y", "-o", out, *external_data),
        ("validate", forward, "--loss", "loss", "--against", "numeric", "--implementation", "function"),
    ):
        assert cli.run(list(arguments)) == 0, arguments
        if "-o" in arguments:
            session = bngrad.session(out)
            assert all(np.isfinite(value).all() for value in session.run(None, feeds(session, rng)))


@pytest.mark.parametrize("name", CALLS)
def test_a_proto_whose_data_are_elsewhere_is_refused(name, models):
    run, path, options = _calls(*models)[name]
    with pytest.raises(InputError) as error:
        run(onnx.load(path, load_external_data=False), **options)
    assert (
        " does not exist; pass the model's path, or load the model with its external data, as onnx.load(path) does"
        in str(error.value)
    )
    with pytest.raises(InputError, match="pass the model's path"):
        bngrad.session(onnx.load(path, load_external_data=False), "function")


def test_a_proto_whose_data_are_here(models, monkeypatch):
    forward, _ = models
    monkeypatch.chdir(forward.parent)
    result = bngrad.differentiate(onnx.load(forward, load_external_data=False), loss="loss")
    assert not any(tensor.external_data for tensor in result.graph.initializer)


@pytest.mark.parametrize("name", CALLS)
def test_weights_that_no_proto_can_hold_are_refused(name, models, monkeypatch):
    run, path, options = _calls(*models)[name]
    monkeypatch.setattr(files, "MAX_PROTOBUF_BYTES", 1)
    with pytest.raises(ModelError) as error:
        run(path, **options)
    assert "GB of weights, more than an onnx.ModelProto can hold; pass onnx_ir.load(path) " in str(error.value)
    if name == "differentiate-by-ort":
        monkeypatch.undo()  # ONNX Runtime's builder gets a proto with the weights that are not differentiated
    assert isinstance(run(ir.load(path), **options), ir.Model)


def test_the_model_that_is_given_is_not_read_into_memory(models):
    forward, _ = models
    model = ir.load(forward)
    bngrad.session(bngrad.differentiate(model, loss="loss"), "function")
    assert all(isinstance(value.const_value, ir.ExternalTensor) for value in model.graph.initializers.values())
