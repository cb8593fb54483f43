"""Output of the commands in a terminal of 80 columns, in a pipe, and with the variables that control colors."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import termios
import threading

import onnx
import pytest
from rich.cells import cell_len

from bngrad.cli import run
from bngrad.cli.console import count_text
from cli.example_files import write_example_files

LONG = "backbone.stage2.block7.residual_branch.depthwise_convolution."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, "weight"), "0 weights"),
        ((1, "weight"), "1 weight"),
        ((1234, "running statistic"), "1,234 running statistics"),
        ((2, "batch", "es"), "2 batches"),
    ],
    ids=str,
)
def test_a_number_of_things(arguments, text):
    assert count_text(*arguments) == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of the examples, and models with names of more than 60 characters."""
    folder = tmp_path_factory.mktemp("terminal")
    write_example_files(folder)
    for source, target in (("training_model.onnx", "long.onnx"), ("model.onnx", "long_forward.onnx")):
        model = onnx.load(folder / source)
        for node in model.graph.node:
            node.name = LONG + (node.name or node.output[0])
        onnx.save(model, folder / target)
    return folder


@pytest.fixture
def work(folder, tmp_path, monkeypatch):
    """The files in a folder of their own, which is the current one, and a known environment."""
    shutil.copytree(folder, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def in_terminal(work, monkeypatch):  # noqa: ARG001
    """A function that runs a command with a terminal of 80 columns as stdout, and returns what it prints there."""

    def call(arguments, *, errors_too=False, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        chunks = []
        reader = threading.Thread(target=lambda: chunks.extend(iter(lambda: _read(main), b"")))
        reader.start()
        with monkeypatch.context() as patched, open(side, "w", encoding="utf-8") as stream:  # noqa: PTH123
            # rich asks the standard streams of the process for the width.
            patched.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((80, 40)))
            patched.setattr(sys, "stdout", stream)
            if errors_too:
                patched.setattr(sys, "stderr", stream)
            code = run(arguments)
        reader.join()
        os.close(main)
        printed = b"".join(chunks).decode().replace("\r\n", "\n")
        assert code == 0, printed
        return printed

    return call


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


TWO_EPOCHS = ["--epochs", "2", "-o", "o.onnx"]
TABLES = {
    "inspect": ["inspect", "long.onnx", "long_forward.onnx"],
    "validate-ort": ["validate", "long.onnx", "--dim", "N=2", "--implementation", "function"],
    "validate-reference": ["validate", "long_forward.onnx", "--against", "reference", "--dim", "N=2"],
    "bench": ["bench", "--shape", "32x64x7x7", "--shape", "128x2048x1x1", "--repeats", "1"],
    "train": ["train", "step.onnx", "--data", "train.npz", "--learning-rate", "0.1", *TWO_EPOCHS],
    "step": ["step", "model.onnx", "-o", "new.onnx"],
    "compare-runs": ["compare", "sgd.jsonl", "adamw.jsonl"],
    "compare-reports": ["compare", "before.json", "after.json"],
    "rewrite": ["rewrite", "joint.onnx", "-o", "o.onnx", "--explain"],
}
"""Commands whose output has tables or long lines."""


@pytest.mark.parametrize("case", TABLES)
def test_lines_fit_80_columns(case, in_terminal):
    printed = plain(in_terminal(TABLES[case]))
    assert printed.strip()
    assert max(cell_len(line) for line in printed.splitlines()) <= 80
    assert "…" not in printed  # what rich cuts
    if "long.onnx" in TABLES[case]:  # a name that is wider than the terminal is folded
        assert f"{LONG}layer1.bn" in printed.replace("\n", "")
    # No column is squeezed: a line of single characters.
    assert not any(re.fullmatch(r"[\s│┃]*\w[\s│┃]*(\w[\s│┃]*)?", line) for line in printed.splitlines())


@pytest.mark.parametrize("case", ["inspect", "bench"])
@pytest.mark.usefixtures("work")
def test_a_pipe_has_whole_lines_in_columns(case, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(TABLES[case]) == 0
    out, err = capsys.readouterr()
    head = next(line for line in out.splitlines() if line.startswith("┃"))
    assert len(head) > 80
    assert "\x1b" not in out + err


# ---- colors ----

COLORS = {
    "terminal": ({}, True),
    "no-color": ({"NO_COLOR": "1"}, False),
    "no-color-is-empty": ({"NO_COLOR": ""}, True),
    "dumb": ({"TERM": "dumb"}, False),
    "both": ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
}


@pytest.mark.parametrize("case", COLORS)
def test_colors_in_a_terminal(case, in_terminal, capsys):
    variables, expected = COLORS[case]
    assert ("\x1b[" in in_terminal(["inspect", "model.onnx"], **variables)) == expected
    assert "\x1b" not in capsys.readouterr().err


PIPES = {
    "pipe": ({}, False),
    "no-color": ({"NO_COLOR": "1"}, False),
    "force-color": ({"FORCE_COLOR": "1"}, True),
    "both": ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
}


@pytest.mark.parametrize("case", PIPES)
@pytest.mark.usefixtures("work")
def test_colors_in_a_pipe(case, capsys, monkeypatch):
    """Stderr, which is none of a terminal either, has no progress."""
    variables, expected = PIPES[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["bench", "--shape", "2x3x4", "--repeats", "1"]) == 0
    out, err = capsys.readouterr()
    assert ("\x1b[" in out) == expected
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, True)],
    ids=["terminal", "dumb", "no-color"],
)
def test_progress_is_shown_in_a_terminal(variables, expected, in_terminal):
    """Without colors as NO_COLOR asks; the cursor is still moved."""
    printed = in_terminal(["bench", "--shape", "2x3x4", "--repeats", "1"], errors_too=True, **variables)
    assert ("\x1b[2K" in printed) == expected
    assert not variables or not re.search(r"\x1b\[[0-9;]*m", printed)
    assert "\x1b[?25h" in printed or not expected  # the cursor is back


