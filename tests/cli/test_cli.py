"""The command line: exit code, stdout and stderr of every command, and of everything that can be wrong."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest

import bngrad

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
PARAMETERS = "float[3] s, float[3] b, float[3] m, float[3] v"
TRAINING_GRAPH = f"""g (float[N,3,4,4] dy, float[N,3,4,4] x, {PARAMETERS})
    => (float[N,3,4,4] dx, float[3] ds, float[3] db) {{
    [forward] y, m2, v2, sm, si = com.microsoft.BatchNormInternal<epsilon = 0.001, momentum = 0.9>(x, s, b, m, v)
    [backward] dx, ds, db = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(dy, x, s, sm, si)
}}"""
WITH_RELU_GRAD = TRAINING_GRAPH.replace("[backward]", "[relu] r = com.microsoft.ReluGrad(dy, y)\n    [backward]")
FROZEN = (
    f"""g (float[N,3,4,4] x, {PARAMETERS}) => (float[N,3,4,4] y) {{ y = BatchNormalization(x, s, b, m, v) }}"""
)
NO_BATCH_NORM = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
HAZARD = f"""g (float[N,3,4,4] x, {PARAMETERS}) => (float[N,3,4,4] y) {{
    [bn] y, , = BatchNormalization<training_mode = 1>(x, s, b, m, v) }}"""
RANK_9 = TRAINING_GRAPH.replace("[N,3,4,4]", "[N,3,1,1,1,1,1,1,4]")


def parse(text):
    return onnx.parser.parse_model(HEADER + text)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Models of every kind in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "model.onnx": TRAINING_GRAPH,
        "relu.onnx": WITH_RELU_GRAD,
        "quant.onnx": WITH_RELU_GRAD.replace("ReluGrad", "FakeQuantGrad"),
        "frozen.onnx": FROZEN,
        "none.onnx": NO_BATCH_NORM,
        "half.onnx": TRAINING_GRAPH.replace("float[", "float16["),
        "integers.onnx": TRAINING_GRAPH.replace("float[", "int32["),
        "rank9.onnx": RANK_9,
        "hazard.onnx": HAZARD,
    }.items():
        Path(name).write_bytes(parse(text).SerializeToString())
    content = Path("model.onnx").read_bytes()
    Path("empty.onnx").write_bytes(b"")
    Path("truncated.onnx").write_bytes(content[:200])
    Path("text.onnx").write_text("hello world, this is not a model\n")
    Path("folder.onnx").mkdir()
    return tmp_path


def listing(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "bngrad", *map(str, arguments)],
        capture_output=not options,
        text=True,
        timeout=600,
        check=False,
        **options,
    )


# ---- help ----


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(option, command):
    for name in ("", " inspect", " rewrite", " validate", " bench", " oracle", " oracle install", " library-path"):
        code, out, err = command(*name.split(), option)
        assert (code, err) == (0, "")
        assert out.startswith(f"Usage: bngrad{name} ")


def test_version(command):
    assert command("--version") == (0, f"bngrad {bngrad.__version__}\n", "")


# ---- inspect ----


def test_inspect(command):
    code, out, err = command("inspect", "model.onnx")
    assert (code, err) == (0, "")
    first, *table, last, inputs, outputs = out.splitlines()
    assert first == "batch norms: 1 (1 training); ai.onnx 17, IR version 8"
    (row,) = (line for line in table if "forward" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "forward",
        "com.microsoft.BatchNormInternal",
        "training",
        "0,2,3",
        "float",
        "Nx3x4x4",
        "com.microsoft.BatchNormalizationGrad",
    ]
    assert last == (
        "not in stock ONNX Runtime: com.microsoft.BatchNormInternal (1), com.microsoft.BatchNormalizationGrad (1)"
    )
    assert inputs.startswith("inputs: dy float Nx3x4x4, x float Nx3x4x4, s float 3, ")
    assert outputs.startswith("outputs: ")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "none.onnx",
            ["batch norms: 0; ai.onnx 17, IR version 8", "all ops are in stock ONNX Runtime or in bngrad"],
        ),
        (
            "hazard.onnx",
            ["training", "hazard: bn: a running output is left out: stock ONNX Runtime crashes", "all ops are in"],
        ),
        ("half.onnx", ["float16", "not in stock ONNX Runtime"]),
        ("relu.onnx", ["com.microsoft.ReluGrad (1)"]),
    ],
    ids=["none", "hazard", "float16", "relu-grad"],
)
def test_inspect_says(model, expected, command):
    code, out, err = command("inspect", model)
    assert (code, err) == (0, "")
    for text in expected:
        assert text in out


def test_inspect_warns_of_a_model_whose_batch_norms_are_frozen(command):
    code, out, err = command("inspect", "frozen.onnx")
    assert code == 0
    assert "frozen" in out
    assert err.startswith("bngrad: warning: the model has no batch norm in training mode, but 1 batch norm (")
    assert err.count("\n") == 1
    (warning,) = json.loads(command("inspect", "frozen.onnx", "--json")[1])["warnings"]
    assert err == f"bngrad: warning: {warning}\n"


def test_inspect_cuts_no_name_and_takes_no_markup_from_it(command):
    model = parse(TRAINING_GRAPH)
    name = "very.long.name." * 20 + "[bold]layer[0]/bn[/bold]"
    model.graph.node[0].name = name
    onnx.save(model, "long.onnx")
    code, out, err = command("inspect", "long.onnx")
    assert (code, err) == (0, "")
    assert any(name in line for line in out.splitlines())


def test_inspect_json(command):
    code, out, err = command("inspect", "model.onnx", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert [value["name"] for value in document.pop("inputs")] == ["dy", "x", "s", "b", "m", "v"]
    assert document.pop("outputs")[0] == {"name": "dx", "dtype": "float", "shape": "Nx3x4x4"}
    assert document == {
        "opset": 17,
        "ir_version": 8,
        "batch_norms": [
            {
                "name": "forward",
                "path": "forward",
                "op": "com.microsoft.BatchNormInternal",
                "mode": "training",
                "axes": [0, 2, 3],
                "dtype": "float",
                "shape": "Nx3x4x4",
                "gradient": "com.microsoft.BatchNormalizationGrad",
                "hazards": [],
                "position": 0,
            }
        ],
        "not_in_stock": {"com.microsoft.BatchNormInternal": 1, "com.microsoft.BatchNormalizationGrad": 1},
        "in_primitives": {},
        "on_cpu": None,
        "nodes": 2,
        "warnings": [],
        "notes": [],
        "training": None,
    }


def test_inspect_of_a_rewritten_model(command):
    assert command("rewrite", "model.onnx", "-o", "out.onnx")[0] == 0
    inspection = json.loads(command("inspect", "out.onnx", "--json")[1])
    assert inspection["not_in_stock"] == {}
    (batch_norm,) = inspection["batch_norms"]
    assert (batch_norm["op"], batch_norm["axes"]) == ("bngrad.BatchNormalizationTraining", [0, 2, 3])
    assert batch_norm["gradient"] == "bngrad.BatchNormalizationGrad"


# ---- rewrite ----


def test_rewrite(command):
    before = Path("model.onnx").read_bytes()
    assert command("rewrite", "model.onnx", "-o", "out.onnx") == (
        0,
        (
            "out.onnx: 1 BatchNormalizationTraining, 1 BatchNormalizationGrad; "
            "2 outputs to feed back (--json lists them)\n"
        ),
        "",
    )
    assert Path("model.onnx").read_bytes() == before
    written = onnx.load("out.onnx")
    assert [node.domain for node in written.graph.node] == ["", "bngrad", "bngrad"]
    assert len(written.functions) == 2
    feeds = {"dy": (2, 3, 4, 4), "x": (2, 3, 4, 4), "s": 3, "b": 3, "m": 3, "v": 3}
    session = bngrad.session("out.onnx", implementation="function")
    assert len(session.run(None, {name: np.ones(shape, np.float32) for name, shape in feeds.items()})) == 5


def test_rewrite_json(command):
    code, out, err = command("rewrite", "model.onnx", "-o", "out.onnx", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "model": "model.onnx",
        "output": "out.onnx",
        "target": "stock",
        "rewritten": {"BatchNormalizationTraining": 1, "BatchNormalizationGrad": 1},
        "lowered": {},
        "state": {"m": "m2", "v": "v2"},
        "notes": [],
        "recognized": {},
        "candidates": [],
    }


def test_rewrite_of_other_training_ops(command):
    line = (
        "out.onnx: 1 BatchNormalizationTraining, 1 BatchNormalizationGrad; lowered to standard ONNX: 1 ReluGrad; "
        "2 outputs to feed back (--json lists them)\n"
    )
    assert command("rewrite", "relu.onnx", "-o", "out.onnx") == (0, line, "")
    assert {node.domain for node in onnx.load("out.onnx").graph.node} == {"", "bngrad"}


def test_rewrite_of_the_op_gradient(command):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
        g (float x) => (float dx) { y = Exp (x)
        dx = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x) }""")
    onnx.save(model, "gradient.onnx")
    line = "out.onnx: lowered to standard ONNX: 1 Gradient\n"
    assert command("rewrite", "gradient.onnx", "-o", "out.onnx") == (0, line, "")


