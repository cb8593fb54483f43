"""``bngrad inspect`` of several models, and what fails it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest

from fake_cuda import fake_cuda  # noqa: F401

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
GOOD = HEADER + "g (float[2] x) => (float[2] y) { y = Relu(x) }"
VALUES = "<float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}>"
HAZARD = f"""{HEADER}g (float[2,3] x) => (float[2,3] y) {VALUES} {{
    [bn] y = BatchNormalization <training_mode = 1> (x, s, b, m, v) }}"""
FROZEN = HAZARD.replace("training_mode = 1", "epsilon = 0.001")
MESSAGE = "bn: a running output is left out: stock ONNX Runtime crashes"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"good": GOOD, "hazard": HAZARD, "frozen": FROZEN}.items():
        onnx.save(onnx.parser.parse_model(text), f"{name}.onnx")
    Path("empty.onnx").write_bytes(b"")
    Path("text.onnx").write_text("not a model", encoding="utf-8")


@pytest.fixture
def command(command):
    def call(*arguments):
        code, out, err = command("inspect", *arguments)
        return code, out, err.splitlines()

    return call


FAIL_ON = {
    "good": ("good.onnx", [0, 0, 0]),
    "hazard": ("hazard.onnx", [0, 1, 1]),
    "warning": ("frozen.onnx", [0, 0, 1]),
}


@pytest.mark.parametrize("case", FAIL_ON)
def test_the_exit_code(case, command):
    model, codes = FAIL_ON[case]
    assert [command(model, "--fail-on", level)[0] for level in ("none", "hazard", "warning")] == codes
    assert command(model)[0] == 0


def test_a_failure_is_named(command):
    code, out, err = command("hazard.onnx", "--fail-on", "hazard")
    assert (code, err) == (1, [f"bngrad: failed: hazard.onnx: {MESSAGE}"])
    assert f"hazard: {MESSAGE}" in out
    code, _, (warning, failure) = command("frozen.onnx", "--fail-on", "warning")
    assert code == 1
    assert warning.startswith("bngrad: warning: the model has no batch norm in training mode")
    assert failure == warning.replace("bngrad: warning: ", "bngrad: failed: frozen.onnx: ")


def test_several_models_are_told_apart(command):
    code, out, err = command("good.onnx", "hazard.onnx", "frozen.onnx", "good.onnx", "--fail-on", "hazard")
    assert code == 1
    heads = [line for line in out.splitlines() if "batch norms: " in line]
    assert [line.split(": ")[0] for line in heads] == ["good.onnx", "hazard.onnx", "frozen.onnx"]
    assert [line.partition(".onnx: ")[0] for line in err] == [
        "bngrad: warning: frozen",
        "bngrad: failed: hazard",
    ]


def test_the_document_of_one_model_is_the_model_s(command):
    document = json.loads(command("hazard.onnx", "--json")[1])
    assert document["batch_norms"][0]["hazards"] == [MESSAGE.removeprefix("bn: ")]
    assert "model" not in document


def test_the_document_of_several_models_is_a_list(command):
    code, out, err = command("hazard.onnx", "empty.onnx", "good.onnx", "--json")
    hazard, empty, good = json.loads(out)
    assert code == 2
    assert err == ["bngrad: error: empty.onnx is empty; expected an ONNX model"]
    assert hazard == {"model": "hazard.onnx"} | json.loads(command("hazard.onnx", "--json")[1])
    assert good == {"model": "good.onnx"} | json.loads(command("good.onnx", "--json")[1])
    assert empty == {"model": "empty.onnx", "error": "empty.onnx is empty; expected an ONNX model"}


@pytest.mark.parametrize("broken", ["empty.onnx", "text.onnx", "none.onnx", "."])
def test_a_model_that_cannot_be_read_does_not_hide_the_others(broken, command):
    code, out, err = command(broken, "hazard.onnx", "--fail-on", "hazard", "--sarif", "out.sarif")
    assert code == 2
    assert "hazard.onnx: batch norms: 1" in out
    assert err[0].startswith("bngrad: error: ")
    assert err[1:] == [f"bngrad: failed: hazard.onnx: {MESSAGE}"]
    (sarif_run,) = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"]
    assert sarif_run["invocations"][0]["executionSuccessful"] is False
    assert [result["ruleId"] for result in sarif_run["results"]] == ["unreadable-model", "running-output-missing"]


def test_the_files_for_ci(command):
    code, *_ = command("hazard.onnx", "frozen.onnx", "--sarif", "out.sarif", "--annotations", "out.txt")
    assert code == 0
    (sarif_run,) = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"]
    assert [result["ruleId"] for result in sarif_run["results"]] == [
        "running-output-missing",
        "frozen-batch-norms",
    ]
    assert Path("out.txt").read_text(encoding="utf-8").splitlines()[0] == (
        f"::warning title=bngrad%3A running-output-missing%3A bn,file=hazard.onnx::{MESSAGE}"
    )


BAD = {
    "sarif-is-a-model": (
        ["good.onnx", "hazard.onnx", "--sarif", "hazard.onnx"],
        "output hazard.onnx is the input",
    ),
    "annotations-in-no-folder": (["good.onnx", "--annotations", "no/a.txt"], "output folder no does not exist"),
    "one-broken-model": (["empty.onnx", "--sarif", "out.sarif"], "empty.onnx is empty; expected an ONNX model"),
    "unknown-level": (["good.onnx", "--fail-on", "note"], "'note' is not one of 'none', 'hazard', 'warning'"),
    "no-model": ([], "Missing argument 'MODEL...'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_writes_nothing(case, command, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    arguments, message = BAD[case]
    code, out, (line,) = command(*arguments)
    assert (code, out) == (2, "")
    assert line.startswith("bngrad: error: ")
    assert message in line
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_debug_shows_the_traceback_of_each_error(command):
    code, _, err = command("empty.onnx", "good.onnx", "--debug")
    assert code == 2
    assert err[0] == "Traceback (most recent call last):"
    assert err[-1] == "bngrad: error: empty.onnx is empty; expected an ONNX model"


@pytest.mark.parametrize("option", ["--html", "--sarif", "--annotations"])
def test_an_output_never_overwrites_external_data(option, command):
    model = onnx.load("frozen.onnx")
    for tensor in model.graph.initializer:  # raw, as external data has to be
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, "external.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    before = Path("weights").read_bytes()
    models = ["external.onnx"] if option == "--html" else ["good.onnx", "external.onnx"]
    code, _, err = command(*models, option, "weights")
    assert (code, err[-1]) == (
        2,
        "bngrad: error: output weights is the external data of the input; choose another file",
    )
    assert Path("weights").read_bytes() == before


def test_two_outputs_are_not_one_file(command):
    code, out, err = command("good.onnx", "--sarif", "report", "--annotations", str(Path("report").absolute()))
    assert (code, out) == (2, "")
    assert "report is named twice; choose a file for each output" in err[-1]
    assert not Path("report").exists()


def test_the_nodes_that_a_gpu_leaves_to_the_cpu(command, fake_cuda, monkeypatch):  # noqa: F811
    def part(provider, *nodes):
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: [SimpleNamespace(**node) for node in nodes])

    relu = {"name": "relu", "domain": "", "op_type": "Relu"}
    copied = {"name": "", "domain": "com.microsoft", "op_type": "FusedMatMul"}
    parts = [part("CUDAExecutionProvider", relu), part("CPUExecutionProvider", relu, copied)]
    open_session = fake_cuda.session

    def session(model, options, *arguments, **keywords):
        assert options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"
        result = open_session(model, options, *arguments, **keywords)
        assert [node.op_type for part in result.get_provider_graph_assignment_info() for node in part.get_nodes()]
        result.get_provider_graph_assignment_info = lambda: parts
        return result

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    code, out, err = command("good.onnx", "--device", "cuda")
    assert (code, err) == (0, [])
    assert "nodes left to the CPU: 2" in out
    assert re.search(r"relu\W+Relu", out)
    assert re.search(r"-\W+com.microsoft.FusedMatMul", out)
    assert json.loads(command("good.onnx", "--device", "cuda", "--json")[1])["on_cpu"] == [
        {"name": "relu", "op": "Relu"},
        {"name": "", "op": "com.microsoft.FusedMatMul"},
    ]


def test_a_session_records_where_its_nodes_run(command, fake_cuda):  # noqa: F811
    """The fake's session runs all nodes on the CPU."""
    assert fake_cuda.loads
    document = json.loads(command("good.onnx", "--device", "cuda:0", "--json")[1])
    assert [node["op"] for node in document["on_cpu"]] == ["Relu"]


@pytest.mark.parametrize(
    ("device", "version", "message"),
    [
        ("cpu", None, "device is 'cpu', which runs all nodes; expected another one, such as 'cuda'"),
        (
            "tpu",
            None,
            "device 'tpu' is not supported; expected 'cpu', 'cuda' or 'webgpu', or with an index 'cuda:1'",
        ),
        ("cuda", "1.23.2", "onnxruntime 1.23.2 does not record where nodes run; expected 1.24 or newer"),
    ],
)
def test_a_device_that_is_refused(command, fake_cuda, monkeypatch, device, version, message):  # noqa: F811
    assert fake_cuda.loads
    if version is not None:
        monkeypatch.setattr(onnxruntime, "__version__", version)
    assert command("good.onnx", "--device", device) == (2, "", [f"bngrad: error: {message}"])


def test_a_build_of_onnxruntime_for_the_cpu(command):
    code, out, (error,) = command("good.onnx", "--device", "cuda")
    assert (code, out) == (2, "")
    assert "needs a build of ONNX Runtime for CUDA" in error
