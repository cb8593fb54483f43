"""Tests the exact error messages about models that cannot be used; they must refer to the user's model."""

from __future__ import annotations

from typing import NamedTuple

import onnx
import pytest

from bngrad import cli

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "tf" : 1, "ngraph" : 1]>\n'
CHANNELS = "<float[4] s = {1,1,1,1}, float[4] b = {0,0,0,0}, float[4] m = {0,0,0,0}, float[4] v = {1,1,1,1}>"
TRAINED = """{
    [bn] y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    q = Mul(y, y)
    loss = ReduceSum<keepdims = 0>(q) }"""
FORWARD = f"g (float[3,4,5] x) => (float loss) {CHANNELS} {TRAINED}"
GRADIENT = """g (float[3,4,5] dy, float[3,4,5] x, float[4] s, float[4] m, float[4] i) => (float[3,4,5] dx) {
    [grad] dx, ds, db = com.microsoft.BatchNormalizationGrad(dy, x, s, m, i) }"""
BN = "BatchNormalization node 'bn' (outputs y, rm, rv)"
GRAD = "com.microsoft.BatchNormalizationGrad node 'grad' (outputs dx, ds, db)"


class Message(NamedTuple):
    """A model in ONNX's text format, without its header, and the expected message of a command."""

    command: str
    text: str
    message: str


