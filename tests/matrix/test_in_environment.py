"""Works wherever bngrad is installed: every op by every implementation, and every command on a small network.

Imports pytest and what bngrad itself depends on: `make matrix` runs this very file in environments with other
releases of those, with the wheel.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import bngrad
from bngrad.opset import reference
from bngrad.runtime import native_library
from op_models import CASES, TOLERANCES, assert_matches, expected, op_feeds, op_model

IMPLEMENTATIONS = ["native", "python", "function"]
EPSILON, MOMENTUM = float(np.float32(1e-3)), float(np.float32(0.9))
AXES = (0, 2, 3)

# ---- the package and its library ----


def test_every_public_name_can_be_imported():
    assert {name for name in bngrad.__all__ if getattr(bngrad, name) is None} == set()


def test_the_console_script_prints_the_version(tmp_path):
    assert bngrad_command("--version", cwd=tmp_path) == f"bngrad {bngrad.__version__}\n"


def test_the_library_is_of_this_version():
    assert native_library.version() == bngrad.__version__
    assert native_library.active_isa() in native_library.isas()


def test_a_plain_session_takes_the_library():
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(bngrad.get_library_path())
    model = op_model(*CASES["grad-training"], function=False)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


# ---- the ops ----

LAYOUTS = {
    "NCHW": ((4, 3, 5, 2), AXES),
    "NHWC": ((4, 5, 2, 3), (0, 1, 2)),
    "per-activation": ((6, 3, 4), (0,)),
    "rank-1": ((7,), (0,)),
    "mixed": ((2, 3, 4, 2), (1, -1)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_op_computes_what_the_reference_does(implementation, case, dtype):
    op, attributes = CASES[case]
    session = bngrad.session(op_model(op, attributes, dtype=dtype), implementation)
    names = [output.name for output in session.get_outputs()]
    rng = np.random.default_rng(7)
    for layout, (shape, axes) in LAYOUTS.items():
        feeds = op_feeds(op, shape, axes, rng, dtype)
        got = dict(zip(names, session.run(None, feeds), strict=True))
        assert_matches(got, expected(op, feeds, attributes), TOLERANCES[dtype], layout)


# ---- the compiler ----

VALUES = {
    "w": (4, 3, 1, 1), "scale": (4,), "bias": (4,), "mean": (4,), "var": (4,)
}  # fmt: skip
BATCH_NORM = ["h", "scale", "bias", "mean", "var"]
TRAINABLE = ("w", "scale", "bias")


def make_values(seed=11):
    rng = np.random.default_rng(seed)
    values = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in VALUES.items()}
    signs = rng.choice(np.array([-1, 1], np.float32), VALUES["w"])
    return values | {"w": values["w"] * signs}


def make_feeds():
    rng = np.random.default_rng(12)
    return {name: rng.standard_normal((6, c, 5, 2)).astype(np.float32) for name, c in (("x", 3), ("target", 4))}


def network():
    """The sum of relu(batch norm(x convolved with w)) * target: its gradients are one op's and an einsum."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node(
            "BatchNormalization",
            BATCH_NORM,
            ["y", "new_mean", "new_var"],
            name="bn",
            epsilon=EPSILON,
            momentum=MOMENTUM,
            training_mode=1,
        ),
        helper.make_node("Relu", ["y"], ["z"], name="relu"),
        helper.make_node("Mul", ["z", "target"], ["p"], name="mul"),
        helper.make_node("ReduceSum", ["p"], ["loss"], name="sum", keepdims=0),
    ]
    info, float_ = helper.make_tensor_value_info, TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "network",
        [info("x", float_, [6, 3, 5, 2]), info("target", float_, [6, 4, 5, 2])],
        [
            info("loss", float_, []),
            info("z", float_, [6, 4, 5, 2]),
            info("new_mean", float_, [4]),
            info("new_var", float_, [4]),
        ],
        [numpy_helper.from_array(value, name) for name, value in make_values().items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def truth(feeds, values):
    """The results of a training step of `network`, in float64."""
    x, target, w = (np.asarray(a, np.float64) for a in (feeds["x"], feeds["target"], values["w"]))
    h = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])
    parameters = {name: values[name] for name in ("scale", "bias")}
    running = {"running_mean": values["mean"], "running_var": values["var"]}
    y, new_mean, new_var, mean, inv_std = reference.batch_normalization_training(
        h, **parameters, **running, axes=AXES, epsilon=EPSILON, momentum=MOMENTUM, unbiased_running_var=False
    )
    z = np.maximum(y, 0)
    dh, dscale, dbias = reference.batch_normalization_relu_grad(
        target, z, h, values["scale"], mean, inv_std, AXES, True
    )
    dw = np.einsum("nkhw,nchw->kc", dh, x)[:, :, None, None]
    gradients = {"w_grad": dw, "scale_grad": dscale, "bias_grad": dbias}
    return {"loss": np.sum(z * target), "z": z, "new_mean": new_mean, "new_var": new_var, **gradients}