def test_rewrite_without_functions(command):
    assert command("rewrite", "model.onnx", "-o", "out.onnx", "--no-functions")[0] == 0
    assert not onnx.load("out.onnx").functions


def test_rewrite_for_a_training_build(command):
    assert command("rewrite", "relu.onnx", "-o", "out.onnx", "--target", "training")[0] == 0
    assert "ReluGrad" in [node.op_type for node in onnx.load("out.onnx").graph.node]


def test_rewrite_over_an_old_output(command):
    Path("out.onnx").write_text("old")
    assert command("rewrite", "model.onnx", "--output", "out.onnx")[0] == 0
    assert onnx.load("out.onnx").graph.node


# ---- errors: one line on stderr, exit code 2, nothing written ----

BAD_FILES = {
    "missing": ("no.onnx", "no.onnx does not exist; expected an ONNX model file"),
    "directory": ("folder.onnx", "folder.onnx is a directory; expected an ONNX model file"),
    "empty": ("empty.onnx", "empty.onnx is empty; expected an ONNX model"),
    "truncated": (
        "truncated.onnx",
        "truncated.onnx is not an ONNX model, or is truncated (200 bytes): not valid protobuf",
    ),
    "text": ("text.onnx", "text.onnx is not an ONNX model, or is truncated (33 bytes): not valid protobuf"),
}
NOTHING = (
    "the model has no batch norm in training mode, no batch-norm gradient and no other training op; expected a "
    "training graph (make one with bngrad differentiate)"
)
OUT = ("-o", "out.onnx")
ERRORS = {
    **{f"inspect-{case}": (["inspect", file], message) for case, (file, message) in BAD_FILES.items()},
    **{f"rewrite-{case}": (["rewrite", file, *OUT], message) for case, (file, message) in BAD_FILES.items()},
    **{f"validate-{case}": (["validate", file], message) for case, (file, message) in BAD_FILES.items()},
    "no-batch-norm": (["rewrite", "none.onnx", *OUT], NOTHING),
    "frozen": (["rewrite", "frozen.onnx", *OUT], NOTHING),
    "integers": (
        ["rewrite", "integers.onnx", *OUT],
        (
            "com.microsoft.BatchNormInternal node 'forward' (outputs y, m2, v2, sm, si) cannot be "
            "rewritten: its input "
            "'x' is int32; expected one of float, double, float16, bfloat16 (and 1 more)"
        ),
    ),
    "rank-9": (
        ["rewrite", "rank9.onnx", *OUT],
        (
            "com.microsoft.BatchNormInternal node 'forward' (outputs y, m2, v2, sm, si) cannot be "
            "rewritten: its X has "
            "rank 9; expected 1 to 8 ([N, C, ...]) (and 1 more)"
        ),
    ),
    "not-for-stock": (
        ["rewrite", "quant.onnx", *OUT],
        (
            "com.microsoft.FakeQuantGrad node 'relu' (outputs r) cannot run on stock ONNX Runtime; keep a "
            "training build and "
            "pass --target training"
        ),
    ),
    "output-is-the-input": (
        ["rewrite", "model.onnx", "-o", "folder.onnx/../model.onnx"],
        "output folder.onnx/../model.onnx is the input; choose another file",
    ),
    "output-is-a-directory": (
        ["rewrite", "model.onnx", "-o", "folder.onnx"],
        "output folder.onnx is a directory; expected a file",
    ),
    "output-folder-missing": (
        ["rewrite", "model.onnx", "-o", "no/out.onnx"],
        "output folder no does not exist; create it first",
    ),
    "no-output": (["rewrite", "model.onnx"], "Missing option '-o' / '--output' (see bngrad rewrite --help)"),
    "no-model": (["inspect"], "Missing argument 'MODEL...' (see bngrad inspect --help)"),
    "two-models": (
        ["rewrite", "model.onnx", "relu.onnx", *OUT],
        "Got unexpected extra argument (relu.onnx) (see bngrad rewrite --help)",
    ),
    "unknown-target": (
        ["rewrite", "model.onnx", *OUT, "--target", "cuda"],
        "Invalid value for '--target': 'cuda' is not one of 'stock', 'training' (see bngrad rewrite --help)",
    ),
    "unknown-implementation": (
        ["validate", "model.onnx", "--implementation", "cuda"],
        (
            "Invalid value for '--implementation': 'cuda' is not one of 'native', 'python', 'function', 'all' "
            "(see bngrad validate --help)"
        ),
    ),
    "unknown-against": (
        ["validate", "model.onnx", "--against", "jax"],
        (
            "Invalid value for '--against': 'jax' is not one of 'ort', 'reference', 'numeric', 'torch' "
            "(see bngrad validate --help)"
        ),
    ),
    "unknown-option": (["inspect", "model.onnx", "--frob"], "No such option '--frob' (see bngrad inspect --help)"),
    "option-of-another-command": (
        ["train", "step.onnx", "--data", "d.npz", "--clip-norm", "5"],
        "No such option '--clip-norm': it is an option of bngrad step (see bngrad train --help)",
    ),
    "option-of-two-others": (
        ["train", "step.onnx", "--momentum=0.9"],
        (
            "No such option '--momentum': it is an option of bngrad step and bngrad batchnorm "
            "(see bngrad train --help)"
        ),
    ),
    "unknown-command": (["frob"], "No such command 'frob' (see bngrad --help)"),
    "unknown-subcommand": (["oracle", "frob"], "No such command 'frob' (see bngrad oracle --help)"),
    **{
        f"dim-{value}": (
            ["validate", "model.onnx", "--dim", value],
            (
                f"Invalid value for '--dim': {value!r} is not of the form NAME=N with an integer N "
                "(see bngrad validate --help)"
            ),
        )
        for value in ("N", "N=", "=3", "N=x", "N=-1", "N=1.5", "")
    },
    "junit-is-the-model": (
        ["validate", "model.onnx", "--junit", "model.onnx"],
        "output model.onnx is the input; choose another file",
    ),
    "html-folder-missing": (
        ["validate", "model.onnx", "--html", "no/report.html"],
        "output folder no does not exist; create it first",
    ),
}


