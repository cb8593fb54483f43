"""``bngrad validate``: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest

from bngrad.cli import run
from models import digits_resnet20

TRAINING_GRAPH = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N,3,4,4] dy, float[N,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v)
    => (float[N,3,4,4] y, float[3] m2, float[3] v2, float[N,3,4,4] x_grad, float[3] s_grad, float[3] b_grad) {
    [forward] y, m2, v2, sm, si = com.microsoft.BatchNormInternal<epsilon = 0.001, momentum = 0.9>(x, s, b, m, v)
    [backward] x_grad, s_grad, b_grad = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(dy, x, s, sm, si)
}"""


NUMERIC = ["forward in float64", "central differences", "on stock ONNX Runtime"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TRAINING_GRAPH), "model.onnx")
    return tmp_path


def test_a_training_graph_passes_with_every_implementation(capsys):
    assert run(["validate", "model.onnx", "--rows", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in ("lock-step", "whole graph", "float64", "native", "python", "function", "passed: ort"):
        assert words in out
    assert "FAILED" not in out


@pytest.mark.parametrize(
    "against", [*(pytest.param(name, marks=pytest.mark.long) for name in ("ort", "reference")), "numeric"]
)
def test_the_digits_network_passes_against_everything(against, capsys):
    Path("digits.onnx").write_bytes(digits_resnet20.build().SerializeToString())
    arguments = ["--against", against, "--implementation", "function", "--json", "--dim", "N=2"]
    assert run(["validate", "digits.onnx", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is True
    assert report["batch_norms"] == {"BatchNormInternal": 21, "BatchNormalizationGrad": 21}
    counts = {check["name"]: len(check["rows"]) for check in report["checks"] if not check["skipped"]}
    expected = {
        "ort": ["lock-step", "whole graph", "float64"],
        "reference": ["lock-step", "float64", *NUMERIC],
        "numeric": NUMERIC,
    }
    assert list(counts) == expected[against]
    assert all(counts.values())


def test_a_wrong_rewrite_is_a_finding_that_every_report_names(capsys):
    assert run(["rewrite", "model.onnx", "-o", "wrong.onnx"]) == 0
    wrong = onnx.load("wrong.onnx")
    backward = next(node for node in wrong.graph.node if node.name == "backward")
    backward.input[3], backward.input[4] = backward.input[4], backward.input[3]
    onnx.save(wrong, "wrong.onnx")
    capsys.readouterr()

    arguments = ["--rewritten", "wrong.onnx", "--junit", "report.xml", "--html", "report.html", "--rows", "0"]
    arguments += ["--sarif", "report.sarif", "--summary", "report.md", "--annotations", "report.txt"]
    assert run(["validate", "model.onnx", *arguments]) == 1
    assert "FAILED: ort" in capsys.readouterr().out
    failed = [case for case in ET.parse("report.xml").iter("testcase") if case.find("failure") is not None]  # noqa: S314
    assert {case.get("name", "").split()[0] for case in failed if case.get("classname") == "lock-step"} == {
        "backward"
    }
    page = Path("report.html").read_text(encoding="utf-8")
    assert 'aria-label="Near backward: lock-step"' in page
    assert f"bngrad validate model.onnx {' '.join(arguments)}" in page
    (sarif_run,) = json.loads(Path("report.sarif").read_text(encoding="utf-8"))["runs"]
    (result,) = (result for result in sarif_run["results"] if result["ruleId"] == "lock-step")
    assert result["locations"][0]["logicalLocations"][0]["name"] == "backward"
    assert sarif_run["invocations"][0]["exitCode"] == 1
    assert "| lock-step | `backward` | " in Path("report.md").read_text(encoding="utf-8")
    annotations = Path("report.txt").read_text(encoding="utf-8")
    assert "::error title=bngrad%3A lock-step%3A backward,file=model.onnx::" in annotations

    assert run(["validate", "model.onnx", "--rewritten", "wrong.onnx", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "bngrad validate model.onnx --rewritten wrong.onnx --json"
    lock_step = report["checks"][0]
    assert lock_step["rows"][0]["subject"] == "backward"
    assert not lock_step["rows"][0]["passed"]


def test_inputs_from_a_file_are_taken(capsys):
    np.savez("given.npz", x=np.full((5, 3, 4, 4), 7, np.float32))
    assert run(["validate", "model.onnx", "--inputs", "given.npz", "--json", "--implementation", "function"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["inputs"]["x"] == report["inputs"]["dy"] == [5, 3, 4, 4]


def test_a_plain_tolerance_replaces_the_bounds(capsys):
    arguments = ["validate", "model.onnx", "--implementation", "function", "--json"]
    assert run([*arguments, "--rtol", "0", "--atol", "0"]) == 1
    capsys.readouterr()
    assert run([*arguments, "--rtol", "1e-3", "--atol", "1e-3"]) == 0


REPORTS = {
    "--junit": "report.xml",
    "--sarif": "report.sarif",
    "--summary": "report.md",
    "--annotations": "a.txt",
}
NO_NPZ = "is not an .npz file of plain arrays; create it with numpy.savez\n"
BAD = {
    "pickle": (["--inputs", "pickled.npz"], f"pickled.npz {NO_NPZ}"),
    "no-such-file": (["--inputs", "none.npz"], "none.npz does not exist"),
    "text": (["--inputs", "model.onnx"], f"model.onnx {NO_NPZ}"),
    "unknown-input": (
        ["--inputs", "unknown.npz"],
        "there is no input 'q'; the model's inputs are dy, x, s, b, m, v",
    ),
    "wrong-shape": (["--inputs", "shape.npz"], "input 's' has shape [4]; expected [3]"),
    "wrong-type": (["--inputs", "type.npz"], "input 's' has dtype float64; expected float32"),
    "unknown-dimension": (["--dim", "Q=3"], "no symbolic dimension 'Q' among the inputs; there are: N"),
    "no-extent": (["--dim", "N=0"], "dimension 'N' is 0; expected 1 or more"),
    "wrt": (["--wrt", "x"], "is a training graph; --wrt applies to forward models"),
    "rewritten-missing": (["--rewritten", "none.onnx"], "none.onnx does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, capsys):
    np.savez("pickled.npz", x=np.array([object()], dtype=object))
    np.savez("unknown.npz", q=np.zeros(3, np.float32))
    np.savez("shape.npz", s=np.zeros(4, np.float32))
    np.savez("type.npz", s=np.zeros(3))
    arguments, message = BAD[case]
    assert run(["validate", "model.onnx", *arguments, *chain(*REPORTS.items())]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bngrad: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert_reports_have_the_error(err.removeprefix("bngrad: error: ").rstrip("\n"))


def assert_reports_have_the_error(message):
    (case,) = ET.parse("report.xml").iter("testcase")  # noqa: S314
    assert case.find("error").get("message") == message
    assert next(ET.parse("report.xml").iter("testsuite")).get("errors") == "1"  # noqa: S314
    (sarif_run,) = json.loads(Path("report.sarif").read_text(encoding="utf-8"))["runs"]
    (result,) = sarif_run["results"]
    assert (result["ruleId"], result["message"]["text"]) == ("not-validated", message)
    assert not sarif_run["invocations"][0]["executionSuccessful"]
    assert ": ERROR\n" in Path("report.md").read_text(encoding="utf-8")
    assert "::error title=bngrad%3A not-validated,file=" in Path("a.txt").read_text(encoding="utf-8")


def test_a_model_that_cannot_be_read_is_an_error_in_every_report(capsys):
    Path("broken.onnx").write_bytes(b"no model")
    assert run(["validate", "broken.onnx", *chain(*REPORTS.items()), "--html", "report.html", "--json"]) == 2
    out, err = capsys.readouterr()
    message = err.removeprefix("bngrad: error: ").rstrip("\n")
    assert message.startswith("broken.onnx is not an ONNX model")
    assert_reports_have_the_error(message)
    assert "broken.onnx is not an ONNX model" in Path("report.html").read_text(encoding="utf-8")
    report = json.loads(out)
    assert (report["error"], report["passed"], report["checks"]) == (message, False, [])


@pytest.mark.parametrize("output", ["model.onnx", "weights.bin"])
def test_a_report_is_not_written_over_what_is_read(output):
    model = onnx.load("model.onnx")
    large = onnx.numpy_helper.from_array(np.ones(2000, np.float32), "large")
    model.graph.initializer.append(large)
    onnx.save(model, "model.onnx", save_as_external_data=True, location="weights.bin")
    before = Path(output).read_bytes()
    assert run(["validate", "model.onnx", "--junit", output]) == 2
    assert Path(output).read_bytes() == before


def test_a_rewritten_model_is_not_the_original(capsys):
    assert run(["rewrite", "model.onnx", "-o", "rewritten.onnx"]) == 0
    assert run(["validate", "rewritten.onnx"]) == 2
    assert "the model is rewritten already; pass the original" in capsys.readouterr().err


FORWARD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,3] x) => (float loss) <float[2] s = {1.0, 2.0}, float[2] b = {0, 1}, float[2] m = {0, 1},
                                    float[2] v = {1.0, 2.0}> {
    [bn] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    q = Mul(y, y)  p = Mul(q, y)  loss = ReduceSum<keepdims = 0>(p) }"""


@pytest.mark.parametrize(
    ("options", "batch_norms"),
    [
        ([], {"BatchNormInternal": 1, "BatchNormalizationGrad": 1}),
        (["--frozen", "b*"], {"BatchNormalizationGrad": 1}),
        (
            ["--training", "bn", "--running-variance", "unbiased"],
            {"BatchNormInternal": 1, "BatchNormalizationGrad": 1},
        ),
    ],
    ids=["as-it-is", "frozen", "unbiased"],
)
def test_a_forward_model_is_differentiated_as_asked_for(options, batch_norms, capsys):
    onnx.save(onnx.parser.parse_model(FORWARD), "forward.onnx")
    assert (
        run(["validate", "forward.onnx", "--against", "numeric", "--json", "--wrt", "s", "--wrt", "x", *options])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["batch_norms"] == batch_norms
    rows = [row for check in report["checks"] for row in check["rows"]]
    assert {row["tensor"] for row in rows if row["kind"] == "gradient"} == {"s_grad", "x_grad"}


@pytest.mark.parametrize(
    ("forward", "head"),
    [
        (FORWARD, "made.onnx: 1 BatchNormalizationTraining, 1 BatchNormalizationGrad\n"),
        (
            FORWARD.replace(
                "[bn] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)", "y = Mul(x, x)"
            ),
            "made.onnx: no batch norm in training mode and no batch-norm gradient\n",
        ),
    ],
    ids=["batch-norm", "none"],
)
def test_a_made_training_graph_is_described_by_its_batch_norms(forward, head, capsys):
    onnx.save(onnx.parser.parse_model(forward), "forward.onnx")
    assert run(["differentiate", "forward.onnx", "-o", "made.onnx", "--wrt", "x"]) == 0
    capsys.readouterr()
    assert run(["validate", "made.onnx", "--against", "numeric", "--rows", "0"]) == 0
    assert capsys.readouterr().out.startswith(head)


CLASSIFIER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,2,3] x) => (float[batch,4] y) <float[6,4] w = {
    1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> {
    f = Flatten (x)  y = MatMul (f, w) }"""


@pytest.mark.parametrize(
    ("text", "inputs", "note"),
    [
        (CLASSIFIER, {"x": [3, 2, 3], "labels": [3]}, None),
        (CLASSIFIER.replace("batch", "5"), {"x": [5, 2, 3], "labels": [5]}, None),
        (FORWARD, {"x": [3, 2, 3]}, "the model has the loss 'loss': no loss function was appended"),
        (
            FORWARD.replace("N,", "?,"),
            {"x": [3, 2, 3]},
            "the model has the loss 'loss': no loss function was appended",
        ),
    ],
    ids=["no loss", "no loss, fixed batch", "loss", "loss, batch without a name"],
)
def test_one_command_line_for_models_of_any_kind(text, inputs, note, capsys):
    onnx.save(onnx.parser.parse_model(text), "one.onnx")
    options = ["--against", "numeric", "--batch-size", "3", "--loss-fn", "cross_entropy", "--json"]
    assert run(["validate", "one.onnx", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: report["inputs"][name] for name in inputs} == inputs
    assert [text for text in report["notes"] if "loss function" in text] == [note] * (note is not None)


def test_a_named_prediction_is_appended_to(capsys):
    onnx.save(onnx.parser.parse_model(FORWARD), "one.onnx")
    options = ["--against", "numeric", "--loss-fn", "mse", "--prediction", "y", "--json"]
    assert run(["validate", "one.onnx", *options]) == 0
    assert "target" in json.loads(capsys.readouterr().out)["inputs"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no float scalar outputs; name the loss with --loss, or append one with --loss-fn"),
        (["--loss-fn", "mse", "--loss", "y"], "either --loss"),
        (["--prediction", "y"], "add --loss-fn"),
        (["--batch-size", "0"], "0 is not in the range"),
        (["--dim", "N=2"], "there are: batch (--batch-size is that of the first one, whatever its name)"),
    ],
)
def test_options_of_a_model_without_a_loss(options, message, capsys):
    onnx.save(onnx.parser.parse_model(CLASSIFIER), "one.onnx")
    assert run(["validate", "one.onnx", "--against", "numeric", *options]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_batch_norm_is_one_line(capsys):
    onnx.save(onnx.parser.parse_model(FORWARD), "forward.onnx")
    assert run(["validate", "forward.onnx", "--against", "numeric", "--frozen", "bm"]) == 2
    assert capsys.readouterr().err == ("bngrad: error: 'bm' is not a batch norm of this model, which has 'bn'\n")


def test_nothing_compared_is_a_finding(capsys):
    """The gradients of the training graph have names that say nothing."""
    text = TRAINING_GRAPH.replace("x_grad", "dx").replace("s_grad", "ds").replace("b_grad", "db")
    text = text.replace("=> (", "=> (float loss, ").replace(
        "[forward]", "loss = ReduceSum<keepdims = 0>(x)  [forward]"
    )
    onnx.save(onnx.parser.parse_model(text), "model.onnx")
    assert run(["validate", "model.onnx", "--against", "numeric", "--implementation", "function"]) == 3
    assert "central differences: nothing was compared" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_pytorch_is_needed_for_torch_alone(capsys):
    assert run(["validate", "model.onnx", "--against", "torch"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "bngrad: error: bngrad.torch needs PyTorch 2.9 or newer; install it: pip install 'bngrad[torch]'"
    ]


OUTPUTS = {
    "twice": (["--html", "report", "--junit", "./report"], "output report is named twice"),
    "onto-the-inputs": (["--inputs", "in.npz", "--html", "in.npz"], "output in.npz is the input"),
    "onto-the-rewrite": (["--rewritten", "rw.onnx", "--sarif", "rw.onnx"], "output rw.onnx is the input"),
    "onto-the-data-of-the-rewrite": (
        ["--rewritten", "external.onnx", "--summary", "external.data"],
        "output external.data is the external data",
    ),
}


@pytest.mark.parametrize(("options", "message"), OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_overwrites_nothing_that_is_read(options, message, folder, capsys):
    assert run(["rewrite", "model.onnx", "-o", "rw.onnx"]) == 0
    model = onnx.load("rw.onnx")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "s"))
    onnx.save(model, "external.onnx", save_as_external_data=True, location="external.data", size_threshold=0)
    np.savez("in.npz", x=np.zeros(3))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    assert run(["validate", "model.onnx", "--implementation", "function", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True), err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("form", "reader"),
    [("", "| true"), ("--json", ">&-"), ("", ">/dev/null 2>&-")],
    ids=["text-pipe", "json-closed", "text-stderr-closed"],
)
def test_a_failure_stays_one_where_nobody_reads_it(form, reader):
    wrong = f"{sys.executable} -m bngrad validate model.onnx --implementation function --rtol 0 --atol 0"
    wrong += f" --against reference {form} {reader}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {wrong}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupt_says_where_the_work_was(capsys, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    onnx.save(onnx.parser.parse_model(FORWARD), "forward.onnx")
    monkeypatch.setattr("bngrad.validation.checks.central_differences", interrupted)
    before = sorted(Path().iterdir())
    arguments = ["--against", "numeric", "--implementation", "function", "--html", "report.html"]
    assert run(["validate", "forward.onnx", *arguments]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    where = r"bngrad: interrupted: at 'central differences', after 0:\d\d; files are as they were, or complete"
    assert re.fullmatch(where, err.strip())
    assert sorted(Path().iterdir()) == before


def test_a_suite(capsys):
    files = [
        "--html",
        "r.html",
        "--junit",
        "r.xml",
        "--sarif",
        "r.sarif",
        "--summary",
        "r.md",
        "--write-cases",
        "c.zip",
    ]
    assert run(["validate", "--suite", "hard-batch-norms", "CPUExecutionProvider", "--json", *files]) == 1
    report = json.loads(capsys.readouterr().out)
    (check,) = report["checks"]
    assert {row["subject"] for row in check["rows"] if not row["passed"]} == {"values_1e20"}
    assert "hard-batch-norms" in Path("r.sarif").read_text()
    assert "The squares of X are infinite in float." in Path("r.html").read_text()
    assert {path.name for path in Path().iterdir()} == {"model.onnx", *files[1::2]}
    suite = ["validate", "--suite", "hard-batch-norms", "CPUExecutionProvider"]
    assert run([*suite, "--implementation", "native"]) == 0
    assert "passed: float64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--suite", "hard-batch-norms", "CPUExecutionProvider", "--wrt", "x"],
            "--wrt is for models, and --suite",
        ),
        (
            ["--suite", "hard-batch-norms", "CPUExecutionProvider", "--seed", "0"],
            "--seed is for models, and --suite",
        ),
        (["--suite", "hard", "CPUExecutionProvider"], "'hard' is not 'hard-batch-norms'"),
        (["--suite", "hard-batch-norms", "CPU"], "CPU is no execution provider of ONNX Runtime, and no file"),
        (["--suite", "hard-batch-norms", "model.onnx", "--write-cases", "model.onnx"], "is the input"),
        (["model.onnx", "--write-cases", "c.zip"], "--write-cases is for --suite, which is not given"),
    ],
)
def test_options_of_suites(arguments, message, capsys, folder):
    assert run(["validate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]