def assert_trains_as_the_truth(model, implementation):
    """Runs a training step; the tolerance is for float sums of 60 and 240 products."""
    session = bngrad.session(model, implementation)
    feeds = make_feeds()
    want = truth(feeds, make_values())
    got = dict(zip(want, session.run(list(want), feeds), strict=True))
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def ort_training_graph():
    """The same step as ONNX Runtime's gradient builder spells it."""
    model = network()
    graph = model.graph
    node, ort = helper.make_node, "com.microsoft"
    nodes = {original.name: original for original in graph.node}
    bn = node(
        "BatchNormInternal",
        BATCH_NORM,
        ["y", "new_mean", "new_var", "saved_mean", "saved_inv_std"],
        name="bn",
        domain=ort,
        epsilon=EPSILON,
        momentum=MOMENTUM,
        training_mode=1,
    )
    backward = [
        node("ReluGrad", ["target", "z"], ["y_grad"], name="relu_grad", domain=ort),
        node(
            "BatchNormalizationGrad",
            ["y_grad", "h", "scale", "saved_mean", "saved_inv_std"],
            ["h_grad", "scale_grad", "bias_grad"],
            name="bn_grad",
            domain=ort,
            epsilon=EPSILON,
        ),
        node("ConvGrad", ["h_grad", "x", "w"], ["", "w_grad"], name="conv_grad", domain=ort),
    ]
    del graph.node[:]
    graph.node.extend([nodes["conv"], bn, nodes["relu"], nodes["mul"], nodes["sum"], *backward])
    graph.output.extend(
        helper.make_tensor_value_info(f"{name}_grad", TensorProto.FLOAT, VALUES[name]) for name in TRAINABLE
    )
    model.opset_import.append(helper.make_opsetid(ort, 1))
    return model


def console_script(*arguments, cwd):
    """The result of this environment's script. It takes seconds; a busy machine may need minutes."""
    script = Path(sys.executable).with_name("bngrad.exe" if sys.platform == "win32" else "bngrad")
    command = [script, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=900)