@pytest.mark.skipif(not hasattr(click.exceptions, "NoSuchCommand"), reason="this click suggests options alone")
@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [(["valdate"], "validate"), (["oracle", "instal"], "install"), (["inspect", "model.onnx", "--jsn"], "--json")],
    ids=["command", "subcommand", "option"],
)
def test_a_misspelled_name_gets_a_suggestion(arguments, suggestion, command):
    code, out, err = command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"Did you mean '{suggestion}'? (see bngrad " in err


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_and_exit_code_2(case, folder, command):
    arguments, message = ERRORS[case]
    before = listing(folder)
    assert command(*arguments) == (2, "", f"bngrad: error: {message}\n")
    assert listing(folder) == before


def test_an_error_with_json_prints_no_document(command):
    assert command("rewrite", "no.onnx", *OUT, "--json")[:2] == (2, "")
    assert command("inspect", "no.onnx", "--json")[:2] == (2, "")


def test_the_output_folder_cannot_be_written(folder, command, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **o: mode != os.W_OK and access(path, mode, **o))
    before = listing(folder)
    code, out, err = command("rewrite", "model.onnx", "-o", folder / "out.onnx")
    assert (code, out, err) == (2, "", f"bngrad: error: output folder {folder} is not writable\n")
    assert listing(folder) == before