MODELS = {
    "a-scalar-statistic": Message(
        "differentiate",
        FORWARD.replace("float[4] m = {0,0,0,0}", "float m = {0}"),
        f"{BN} is not valid: its input 'm' has shape []; expected [4]",
    ),
    "a-scalar-statistic-of-rewrite": Message(
        "rewrite",
        FORWARD.replace("float[4] m = {0,0,0,0}", "float m = {0}"),
        f"{BN} is not valid: its input 'm' has shape []; expected [4]",
    ),
    "a-scale-for-other-channels": Message(
        "differentiate",
        FORWARD.replace("float[4] s = {1,1,1,1}", "float[3] s = {1,1,1}"),
        f"{BN} is not valid: its input 's' has shape [3]; expected [4]",
    ),
    "a-scale-of-two-dimensions": Message(
        "differentiate",
        FORWARD.replace("float[3,4,5] x", "float[3,C,5] x").replace(
            "float[4] s = {1,1,1,1}", "float[1,4] s = {1,1,1,1}"
        ),
        f"{BN} is not valid: its input 's' has shape [1, 4]; expected one dimension, the channels of its X",
    ),
    "a-vector-of-several-channels": Message(
        "differentiate",
        FORWARD.replace("float[3,4,5] x", "float[7] x"),
        f"{BN} is not valid: its input 's' has shape [4]; expected [1]",
    ),
    "nine-dimensions": Message(
        "differentiate",
        FORWARD.replace("[3,4,5]", "[3,4,1,1,1,1,1,1,1]"),
        f"{BN} cannot be rewritten: its X has rank 9; expected 1 to 8 ([N, C, ...]) (and 1 more)",
    ),
    "a-frozen-batch-norm-beside-a-gradient": Message(
        "rewrite",
        GRADIENT.replace("{\n", "{ [frozen] y = BatchNormalization(x, s, s, s, p)\n", 1).replace(
            "float[4] i)", "float[4] i, float[5] p)"
        ),
        "BatchNormalization node 'frozen' (outputs y) is not valid: its input 'p' has shape [5]; expected [4]",
    ),
    "a-gradient-for-other-channels": Message(
        "rewrite",
        GRADIENT.replace("float[4] m", "float[3] m"),
        f"{GRAD} cannot be rewritten: its input 'm' has shape [3]; expected [4]",
    ),
    "ngraph": Message(
        "differentiate",
        f"""g (float[2,3,5,4] x) => (float loss) {CHANNELS} {{
            [bn] y, bm, bv = ngraph.BatchNormTraining<eps = 0.001>(s, b, x)
            loss = ReduceMean<keepdims = 0>(y) }}""",
        (
            "ngraph.BatchNormTraining node 'bn' (outputs y, bm, bv) cannot be differentiated: it has no gradient "
            "rule; convert it to an op of bngrad first, with bngrad rewrite"
        ),
    ),
    "a-fault-of-the-model-elsewhere": Message(
        "rewrite",
        GRADIENT.replace("=> (", "=> (float[3,9] z, ").replace("{\n", "{ [relu] z = Relu(x)\n", 1),
        (
            "the model does not pass onnx's checker: [ShapeInferenceError] Inference error(s): (op_type:Relu, "
            "node name: relu): [ShapeInferenceError] Inferred shape and existing shape differ in rank: (3) vs (2)"
        ),
    ),
    "an-output-without-a-shape": Message(
        "rewrite",
        GRADIENT.replace("=> (", "=> (float[1] z, ").replace("{\n", "{ z = tf.Unknown(x)\n", 1),
        "tf.Unknown node (outputs z) cannot run on stock ONNX Runtime; keep a training build and pass --target "
        "training",
    ),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _said(capsys, command):
    arguments = [command, "model.onnx", *([] if command == "inspect" else ["-o", "out.onnx"])]
    arguments += ["--loss", "loss"] if command == "differentiate" else []
    code = cli.run(arguments)
    out, error = capsys.readouterr()
    return code, out, error


@pytest.mark.parametrize("case", MODELS)
def test_a_model(case, tmp_path, capsys):
    command, text, message = MODELS[case]
    onnx.save(onnx.parser.parse_model(HEADER + text), "model.onnx")
    assert _said(capsys, command) == (2, "", f"bngrad: error: {message}\n")
    assert not (tmp_path / "out.onnx").exists()


FILES = {
    "ort-format": (
        b"\x18\x00\x00\x00ORTM" + b"\xff" * 64,
        "a model in ORT format (.ort), which only ONNX Runtime can read; pass the .onnx file it was made from",
    ),
    "checkpoint": (
        b"\x18\x00\x00\x00ODTC" + b"\xff" * 64,
        "a checkpoint of onnxruntime.training; pass its training_model.onnx or the forward model",
    ),
    "tensorflow-lite": (
        b"\x18\x00\x00\x00TFL3" + b"\xff" * 64,
        "a TensorFlow Lite model; convert it with tf2onnx",
    ),
    "git-lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n",
        "a Git LFS pointer, not the model; run git lfs pull",
    ),
    "zip": (
        b"PK\x03\x04" + b"\xff" * 64,
        "a zip archive, as torch.save and numpy.savez write; expected a model (torch.onnx.export writes one)",
    ),
    "gzip": (b"\x1f\x8b\x08" + b"\xff" * 64, "compressed with gzip; unpack it"),
    "onnx-text": (
        b'<ir_version: 8, opset_import: ["" : 17]>\ng (float[2] x) => (float[2] y) { y = Relu(x) }\n',
        "a model as text; convert it: onnx.save(onnx.parser.parse_model(text), 'model.onnx')",
    ),
    "protobuf-text": (
        b'ir_version: 8\nproducer_name: "t"\n',
        "a model as protobuf text; convert it: onnx.save(onnx.load(path, format='textproto'), 'model.onnx')",
    ),
    "shorter-than-a-mark": (b"\x18\x00", "not an ONNX model: it has no graph"),
}


@pytest.mark.parametrize("command", ["inspect", "rewrite", "differentiate"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_of_another_kind(case, command, tmp_path, capsys):
    content, what = FILES[case]
    (tmp_path / "model.onnx").write_bytes(content)
    assert _said(capsys, command) == (2, "", f"bngrad: error: model.onnx is {what}\n")


def test_what_rewrite_made_of_a_frozen_batch_norm_is_said(capsys):
    text = """g (float[2,3,5,4] x, float[4] s, float[4] b, float[4] m, float[4] v) => (float[2,3,5,4] y) {
        y, bm, bv, r1, r2, r3 = tf.FusedBatchNormV3<is_training = 0>(x, s, b, m, v)
        z, zm, zv, z1, z2, z3 = tf.FusedBatchNormV3<is_training = 1>(y, s, b, m, v) }"""
    onnx.save(onnx.parser.parse_model(HEADER + text), "model.onnx")
    line = "out.onnx: 1 BatchNormalizationTraining; lowered to standard ONNX: 1 FusedBatchNormV3\n"
    assert _said(capsys, "rewrite") == (0, line, "")
