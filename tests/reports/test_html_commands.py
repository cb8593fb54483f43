"""``--html`` of commands that read a model: the page is written beside the usual output, or nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from bngrad.cli import run
from pages import Page

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,4,4] x) => (float loss)
<float[3] s = {1, 2, 3}, float[3] b = {0, 0, 0}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}> {
    [bn] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    q = Mul(y, y)
    loss = ReduceMean<keepdims = 0>(q)
}"""
COMMANDS = {
    "validate": ["validate", "model.onnx", "--against", "numeric", "--implementation", "function"],
    "inspect": ["inspect", "model.onnx"],
    "rewrite": ["rewrite", "model.onnx", "-o", "out.onnx"],
    "bench": ["bench", "model.onnx", "--repeats", "1"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    Path("there").mkdir()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_is_beside_the_output(command, capsys):
    assert run([*COMMANDS[command], "--html", "report.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    page = Page(Path("report.html"))
    page.check_self_contained()
    assert "model.onnx" in page.text
    if command == "validate":
        rows = sum(len(check["rows"]) for check in printed["checks"])
        assert len(page.table["result"]) == rows > 0
        assert page.text.count(printed["identity"]["files"][0]["sha256"]) == 1
        assert all(check["statistics"] for check in printed["checks"] if check["rows"])
        positions = [row["position"] for check in printed["checks"] for row in check["rows"]]
        assert None not in positions
        assert len(set(positions)) > 1
    elif command == "inspect":
        assert page.table["batch norm"] == [batch_norm["name"] for batch_norm in printed["batch_norms"]] == ["bn"]
    elif command == "rewrite":
        assert page.table["op"][0] == "BatchNormalization"
        assert page.drawings[0].startswith("Before")
        Path("out.onnx").unlink()
    else:
        assert page.table["shape"] == ["4x3x4x4"]
    assert sorted(path.name for path in Path().iterdir()) == ["model.onnx", "report.html", "there"]


def test_a_failed_validation_has_a_page(capsys):
    wrong = onnx.load("model.onnx")
    assert run(["differentiate", "model.onnx", "-o", "right.onnx"]) == 0
    wrong = onnx.load("right.onnx")
    name = next(value.name for value in wrong.graph.output if value.name.endswith("s_grad"))
    node = next(node for node in wrong.graph.node if name in node.output)
    node.output[list(node.output).index(name)] = "right"
    wrong.graph.node.append(onnx.helper.make_node("Neg", ["right"], [name], "wrong"))
    onnx.save(wrong, "wrong.onnx")
    assert run([*COMMANDS["validate"], "--rewritten", "wrong.onnx", "--html", "report.html"]) == 1
    capsys.readouterr()
    page = Page(Path("report.html"))
    assert page.table["node or output"][0] == name
    assert page.table["result"][0] == "failed"
    assert "FAILED" in page.text


REFUSED = {
    "no-folder": ("no/report.html", "output folder no does not exist; create it first"),
    "folder": ("there", "output there is a directory; expected a file"),
    "the-model": ("model.onnx", "output model.onnx is the input; choose another file"),
    "device": ("/dev/null", "output /dev/null is a device or a pipe; expected a regular file"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_work(command, case, capsys):
    path, message = REFUSED[case]
    before = Path("model.onnx").read_bytes()
    assert run([*COMMANDS[command], "--html", path]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"bngrad: error: {message}\n")
    assert Path("model.onnx").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["model.onnx", "there"]


@pytest.mark.parametrize("command", COMMANDS)
def test_external_data_is_not_overwritten(command, capsys):
    model = onnx.load("model.onnx")
    for weight in model.graph.initializer:  # as bytes, which external data can be
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), weight.name))
    onnx.save(model, "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    before = Path("weights").read_bytes()
    assert run([*COMMANDS[command], "--html", "weights"]) == 2
    assert "external data of the input" in capsys.readouterr().err
    assert Path("weights").read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_is_not_utf8(command, capsys):
    """Surrogates, as Python reads such a file name, cannot be written as UTF-8."""
    name = "model\udcff.onnx"
    Path("model.onnx").rename(name)
    arguments = [name if word == "model.onnx" else word for word in COMMANDS[command]]
    assert run([*arguments, "--html", "report.html", "--json"]) == 0
    capsys.readouterr()
    assert r"model\udcff.onnx" in Page(Path("report.html")).text
