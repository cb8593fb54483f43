"""``--json``: what each command prints conforms to its schema; with an error only validate prints its report."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
import jsonschema
import numpy as np
import onnx
import pytest

from bngrad.cli import run
from bngrad.cli.console import print_json
from cli.example_files import write_example_files
from cli.test_help import LEAVES, generator
from training.trainer_cases import samples

GENERATOR = generator("json_schemas")
SCHEMAS = {name: GENERATOR.schema(document) for name, document in GENERATOR.DOCUMENTS.items()}
NUMERIC = ["validate", "model.onnx", "--against", "numeric", "--implementation", "function", "--dim", "N=2"]
TRAIN = ["train", "step.onnx", "--data", "train.npz", "--learning-rate", "0.1", "--epochs", "2"]
REWRITE = ["rewrite", "training_model.onnx", "-o", "out.onnx"]
ADAMW_STEP = """step network.onnx -o new.onnx --loss-fn cross_entropy --optimizer adamw --layout flat --clip-norm 1
    --accumulate 2 --fetch logits"""

RUNS = {
    "inspect-forward": (0, ["inspect", "model.onnx"]),
    "inspect-training-graph": (0, ["inspect", "training_model.onnx"]),
    "inspect-primitives": (0, ["inspect", "joint.onnx"]),
    "inspect-hazard": (0, ["inspect", "hazard.onnx"]),
    "inspect-unknown-rank": (0, ["inspect", "rankless.onnx"]),
    "inspect-several": (0, ["inspect", "model.onnx", "joint.onnx"]),
    "inspect-unreadable": (2, ["inspect", "model.onnx", "train.npz"]),
    "step": (0, ["step", "model.onnx", "-o", "new.onnx"]),
    "step-without-labels": (0, ["step", "network.onnx", "--loss-fn", "mse", "-o", "new.onnx"]),
    "step-flat-adamw-loss": (0, ADAMW_STEP.split()),
    "train": (0, [*TRAIN, "-o", "out.onnx", "--state-out", "out.safetensors", "--checkpoint", "c.safetensors"]),
    "train-validation": (0, [*TRAIN, "--validation", "test.npz", "--patience", "1"]),
    "train-not-finite": (1, [*TRAIN[:2], "--data", "nan.npz", *TRAIN[4:]]),
    "finalize": (0, ["finalize", "model.onnx", "--weights", "trained.npz", "-o", "out.onnx"]),
    "statistics": (0, ["statistics", "model.onnx", "--data", "train.npz", "-o", "out.onnx"]),
    "average": (0, ["average", "a.safetensors", "b.safetensors", "-o", "out.safetensors"]),
    "restore": (0, ["restore", "model.onnx", "--data", "train.npz", "--layer", "logits", "-o", "out.onnx"]),
    "batchnorm": (0, ["batchnorm", "network.onnx", "-o", "out.onnx", "--ghost", "4"]),
    "batchnorm-fold": (
        0,
        ["batchnorm", "network.onnx", "-o", "out.onnx", "--fold", "--mode", "frozen", "--data", "x.npz"],
    ),
    "statistics-no-loss": (0, ["statistics", "network.onnx", "--data", "x.npz", "-o", "out.onnx"]),
    "differentiate": (0, ["differentiate", "model.onnx", "-o", "out.onnx", "--state", "s.safetensors"]),
    "differentiate-loss": (0, ["differentiate", "network.onnx", "-o", "out.onnx", "--loss-fn", "mse"]),
    "rewrite": (0, REWRITE),
    "rewrite-training": (0, [*REWRITE, "--target", "training"]),
    "rewrite-primitives": (0, ["rewrite", "joint.onnx", "-o", "out.onnx"]),
    "validate-numeric": (0, NUMERIC),
    "validate-reference": (0, ["validate", "model.onnx", "--against", "reference", "--dim", "N=2"]),
    "validate-ort": (0, ["validate", "training_model.onnx", "--dim", "N=2"]),
    "validate-tolerance": (1, ["validate", "training_model.onnx", "--dim", "N=2", "--rtol", "0", "--atol", "0"]),
    "validate-wrong": (1, ["validate", "training_model.onnx", "--dim", "N=2", "--rewritten", "wrong.onnx"]),
    "validate-not-finite": (
        1,
        ["validate", "training_model.onnx", "--dim", "N=2", "--rewritten", "infinite.onnx"],
    ),
    "bench-shape": (0, ["bench", "--shape", "2x3x4", "--repeats", "1"]),
    "bench-model": (0, ["bench", "model.onnx", "--dim", "N=2", "--repeats", "1", "--op", "training"]),
    "compare-runs": (0, ["compare", "sgd.jsonl", "adamw.jsonl"]),
    "compare-reports": (0, ["compare", "before.json", "after.json"]),
    "oracle status": (1, ["oracle", "status"]),
    "oracle remove": (0, ["oracle", "remove"]),
}


def edited(path, change):
    model = onnx.load(path)
    change(model.graph)
    return model


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    write_example_files(folder)
    assert run(["rewrite", str(folder / "training_model.onnx"), "-o", str(folder / "right.onnx")]) == 0
    for name, factor in (("wrong", 2.0), ("infinite", math.inf)):
        onnx.save(
            edited(folder / "right.onnx", lambda graph, by=factor: scale_output(graph, by)),
            folder / f"{name}.onnx",
        )
    onnx.save(edited(folder / "model.onnx", lambda graph: graph.output.pop()), folder / "hazard.onnx")
    onnx.save(
        edited(folder / "model.onnx", lambda graph: graph.input[0].type.tensor_type.ClearField("shape")),
        folder / "rankless.onnx",
    )
    data = samples(44)
    np.savez(folder / "x.npz", x=data["x"])
    np.savez(folder / "nan.npz", **data | {"x": np.full_like(data["x"], np.nan)})
    return folder


def scale_output(graph, factor):
    """Multiplies a gradient by a factor."""
    name = next(output.name for output in graph.output if output.name.endswith("_grad"))
    for node in graph.node:
        node.output[:] = ["right" if output == name else output for output in node.output]
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    graph.node.append(onnx.helper.make_node("Mul", ["right", "factor"], [name]))


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("MPLBACKEND", "agg")
    return tmp_path / "work"


def schema_of(arguments):
    name = " ".join(arguments[:2]) if arguments[0] == "oracle" else arguments[0]
    return SCHEMAS[name]


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.usefixtures("folder")
def test_a_document_conforms(case, tmp_path, monkeypatch, capsys):
    expected, arguments = RUNS[case]
    if arguments[0] == "oracle":
        monkeypatch.setenv("BNGRAD_ORACLE_DIR", str(tmp_path / "oracle"))
    assert run([*arguments, "--json"]) == expected
    printed = capsys.readouterr().out
    document = json.loads(printed, parse_constant=pytest.fail)
    jsonschema.validate(document, schema_of(arguments), cls=jsonschema.Draft202012Validator)
    assert ('"inf"' in printed) == (case == "validate-not-finite")


def test_oracle_install(tmp_path, monkeypatch, capsys):
    from bngrad.oracle.environment import Environment

    environment = Environment(tmp_path, tmp_path / "python", "3.11", "1.19.2")
    monkeypatch.setattr("bngrad.oracle.install", lambda _show: environment)
    assert run(["oracle", "install", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"state": "ready", "path": str(tmp_path), "problem": None}
    jsonschema.validate(document, SCHEMAS["oracle install"])


@pytest.mark.parametrize("name", GENERATOR.DOCUMENTS)
def test_another_property_does_not_conform(name):
    """As of a field that is added to a document but not to its type."""
    schema = SCHEMAS[name]
    for part in [schema, *schema.get("$defs", {}).values()]:
        if "properties" in part:
            (error,) = jsonschema.Draft202012Validator({**part, "required": []}).iter_errors({"another": 1})
            assert "'another' was unexpected" in error.message


@pytest.mark.parametrize("name", GENERATOR.DOCUMENTS)
def test_a_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    for content in [SCHEMAS[name], *SCHEMAS[name].get("$defs", {}).values()]:
        assert content["description"]
        for field in content.get("properties", {}).values():
            assert field["description"].endswith(".")


def test_the_files_are_what_the_generator_writes():
    files = GENERATOR.files()
    assert {path for path in files if path.suffix == ".json"} == set(GENERATOR.FOLDER.iterdir())
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, "run .venv/bin/python docs/generate/json_schemas.py"


def test_every_command_with_json_has_a_schema():
    with_json = {
        name for name, command in LEAVES.items() if any("--json" in parameter.opts for parameter in command.params)
    }
    assert with_json == set(GENERATOR.DOCUMENTS)
    assert set(LEAVES) - with_json == {"library-path", "oracle key", "completion"}  # which print a text alone
    assert {case.split("-")[0] for case in RUNS} | {"oracle install"} == with_json


def required(command):
    """Arguments for the required parameters of a command."""
    for parameter in command.params:
        if parameter.required and not isinstance(parameter, click.Argument):
            yield from (parameter.opts[-1], "x.npz")


@pytest.mark.parametrize("name", [name for name in GENERATOR.DOCUMENTS if not name.startswith("oracle")])
def test_an_error_prints_no_document_but_a_report(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([name, "missing.onnx", *required(LEAVES[name]), "--json"]) == 2
    out, err = capsys.readouterr()
    assert without_report(out, err) == ("", 1)
    assert err.startswith("bngrad: error: missing")
    assert not list(tmp_path.iterdir())


def without_report(out, err):
    """Returns stdout without the report of validate, which has the error, and the number of lines on stderr."""
    report = json.loads(out) if out else {}
    if report:
        assert err == f"bngrad: error: {report['error']}\n"
        jsonschema.validate(report, SCHEMAS["validate"])
    return ("" if report else out, err.count("\n"))


def test_a_refused_model_prints_no_document_but_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    onnx.save(model, "none.onnx")
    for arguments in (
        ["rewrite", "none.onnx", "-o", "o.onnx"],
        ["differentiate", "none.onnx", "-o", "o.onnx"],
        ["validate", "none.onnx", "--against", "numeric"],
    ):
        assert run([*arguments, "--json"]) == 2
        assert without_report(*capsys.readouterr()) == ("", 1)
    assert [path.name for path in Path().iterdir()] == ["none.onnx"]


def test_infinities_and_nan_are_text(capsys):
    print_json({"a": math.inf, "b": [-math.inf, (math.nan, 1.5)], "c": {"d": None}})
    assert json.loads(capsys.readouterr().out) == {"a": "inf", "b": ["-inf", ["nan", 1.5]], "c": {"d": None}}


# ---- the generator refuses ----


@dataclass
class WithoutDocstring:
    """A record with a field that is not described."""

    number: int


@dataclass
class WithoutSchema:
    """A record with a field that JSON cannot hold."""

    number: complex
    """A number."""


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (WithoutDocstring, "WithoutDocstring.number has no docstring"),
        (WithoutSchema, "<class 'complex'> has no schema"),
    ],
    ids=["no-docstring", "no-schema"],
)
def test_the_generator_refuses(record, message):
    with pytest.raises(ValueError, match=message):
        GENERATOR.schema(record)
