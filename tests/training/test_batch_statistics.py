"""Batch norms in primitives have no inference mode: what would use the statistics of the batch is refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import ModelError

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
SIZES = {
    "epsilon": "float {0.125}",
    "a": "int64[1] {0}",
    "hw": "int64[2] {2, 3}",
    "nhw": "int64[3] {0, 2, 3}",
    "last": "int64[1] {1}",
    "one": "int64[2] {1, -1}",
}
CONSTANTS = " ".join(f"{name} = Constant <value = {value}> ()" for name, value in SIZES.items())


def normalized(x, axes, mean=None, variance=None):
    """(x - mean) / sqrt(variance + epsilon), with values named after x."""
    own = f"""{x}_m = ReduceMean ({x}, {axes}) {x}_d = Sub ({x}, {x}_m) {x}_q = Mul ({x}_d, {x}_d)
        {x}_v = ReduceMean ({x}_q, {axes})"""
    other = f"{x}_d = Sub ({x}, {mean})"
    return f"""{own if mean is None else other} {x}_p = Add ({variance or f"{x}_v"}, epsilon) {x}_s = Sqrt ({x}_p)
        {x}_n = Div ({x}_d, {x}_s)"""


def model(body, inputs="float[N, 3] x", outputs="float loss, float[N, 3] y"):
    text = f"""g ({inputs}) => ({outputs})
        <float[3] w = {{1, 2, 3}}, float[3, 3] k = {{1, 2, 0, 4, 5, 1, 2, 1, 1}}>
        {{ {CONSTANTS} {body} y2 = Mul (y, y) loss = ReduceMean <keepdims = 0> (y2) }}"""
    return onnx.parser.parse_model(HEADER + text)


BY_ROWS = model(f"{normalized('x', 'a')} y = Mul (x_n, w)")
IMAGES = {"inputs": "float[N, 3, 4, 4] x", "outputs": "float loss, float[N, 3, 4, 4] y"}
ONE_IMAGE = {"inputs": "float[1, 3, 4, 4] x", "outputs": "float loss, float[1, 3, 4, 4] y"}
SCALED = "shape = Constant <value = int64[3] {3, 1, 1}> () scale = Reshape (w, shape) y = Mul (x_n, scale)"
IN_IF = f"""c = Constant <value = bool {{1}}> ()
    h = If (c) <then_branch = t () => (float[N, 3] x_n) {{ {normalized("x", "a")} }},
        else_branch = e () => (float[N, 3] j) {{ j = Relu (x) }}> y = Mul (h, w)"""
OF_THE_BATCH = {
    "rows": BY_ROWS,
    "images": model(f"{normalized('x', 'nhw')} {SCALED}", **IMAGES),
    "behind a layer": model(f"h = MatMul (x, k) {normalized('h', 'a')} y = Mul (h_n, w)"),
    "in a body": model(IN_IF),
}
OF_NO_BATCH = {
    "given statistics": model(f"v = Mul (w, w) {normalized('x', 'a', 'w', 'v')} y = Mul (x_n, w)"),
    "each row": model(f"{normalized('x', 'last')} y = Mul (x_n, w)"),
    "each image": model(f"{normalized('x', 'hw')} {SCALED}", **IMAGES),
    "a batch of one": model(f"{normalized('x', 'nhw')} {SCALED}", **ONE_IMAGE),
    "a weight": model(f"{normalized('k', 'a')} h = MatMul (x, k_n) y = Mul (h, w)"),
}


@pytest.mark.parametrize("case", OF_THE_BATCH)
def test_statistics_of_the_batch_are_refused(case):
    forward = OF_THE_BATCH[case]
    match = r"^'.*' is a batch norm in primitives, .* pass --batch-statistics \(batch_statistics=True\) to keep"
    with pytest.raises(ModelError, match=match):
        bngrad.finalize(forward, {})
    with pytest.raises(ModelError, match=match):
        bngrad.training_step(forward, loss="loss")
    kept = bngrad.finalize(forward, {}, batch_statistics=True)
    assert any(node.op_type in ("ReduceMean", "If") for node in kept.graph.node)
    assert bngrad.differentiate(forward, loss="loss")


@pytest.mark.parametrize("case", OF_NO_BATCH)
def test_statistics_of_something_else_stay(case):
    forward = OF_NO_BATCH[case]
    step = bngrad.training_step(forward, loss="loss", wrt=["w"])
    x = np.random.default_rng(0).normal(size=[4 if d.dim_param else d.dim_value for d in _shape(forward)])
    x = x.astype(np.float32)
    for inference in (bngrad.finalize(forward, {}), step.finalize(step.state)):
        (got,) = _run(inference, x)
        np.testing.assert_array_equal(got[:2], _run(inference, x[:2])[0])


def test_outputs_that_do_not_depend_on_it_are_kept():
    forward = model(f"{normalized('x', 'a')} y = Mul (x_n, w) z = Mul (x, w)", outputs="float loss, float[N, 3] z")
    assert [value.name for value in bngrad.finalize(forward, {}).graph.output] == ["z"]


def test_a_step_that_accepts_it():
    step = bngrad.training_step(BY_ROWS, loss="loss", batch_statistics=True)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    x = np.random.default_rng(0).normal(3, 2, (4, 3)).astype(np.float32)
    trainer.step(x=x)
    want = (x - x.mean(0)) / np.sqrt(x.var(0) + 0.125) * trainer.state_dict()["w"]
    np.testing.assert_allclose(trainer.evaluate(x=x)["y"], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(_run(trainer.finalize(), x)[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("command", ["step", "finalize"])
def test_the_command_line(command, tmp_path, capsys):
    path, output, weights = (str(tmp_path / name) for name in ("model.onnx", "out.onnx", "weights.npz"))
    onnx.save(BY_ROWS, path)
    np.savez(weights, w=np.float32([1, 2, 3]))
    arguments = [command, path, "-o", output, *(["--weights", weights] if command == "finalize" else [])]
    assert run(arguments) == 2
    assert "is a batch norm in primitives, which would use the statistics of the batch" in capsys.readouterr().err
    assert run([*arguments, "--batch-statistics"]) == 0


def _shape(forward):
    return forward.graph.input[0].type.tensor_type.shape.dim


def _run(inference, x):
    return onnxruntime.InferenceSession(inference.SerializeToString()).run(["y"], {"x": x})