def test_lines_of_a_training_run(in_terminal):
    """The progress display is taken away for each line."""
    printed = in_terminal(TABLES["train"], errors_too=True)
    lines = [re.split(r"\x1b\[2K|\r", line)[-1] for line in printed.splitlines()]
    assert any(re.fullmatch(r"epoch 1/2: loss [\d.]+", line) for line in lines)
    assert any(line.startswith("finished after 2 epochs, ") for line in lines)
    assert re.search(r"epoch 2/2  step \d+  loss [\d.]+  [▁-█]+  lr 0\.1", plain(printed))


def test_help_has_no_colors(in_terminal):
    assert "\x1b" not in in_terminal(["inspect", "--help"])


@pytest.mark.parametrize("width", ["0", "1", "20"])
def test_narrow_terminals(width, in_terminal):
    assert "layer1.bn" in plain(in_terminal(["inspect", "model.onnx"], COLUMNS=width)).replace("\n", "")


def test_the_values_of_a_setting_are_below_its_name(in_terminal):
    lines = plain(in_terminal(TABLES["compare-runs"], COLUMNS="30")).splitlines()
    assert [line.split() for line in lines[lines.index("settings that differ") + 1 :]] == [
        ["sgd.jsonl", "adamw.jsonl"],
        ["optimizer"],
        ["sgd", "adamw"],
    ]


ODD = "evil\x1b]0;title\x07\x1b[31m\nFAKE: passed\u202e"
SHOWN = r"evil\x1b]0;title\x07\x1b[31m\nFAKE: passed\u202e"
NAMED = {
    "inspect": ["inspect", "odd.onnx"],
    "hazard": ["inspect", "hazard.onnx", "--fail-on", "hazard"],
    "validate": [
        "validate",
        "odd_forward.onnx",
        "--against",
        "numeric",
        "--dim",
        "N=2",
        "--implementation",
        "function",
    ],
    "differentiate": ["differentiate", "odd_forward.onnx", "-o", "o.onnx"],
    "step": ["step", "odd_forward.onnx", "-o", "o.onnx"],
}


@pytest.mark.parametrize("case", NAMED)
@pytest.mark.usefixtures("work")
def test_names_cannot_control_the_terminal(case, capsys):
    model = onnx.load("model.onnx")
    (loss,) = (output for output in model.graph.output if output.name == "loss")
    for node in model.graph.node:
        node.output[:] = [ODD if name == "loss" else name for name in node.output]
        node.name = ODD if node.op_type == "BatchNormalization" else node.name
    loss.name = ODD
    onnx.save(model, "odd_forward.onnx")
    onnx.save(model, "odd.onnx")
    del model.graph.output[1:]  # the running statistics
    onnx.save(model, "hazard.onnx")
    code = run(NAMED[case])
    out, err = capsys.readouterr()
    assert code == (case == "hazard"), err
    assert SHOWN in out.replace("\n", "")
    assert not set("\x1b\x07\u202e") & {*out, *err}