def test_a_full_disk(folder, command, monkeypatch):
    def no_space(*_arguments):
        raise OSError(28, "No space left on device")

    Path("out.onnx").write_bytes(b"old")
    before = listing(folder)
    monkeypatch.setattr(Path, "write_bytes", no_space)
    assert command("rewrite", "model.onnx", *OUT) == (
        2,
        "",
        "bngrad: error: out.onnx cannot be written: No space left on device\n",
    )
    assert listing(folder) == before


def test_weights_in_a_file_that_is_missing(command):
    model = parse(TRAINING_GRAPH)
    tensor = onnx.numpy_helper.from_array(np.ones(1000, np.float32), "weight")
    model.graph.initializer.append(tensor)
    onnx.save(model, "outside.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    Path("weights.bin").unlink()
    code, out, err = command("rewrite", "outside.onnx", *OUT)
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: the model's external data cannot be read: ")
    assert "weights.bin" in err
    assert err.count("\n") == 1
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_a_traceback_and_the_same_line_and_exit_code(where, command):
    arguments = ["rewrite", "no.onnx", *OUT]
    arguments.insert(1 if where == "before" else 4, "--debug")
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    first, *_, last = err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "bngrad: error: no.onnx does not exist; expected an ONNX model file"


def test_a_bug_is_called_one(command, monkeypatch):
    def broken(*_arguments):
        raise ZeroDivisionError("over\nlines")

    monkeypatch.setattr("bngrad.inspection.inspect.inspect", broken)
    assert command("inspect", "model.onnx") == (
        2,
        "",
        "bngrad: error: internal error: ZeroDivisionError: over lines (rerun with --debug for a traceback)\n",
    )


def test_a_want_of_memory_is_called_one_whatever_was_made_of_it(command, monkeypatch):
    """Each error is cause and context of the next, as after `raise from`, and the last of the first: a circle."""
    errors = [MemoryError(), *(RuntimeError(f"number {i}") for i in range(60))]
    for before, error in itertools.pairwise(errors):
        error.__cause__ = error.__context__ = before
    errors[0].__context__ = errors[-1]

    def broken(*_arguments):
        raise errors[-1]

    monkeypatch.setattr("bngrad.inspection.inspect.inspect", broken)
    code, out, err = command("inspect", "model.onnx")
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: out of memory: ")


def test_an_interrupt(command, monkeypatch):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("bngrad.inspection.inspect.inspect", interrupted)
    code, out, err = command("inspect", "model.onnx")
    assert (code, out, err.strip()) == (130, "", "")


# ---- oracle and library-path ----


@pytest.fixture
def no_oracle(tmp_path, monkeypatch):
    path = tmp_path / "oracle"
    monkeypatch.setenv("BNGRAD_ORACLE_DIR", str(path))
    return path


def test_oracle_status_missing(no_oracle, command):
    code, out, err = command("oracle", "status")
    assert (code, err) == (1, "")
    assert out.startswith(f"missing: {no_oracle}")
    code, out, err = command("oracle", "status", "--json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert (document["state"], document["problem"]) == ("missing", "not installed")
    assert document["path"].startswith(str(no_oracle))


def test_the_key_of_the_oracle_has_its_name_and_the_release_of_python(no_oracle, command):
    code, out, err = command("oracle", "key")
    assert (code, err) == (0, "")
    name = Path(json.loads(command("oracle", "status", "--json")[1])["path"]).name
    assert re.fullmatch(rf"{re.escape(name)}-python3\.1[12]\.\d+-[0-9a-f]{{6}}\n", out)
    assert not no_oracle.exists()


@pytest.mark.usefixtures("no_oracle")
def test_oracle_status_broken(command):
    path = Path(json.loads(command("oracle", "status", "--json")[1])["path"])
    path.mkdir(parents=True)
    code, out, err = command("oracle", "status")
    assert (code, err) == (1, "")
    assert out.startswith(f"broken: {path} (")


@pytest.mark.usefixtures("no_oracle")
def test_oracle_remove(command):
    assert command("oracle", "remove") == (0, "nothing to remove\n", "")
    path = Path(json.loads(command("oracle", "status", "--json")[1])["path"])
    path.mkdir(parents=True)
    assert command("oracle", "remove") == (0, f"removed: {path}\n", "")
    assert not path.exists()


def test_oracle_status_ready(tmp_path, command, monkeypatch):
    from bngrad.oracle.environment import Environment, Status

    status = Status(tmp_path, Environment(tmp_path, tmp_path / "python", "3.11", "1.19.2"), None)
    monkeypatch.setattr("bngrad.oracle.environment.status", lambda: status)
    assert command("oracle", "status") == (0, f"ready: {tmp_path}\n", "")
    document = json.loads(command("oracle", "status", "--json")[1])
    assert document == {"state": "ready", "path": str(tmp_path), "problem": None}


def test_library_path(command):
    assert command("library-path") == (0, f"{bngrad.get_library_path()}\n", "")


def test_library_path_of_no_library(command, monkeypatch):
    monkeypatch.setenv("BNGRAD_LIBRARY", "no.so")
    message = "BNGRAD_LIBRARY=no.so is not a file; expected the path of the native library"
    assert command("library-path") == (2, "", f"bngrad: error: {message}\n")


# ---- as a process ----


BROKEN = {
    "a-value-from-nowhere": (
        TRAINING_GRAPH.replace("sm, si)", "sm, nowhere)"),
        (
            "a-value-from-nowhere/bad.onnx is not valid: com.microsoft.BatchNormalizationGrad node 'backward' "
            "(outputs dx, ds, db) reads 'nowhere', which no preceding node produces"
        ),
    ),
    "shapes-that-do-not-fit": (
        TRAINING_GRAPH.replace("float[3] ds", "float[4] ds"),
        "the rewritten model does not pass onnx's checker: ",
    ),
    "a-domain-that-is-not-imported": (
        TRAINING_GRAPH.replace("[forward]", "q = mine.Foo(x)\n    [forward]"),
        "mine.Foo node (outputs q) cannot run on stock ONNX Runtime; ",
    ),
    "no-opset": (TRAINING_GRAPH, "the model does not import the ai.onnx opset"),
}


REWRITE_EACH = """
import sys
from bngrad.cli import run
sys.exit(sum(run(["rewrite", f"{case}/bad.onnx", "-o", f"{case}/out.onnx"]) != 2 for case in sys.argv[1:]))
"""


def test_a_process_tells_of_a_broken_model_in_one_line():
    """onnx-ir logs warnings about such models, with tracebacks; under pytest they would not reach stderr."""
    for case, (text, _) in BROKEN.items():
        model = parse(text)
        if case == "no-opset":
            del model.opset_import[0]
        Path(case).mkdir()
        Path(case, "bad.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", REWRITE_EACH, *BROKEN], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    for line, (_, message) in zip(done.stderr.splitlines(), BROKEN.values(), strict=True):
        assert line.startswith(f"bngrad: error: {message}")
    assert list(Path().glob("*/out.onnx")) == []


def test_exit_codes_of_a_process():
    assert process("inspect", "model.onnx").returncode == 0
    debugged = process("inspect", "no.onnx", "--debug")
    assert (debugged.returncode, debugged.stdout) == (2, "")
    assert debugged.stderr.startswith("Traceback")


@pytest.mark.parametrize("arguments", [["inspect", "model.onnx"], ["--help"]], ids=" ".join)
def test_a_reader_that_has_seen_enough(arguments):
    reader, write = os.pipe()
    os.close(reader)
    done = process(*arguments, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("encoding", "shown"), [pytest.param("utf-8", "λ", marks=pytest.mark.long), ("cp1252", "\\u03bb")]
)
def test_output_in_an_encoding_that_lacks_a_character(encoding, shown):
    """As that of a pipe on Windows."""
    model = parse(TRAINING_GRAPH)
    model.graph.node[0].name = "λ"
    Path("greek.onnx").write_bytes(model.SerializeToString())
    done = subprocess.run(
        [sys.executable, "-m", "bngrad", "inspect", "greek.onnx"],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        encoding=encoding,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout
