"""``bngrad bench``: what it prints, what it takes from a model, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from bngrad.cli import run

PARAMETERS = "float[3] s, float[3] b, float[3] m, float[3] v"
FORWARD = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,4,4] x, {PARAMETERS}) => (float[N,3,4,4] z, float[N,3,2,4] w) {{
    y = BatchNormalization(x, s, b, m, v)
    r = Relu(y)
    [second] z = BatchNormalization(r, s, b, m, v)
    starts = Constant<value_ints = [0]>()
    ends = Constant<value_ints = [2]>()
    two = Constant<value_ints = [2]>()
    half = Slice(z, starts, ends, two)
    [third] w = BatchNormalization(half, s, b, m, v)
}}"""
TRAINING_GRAPH = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (double[N,3,4,4] dy, double[N,3,4,4] x, {PARAMETERS.replace("float", "double")})
    => (double[N,3,4,4] dx, double[3] ds, double[3] db) {{
    y, m2, v2, sm, si = com.microsoft.BatchNormInternal<epsilon = 0.001, momentum = 0.9>(x, s, b, m, v)
    dx, ds, db = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(dy, x, s, sm, si)
}}"""
OURS = """<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>
g (float16[6,4] dy, float16[6,4] x, float[4] s, float[4] m, float[4] i, int64[1] axes) => (float16[6,4] dx) {
    [grad] dx, ds, db = bngrad.BatchNormalizationGrad<training_mode = 1>(dy, x, s, m, i, axes)
}"""
MODELS = {
    "forward.onnx": FORWARD,
    "training.onnx": TRAINING_GRAPH,
    "none.onnx": """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }""",
    "shapeless.onnx": f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,4,4] x, int64[4] shape, {PARAMETERS}) => (float[A,B,C,D] y) {{
    r = Reshape(x, shape)
    [bn] y = BatchNormalization(r, s, b, m, v)
}}""",
    "foreign.onnx": """<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
g (float[2,4,4,3] dy, float[2,4,4,3] x, float[3] s, float[3] m, float[3] v) => (float[2,4,4,3] dx) {
    [grad] dx, ds, db, r4, r5 = tf.FusedBatchNormGradV2(dy, x, s, m, v)
}""",
    "free.onnx": OURS,
    "ours.onnx": OURS.replace(", int64[1] axes", "").replace(
        "[grad]", "axes = Constant<value_ints = [0]>() [grad]"
    ),
    "integers.onnx": TRAINING_GRAPH.replace("double", "int32"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in MODELS.items():
        Path(name).write_bytes(onnx.parser.parse_model(text).SerializeToString())
    Path("text.onnx").write_text("not a model\n")


@pytest.fixture
def command(command):
    return lambda *arguments: command("bench", *arguments, "--repeats", "1")


@pytest.fixture
def rows(command):
    def call(*arguments):
        code, out, err = command(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)["rows"]

    return call


def test_the_document(command):
    code, out, err = command("--shape", "2x3x4x5", "--threads", "1", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert set(document) == {"library", "version", "isa", "threads", "repeats", "rows"}
    assert (document["threads"], document["repeats"]) == (1, 1)
    (row,) = document["rows"]
    measured = {name: row.pop(name) for name in ("ms", "gb_per_s", "bandwidth", "bandwidth_fraction")}
    assert row == {
        "shape": [2, 3, 4, 5],
        "axes": [0, 2, 3],
        "dtype": "float",
        "op": "grad",
        "frozen": False,
        "count": 1,
        "bytes": 1440,
    }
    assert set(measured["ms"]) == set(measured["bandwidth"]["ms"]) == {"low", "median", "high"}
    assert measured["bandwidth"]["bytes"] == 1440
    assert measured["gb_per_s"] == pytest.approx(1440 / measured["ms"]["median"] / 1e6)
    assert measured["bandwidth_fraction"] == pytest.approx(
        measured["gb_per_s"] / measured["bandwidth"]["gb_per_s"]
    )


def test_the_table(command):
    code, out, err = command("--shape", "2x3x4x5", "--shape", "8x3", "--dtype", "bfloat16", "--frozen")
    assert (code, err) == (0, "")
    for words in (
        "ms: median (quartiles)",
        "GB/s",
        "of bandwidth",
        "2x3x4x5",
        "0,2,3",
        "8x3",
        "bfloat16",
        "grad, frozen",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "axes", "expected"),
    [
        (["--layout", "NHWC"], [0, 1, 2], {"op": "grad"}),
        (["--axes", "-1,0"], [0, 3], {"frozen": False}),
        (["--axes", ""], [], {}),
        (["--op", "relu-grad", "--frozen"], [0, 2, 3], {"op": "relu-grad", "frozen": True, "bytes": 4 * 480}),
        (["--op", "grad-grad", "--dtype", "double"], [0, 2, 3], {"dtype": "double", "bytes": 5 * 960}),
        (["--op", "training", "--dtype", "float16"], [0, 2, 3], {"dtype": "float16", "bytes": 2 * 240}),
        (["--op", "statistics", "--dtype", "bfloat16"], [0, 2, 3], {"op": "statistics", "bytes": 240}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else " ".join(map(str, value)),
)
def test_options_of_a_shape(arguments, axes, expected, rows):
    (row,) = rows("--shape", "2x3x4x5", *arguments)
    assert row["axes"] == axes
    assert row | expected == row


def test_equal_shapes_are_timed_once(rows):
    assert [row["shape"] for row in rows("--shape", "4x3", "--shape", "4x5", "--shape", "4x3")] == [[4, 3], [4, 5]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["forward.onnx"], [([4, 3, 4, 4], [0, 2, 3], "float", 2), ([4, 3, 2, 4], [0, 2, 3], "float", 1)]),
        (
            ["forward.onnx", "--dim", "N=2", "--op", "training"],
            [([2, 3, 4, 4], [0, 2, 3], "float", 2), ([2, 3, 2, 4], [0, 2, 3], "float", 1)],
        ),
        (["training.onnx", "--frozen"], [([4, 3, 4, 4], [0, 2, 3], "double", 1)]),
        (["ours.onnx", "--op", "grad-grad"], [([6, 4], [0], "float16", 1)]),
    ],
)
def test_the_batch_norms_of_a_model(arguments, expected, rows):
    timed = rows(*arguments)
    assert [(row["shape"], row["axes"], row["dtype"], row["count"]) for row in timed] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to time; pass MODEL or --shape, such as --shape 32x64x56x56"),
        (["forward.onnx", "--shape", "2x3"], "MODEL and --shape are both given; pass only one of them"),
        (["forward.onnx", "--axes", "0"], "--axes applies to --shape only; it cannot be combined with MODEL"),
        (
            ["forward.onnx", "--layout", "NHWC"],
            "--layout applies to --shape only",
        ),
        (
            ["forward.onnx", "--dtype", "float"],
            "--dtype applies to --shape only",
        ),
        (["--shape", "2x3", "--dim", "N=2"], "--dim applies to MODEL only; --shape has no symbolic dimensions"),
        (["--shape", "2x3x"], "shape '2x3x' is invalid; expected sizes separated by x, such as 32x64x56x56"),
        (["--shape", "2,3"], "shape '2,3' is invalid; expected sizes separated by x, such as 32x64x56x56"),
        (["--shape", ""], "shape '' is invalid; expected sizes separated by x, such as 32x64x56x56"),
        (["--shape", "-2x3"], "shape '-2x3' is invalid; expected sizes separated by x, such as 32x64x56x56"),
        (["--shape", "2x0"], "shape 2x0 has an empty dimension; expected sizes of 1 or more"),
        (["--shape", "1x1x1x1x1x1x1x1x1"], "X has 9 dimensions; expected 1 to 8"),
        (["--shape", "7"], "a shape of rank 1 has no layout; pass the reduction axes with --axes"),
        (["--shape", "2x3", "--axes", "2"], "axis 2 is out of range for X of rank 2; expected -2 to 1"),
        (
            ["--shape", "2x3", "--axes", "0,0"],
            "axes [0, 0] name a dimension of X twice; name each",
        ),
        (["--shape", "2x3", "--axes", "0 1"], "axes '0 1' are invalid; expected integers separated by commas"),
        (
            ["--shape", "2x3", "--axes", "0", "--layout", "NCHW"],
            "--axes and --layout are both given",
        ),
        (
            ["--shape", "2x3", "--op", "training", "--frozen"],
            "op training has no frozen mode; expected one of grad, relu-grad",
        ),
        (["--shape", "2x3", "--op", "forward"], "Invalid value for '--op': 'forward' is not one of 'grad'"),
        (["--shape", "2x3", "--dtype", "int8"], "Invalid value for '--dtype': 'int8' is not one of 'float'"),
        (["--shape", "2x3", "--layout", "CN"], "Invalid value for '--layout': 'CN' is not one of 'NCHW', 'NHWC'"),
        (
            ["--shape", "2x3", "--threads", "-1"],
            "Invalid value for '--threads': -1 is not in the range",
        ),
        (["--shape", "2x3", "--repeats", "0"], "Invalid value for '--repeats': 0 is not in the range x>=1"),
        (["--shape", "9000000x9000000"], "grad at 9000000x9000000 needs 972000.0 GB; this machine has"),
        (["none.onnx"], "the model has no batch norm to time; give shapes with --shape"),
        (["shapeless.onnx"], "batch norm 'bn' (BatchNormalization): the shape of X is"),
        (
            ["foreign.onnx"],
            "batch norm 'grad' (tf.FusedBatchNormGradV2) is an op of another framework; convert",
        ),
        (["free.onnx"], "batch norm 'grad' (bngrad.BatchNormalizationGrad): its axes are not constant"),
        (["integers.onnx"], "X is int32; expected one of float, double, float16, bfloat16"),
        (["forward.onnx", "--dim", "Q=2"], "there is no symbolic dimension 'Q' among the inputs; there are: N"),
        (
            ["forward.onnx", "--dim", "N"],
            "Invalid value for '--dim': 'N' is not of the form NAME=N with an integer N",
        ),
        (["missing.onnx"], "missing.onnx"),
        (["text.onnx"], "text.onnx"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(arguments, message, capsys):
    code = run(["bench", *arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_library_that_is_missing(monkeypatch, capsys):
    monkeypatch.setenv("BNGRAD_LIBRARY", "nowhere.so")
    assert run(["bench", "--shape", "2x3"]) == 2
    assert capsys.readouterr().err == (
        "bngrad: error: BNGRAD_LIBRARY=nowhere.so is not a file; expected the path of the native library\n"
    )
