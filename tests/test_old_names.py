"""The deprecated names of `implementation` and `--implementation`: they warn, and do what the new ones do."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnxruntime
import pytest

import bngrad
from bngrad.cli import cli, run
from bngrad.errors import InputError
from training.trainer_cases import batch, network, samples, step_of

CALLS = {
    "session": lambda **names: bngrad.session(bngrad.differentiate(network()), **names),
    "register": lambda **names: bngrad.register(onnxruntime.SessionOptions(), **names),
    "Trainer": lambda **names: bngrad.Trainer(step_of(), learning_rate=0.1, **names).step(**batch()),
    "validate": lambda **names: bngrad.validate(network(), against="numeric", dims={"N": 2}, **names),
}
WARNING = "the keyword provider is deprecated and will be removed in the next version; use implementation"


@pytest.mark.parametrize("call", CALLS)
def test_the_old_keyword(call):
    with pytest.warns(DeprecationWarning, match=WARNING) as warnings:
        CALLS[call](provider="function")
    assert [(str(warning.message), warning.filename) for warning in warnings] == [(WARNING, __file__)]


@pytest.mark.parametrize("call", CALLS)
def test_the_old_keyword_has_the_value_of_the_new_one(call):
    with pytest.warns(DeprecationWarning, match=WARNING), pytest.raises(InputError) as error:
        CALLS[call](provider="cuda")
    with pytest.raises(InputError) as expected:
        CALLS[call](implementation="cuda")
    assert str(error.value) == str(expected.value)


@pytest.mark.parametrize("call", CALLS)
def test_both_keywords_are_refused(call):
    with pytest.raises(InputError) as error:
        CALLS[call](provider="function", implementation="function")
    assert str(error.value) == "implementation and provider, its old name, are both given; expected implementation"


COMMANDS = {
    "train": [
        "train",
        "step.onnx",
        "--data",
        "train.npz",
        "--learning-rate",
        "0.1",
        "--epochs",
        "1",
        "-o",
        "out.onnx",
    ],
    "validate": ["validate", "model.onnx", "--against", "numeric", "--dim", "N=2"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model, its step and data."""
    folder = tmp_path_factory.mktemp("files")
    step_of().save(folder / "step.onnx")
    bngrad.save(network(), folder / "model.onnx")
    np.savez(folder / "train.npz", **samples(40))
    return folder


@pytest.fixture(autouse=True)
def folder(files, tmp_path, monkeypatch):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def answer(arguments, capsys):
    """The document of a command, and the lines on stderr."""
    assert run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    document.pop("command", None)  # as it was typed
    return document, err.splitlines()


@pytest.mark.parametrize("old", [["--provider", "function"], ["--provider=function"]], ids=["two", "one"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_old_option(command, old, capsys):
    expected, lines = answer([*COMMANDS[command], "--implementation", "function"], capsys)
    document, more_lines = answer([*COMMANDS[command], *old], capsys)
    assert document == expected
    assert more_lines == ["bngrad: warning: --provider is deprecated; use --implementation", *lines]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", ["cuda", ""])
def test_a_wrong_value_names_the_new_option(command, value, capsys):
    assert run([*COMMANDS[command], "--provider", value]) == 2
    assert f"Invalid value for '--implementation': {value!r} is not one of" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_both_options_are_refused(command, capsys):
    assert run([*COMMANDS[command], "--provider", "function", "--implementation", "function"]) == 2
    message = f"--provider is the old name of --implementation; give one of them (see bngrad {command} --help)"
    assert capsys.readouterr() == ("", f"bngrad: error: {message}\n")


@pytest.mark.parametrize("name", sorted(set(cli.commands) - set(COMMANDS)))
def test_other_commands_have_neither(name, capsys):
    assert run([name, "--provider", "function"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_completion_have_the_new_name(command, capsys, monkeypatch):
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--implementation" in text
    assert "--provider" not in text
    monkeypatch.setenv("_BNGRAD_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"bngrad {command} --")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run([]) == 0
    offered = capsys.readouterr().out
    assert "\t--implementation\t" in offered
    assert "provider" not in offered


def test_the_report_has_both_names(capsys):
    document, _ = answer([*COMMANDS["validate"], "--implementation", "function"], capsys)
    assert document["providers"] == document["implementations"] == ["function"]
    report = bngrad.validate(network(), against="numeric", dims={"N": 2}, implementation="function")
    assert report.providers == report.implementations == ["function"]
