"""Tests of the campaign of files: former findings, a short campaign, and that it is determined by its seed."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from fuzz import file_campaign
from fuzz.file_campaign import COMMANDS, FileCase, judge, make
from fuzz.file_seeds import file_seeds
from fuzz.judge import run_in_process

COUNT = 25


def test_a_short_campaign():
    """Changes files; ``make fuzz-files`` changes many more."""
    program = Path(file_campaign.__file__)
    arguments = [sys.executable, program, "--count", str(COUNT), "--seed", "20261127"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{COUNT} cases of {COUNT}, 0 findings" in ran.stdout
    # Some files must be accepted and some refused, or the campaign would test little.
    for end in ("train 0", "train 2", "finalize 2"):
        assert re.search(rf"^ *[1-9]\d* {end}$", ran.stdout, re.MULTILINE), ran.stdout


def test_a_case_is_determined_by_seed_and_index():
    some = [make(7, index) for index in range(40)]
    assert some == [make(7, index) for index in range(40)]
    assert some[0] != make(8, 0)


def test_every_file_is_changed():
    assert set(COMMANDS) <= set(file_seeds())
    cases = [make(1, index) for index in range(300)]
    assert {case.name for case in cases} == set(COMMANDS)
    assert sum(case.content == file_seeds()[case.name] for case in cases) < len(cases) / 4


def _position(**values):
    """Changes the position in a checkpoint."""

    def change(content):
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        step = json.loads(header["__metadata__"]["bngrad.step"])
        step["notes"]["position"].update(values)
        header["__metadata__"]["bngrad.step"] = json.dumps(step)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return change


def _metadata(old, new):
    def change(content):
        model = onnx.ModelProto.FromString(content)
        for entry in model.metadata_props:
            entry.value = entry.value.replace(old, new)
        return model.SerializeToString()

    return change


def _empty(content):
    """Returns an archive whose arrays have no rows."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name][:0] for name in archive.files}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


RESUMED = (*file_campaign.RESUME, "--log", "run.jsonl", "--plot", "out.svg")
NO_CHECKPOINT = "run.safetensors is a state, but not a checkpoint of bngrad train"
FINDINGS = {
    "a sum of losses that is a text": ("run.safetensors", _position(loss_sum="x"), RESUMED, NO_CHECKPOINT),
    "a lowest loss that is a text": ("run.safetensors", _position(best_loss="x"), RESUMED, NO_CHECKPOINT),
    "a huge epoch": ("run.safetensors", _position(epoch=10**30), RESUMED, NO_CHECKPOINT),
    "a batch behind the epoch": (
        *("run.safetensors", _position(batch=10**9), RESUMED),
        "was written after batch 1000000000 of an epoch, and an epoch has 3",
    ),
    "a loss that is a text in a log": (
        *("run.jsonl", lambda content: content.replace(b'"loss": ', b'"loss": "x", "y": ', 1), RESUMED),
        "run.jsonl, line 2: not a record of a training run",
    ),
    "an archive that is none": (
        *("weights.npz", lambda content: content[:-30], file_campaign.COMMANDS["weights.npz"][0]),
        "weights.npz is not an .npz file of plain arrays, or is damaged: ",
    ),
    "a loss that is no output": (
        *("step.onnx", _metadata('"loss": "loss"', '"loss": "x"'), file_campaign.COMMANDS["step.onnx"][1]),
        "step.onnx: its metadata name the output 'x', which it does not have; make it again",
    ),
    "no samples for a reference": (
        *("data.npz", _empty, file_campaign.COMMANDS["data.npz"][2]),
        "FAILED",
    ),
    "a loss that is no number": (
        *(
            "training.onnx",
            _metadata('"loss": "loss"', '"loss": "logits"'),
            ("validate", "training.onnx", *file_campaign.NUMERIC),
        ),
        "the loss 'logits' has shape [4, 3]; expected one number",
    ),
}
"""The file, its change, the command, and what is said of it."""


@pytest.mark.parametrize("case", FINDINGS)
def test_a_former_finding(case, tmp_path, monkeypatch):
    name, change, command, message = FINDINGS[case]
    monkeypatch.chdir(tmp_path)
    content = change(file_seeds()[name])
    assert content != file_seeds()[name]
    findings, ends = judge(FileCase(case, name, content, (command,)))
    assert (findings, set(ends) & {f"{command[0]} 0"}) == ([], set())
    for file, original in {**file_seeds(), name: content}.items():
        (tmp_path / file).write_bytes(original)
    result = run_in_process(list(command))
    assert message in " ".join((result.stderr + result.stdout).split())