def bngrad_command(*arguments, cwd):
    done = console_script(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    onnx.save(network(), tmp_path / "forward.onnx")
    onnx.save(ort_training_graph(), tmp_path / "ort.onnx")
    return tmp_path


def test_inspect(folder):
    (batch_norm,) = json.loads(bngrad_command("inspect", "forward.onnx", "--json", cwd=folder))["batch_norms"]
    assert (batch_norm["name"], batch_norm["mode"], batch_norm["axes"]) == ("bn", "training", list(AXES))
    assert set(bngrad.inspect(folder / "ort.onnx").not_in_stock) == {f"com.microsoft.{op}" for op in (
        "BatchNormInternal", "BatchNormalizationGrad", "ConvGrad", "ReluGrad"
    )}  # fmt: skip


def test_differentiate(folder):
    bngrad_command("differentiate", "forward.onnx", "-o", "train.onnx", "--loss", "loss", cwd=folder)
    for implementation in IMPLEMENTATIONS:
        assert_trains_as_the_truth(folder / "train.onnx", implementation)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_step(layout, folder):
    bngrad_command("step", "forward.onnx", "-o", "step.onnx", "--momentum", "0.5", "--layout", layout, cwd=folder)
    for implementation in IMPLEMENTATIONS:
        assert_makes_a_step(folder, implementation)


def assert_makes_a_step(folder, implementation):
    trainer = bngrad.Trainer(folder / "step.onnx", learning_rate=0.01, implementation=implementation)
    feeds, values = make_feeds(), make_values()
    want = truth(feeds, values)
    np.testing.assert_allclose(trainer.step(**feeds), want["loss"], rtol=1e-4)
    state = trainer.state_dict()
    for name in TRAINABLE:
        new = values[name] - 0.01 * want[f"{name}_grad"]
        np.testing.assert_allclose(state[name], new, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(state["mean"], want["new_mean"], rtol=1e-5, atol=1e-5)
    trainer.save(folder / "checkpoint.safetensors")
    again = bngrad.Trainer(folder / "step.onnx", learning_rate=0.01, implementation=implementation)
    again.load(folder / "checkpoint.safetensors")
    assert trainer.step(**feeds) == again.step(**feeds)


@pytest.mark.parametrize("fuse", ["--fuse", "--no-fuse"])
def test_rewrite(fuse, folder):
    bngrad_command("rewrite", "ort.onnx", "-o", "stock.onnx", fuse, cwd=folder)
    assert bngrad.inspect(folder / "stock.onnx").not_in_stock == {}
    for implementation in IMPLEMENTATIONS:
        assert_trains_as_the_truth(folder / "stock.onnx", implementation)


def test_finalize(folder):
    trained = make_values(seed=13)
    np.savez(folder / "trained.npz", **trained)
    arguments = ("--weights", "trained.npz", "-o", "inference.onnx", "--keep", "z")
    bngrad_command("finalize", "forward.onnx", *arguments, cwd=folder)
    x = make_feeds()["x"]
    (z,) = bngrad.session(folder / "inference.onnx", "function").run(["z"], {"x": x})
    wide = {name: value.astype(np.float64)[..., None, None] for name, value in trained.items() if name != "w"}
    h = np.einsum("nchw,kc->nkhw", x.astype(np.float64), trained["w"][:, :, 0, 0])
    y = (h - wide["mean"]) / np.sqrt(wide["var"] + EPSILON) * wide["scale"] + wide["bias"]
    np.testing.assert_allclose(z, np.maximum(y, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["forward.onnx", "ort.onnx"])
def test_validate(model, folder):
    """Without ONNX Runtime's own builder, which is an environment of its own: against float64 and differences."""
    for against in ("reference", "numeric"):
        if model == "ort.onnx" and against == "numeric":
            continue  # it takes a forward model
        said = bngrad_command("validate", model, "--against", against, cwd=folder)
        assert f"passed: {against}, seed 0, implementations native, python, function" in said


@pytest.mark.parametrize("kind", ["path", "proto", "ir"])
def test_the_python_functions(kind, folder):
    model = {"path": lambda p: p, "proto": onnx.load, "ir": ir.load}[kind]
    trained = bngrad.differentiate(model(folder / "forward.onnx"), loss="loss")
    rewritten = bngrad.rewrite(model(folder / "ort.onnx"))
    for result in (trained, rewritten):
        assert isinstance(result, ir.Model if kind == "ir" else onnx.ModelProto)
        assert_trains_as_the_truth(result, "native")


def test_a_wrong_model_is_one_line(folder):
    (folder / "text.onnx").write_text("not a model")
    done = console_script("inspect", "text.onnx", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bngrad: error: text.onnx ")
    assert done.stderr.count("\n") == 1
