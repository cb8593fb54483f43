"""``bngrad train``: what it writes and prints, resumed runs, interruptions, full disks, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.io.tensor_files import read_tensors
from bngrad.reports.html.training import RunPage
from bngrad.reports.run_records import speed_of
from bngrad.reports.tensorboard import EventFile
from bngrad.training.checkpoints import Checkpoints
from bngrad.training.trainer import Trainer
from file_size import file_size_limit
from reports.pages import Page
from training.trainer_cases import TEXT, assert_same_bits, network, samples

TRAIN = ["train", "step.onnx", "--data", "train.npz", "--learning-rate", "0.1", "--batch-size", "8"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    bngrad.training_step(network(), optimizer=bngrad.SGD(momentum=0.9)).save(folder / "step.onnx")
    bngrad.training_step(network(), optimizer="adamw", layout="flat").save(folder / "flat.onnx")
    np.savez(folder / "train.npz", **samples(44))
    np.savez(folder / "valid.npz", **samples(20, seed=1))
    bad = samples(44)
    bad["x"][17] = np.nan
    np.savez(folder / "bad.npz", **bad)
    return folder


@pytest.fixture(autouse=True)
def folder(prepared, tmp_path, monkeypatch):
    for file in prepared.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written():
    return sorted(path.name for path in Path().iterdir() if not path.is_symlink())


def records(path="log.jsonl"):
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [line for line in lines if "options" not in line]


def without_seconds(path="log.jsonl"):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records(path)]


def state(path):
    return read_tensors(path)[0]


def test_it_trains(command):
    code, out, err = command(
        *TRAIN, "--epochs", "3", "--validation", "valid.npz", "-o", "out.onnx", "--log", "log.jsonl"
    )
    assert (code, err) == (0, "")
    header, *epochs, finished, output = out.splitlines()
    assert header == "44 samples, 6 steps an epoch, 20 to validate on; 5 weights with 59 parameters; cpu"
    for number, line in enumerate(epochs, 1):
        assert re.fullmatch(rf"epoch {number}/3: loss [\d.]+, validation loss [\d.]+, accuracy [\d.]+%", line)
    assert len(epochs) == 3
    assert re.fullmatch(
        r"finished after 3 epochs, 18 steps; lowest validation loss [\d.]+ after epoch \d", finished
    )
    assert output == "out.onnx: the inference model with the best state"
    assert written() == ["log.jsonl", "out.onnx"]
    steps = [record for record in records() if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 19))
    assert all(record["learning_rate"] == 0.1 for record in steps)
    ends = [record for record in records() if "training_loss" in record]
    assert [record["epoch"] for record in ends] == [1, 2, 3]
    of_first = np.average([record["loss"] for record in steps[:6]], weights=[8] * 5 + [4])
    assert ends[0]["training_loss"] == pytest.approx(of_first)


WRITTEN = {"page": (RunPage, "update"), "events": (EventFile, "add"), "checkpoint": (Checkpoints, "save")}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_written_beside_a_step_is_no_part_of_its_time(case, command, monkeypatch):
    part, method = WRITTEN[case]
    original = getattr(part, method)

    def slowly(*arguments):
        time.sleep(0.1)
        return original(*arguments)

    monkeypatch.setattr(part, method, slowly)
    options = ["--html", "run.html", "--tensorboard", "events", "--checkpoint", "c.safetensors"]
    options += ["--checkpoint-every", "1", "--epochs", "2", "--log", "log.jsonl"]
    assert command(*TRAIN, *options)[0] == 0
    speed = speed_of([record for record in records() if "loss" in record])
    assert speed is None or speed > 20


def test_the_losses_are_those_of_a_trainer(command):
    assert command(*TRAIN, "--epochs", "2", "--schedule", "cosine", "--seed", "5", "--log", "log.jsonl")[0] == 0
    trainer = bngrad.Trainer("step.onnx", learning_rate=bngrad.CosineSchedule(0.1, 12))
    data, losses = samples(44), []
    for epoch in (1, 2):
        order = np.random.default_rng([5, epoch]).permutation(44)
        for start in range(0, 44, 8):
            rows = order[start : start + 8]
            losses.append(trainer.step(x=data["x"][rows], labels=data["labels"][rows]))
    assert [record["loss"] for record in records() if "loss" in record] == losses


def test_the_written_model_is_that_of_the_best_epoch(command):
    arguments = [*TRAIN, "--epochs", "4", "--validation", "valid.npz", "--learning-rate", "0.7"]
    outputs = ["--checkpoint", "c.safetensors", "--state-out", "s.safetensors", "-o", "out.onnx"]
    code, out, _ = command(*arguments, *outputs, "--json")
    document = json.loads(out)
    assert (code, document["status"], document["epochs"], document["steps"]) == (0, "finished", 4, 24)
    assert_same_bits(state("s.safetensors"), state("c.best.safetensors"))
    trainer = bngrad.Trainer("step.onnx", learning_rate=0)
    trainer.load("c.best.safetensors")
    evaluation = trainer.evaluate(**samples(20, seed=1))
    assert document["best_validation_loss"] == pytest.approx(float(evaluation["loss"]), rel=1e-5)
    assert trainer.calls == 6 * document["best_epoch"]
    (logits,) = bngrad.session("out.onnx").run(None, {"x": samples(20, seed=1)["x"]})
    np.testing.assert_allclose(logits, evaluation["logits"], rtol=1e-5, atol=1e-6)


def test_the_metrics_are_those_of_the_whole_validation_data(command):
    options = ["--validation", "valid.npz", "--epochs", "1", "--state-out", "s.safetensors", "--json"]
    document = json.loads(command(*TRAIN, *options)[1])
    trainer = bngrad.Trainer("step.onnx", learning_rate=0)
    trainer.load("s.safetensors")
    data = samples(20, seed=1)
    outputs = trainer.evaluate(**data)
    assert document["validation_loss"] == pytest.approx(float(outputs["loss"]), rel=1e-5)
    assert document["accuracy"] == np.mean(outputs["logits"].argmax(axis=1) == data["labels"])


SCHEDULES = {
    "constant": ([], [0.1] * 6),
    "linear": (
        ["--schedule", "linear", "--warmup", "3", "--warmup-start", "0"],
        [0, 1 / 30, 2 / 30, 0.1, 0.1, 0.1],
    ),
    "step": (["--schedule", "step", "--decay-every", "4", "--decay-factor", "0.5"], [0.1] * 4 + [0.05] * 2),
    "cosine": (
        ["--schedule", "cosine", "--warmup", "2", "--warmup-start", "0.5", "--minimum", "0.02"],
        [0.05, 0.075, *(0.02 + 0.04 * (1 + np.cos(np.pi * t / 4)) for t in range(4))],
    ),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules(case, command):
    options, rates = SCHEDULES[case]
    assert command(*TRAIN, "--epochs", "1", "--log", "log.jsonl", *options)[0] == 0
    assert [record["learning_rate"] for record in records() if "loss" in record] == pytest.approx(rates)


def test_data_from_a_folder_and_single_arrays(command):
    Path("folder").mkdir()
    for name, array in samples(44).items():
        np.save(f"folder/{name}.npy", array)
    states = []
    for data in (["train.npz"], ["folder"], ["x=folder/x.npy", "labels=folder/labels.npy"]):
        options = [word for source in data for word in ("--data", source)]
        assert (
            command("train", "step.onnx", *options, "--learning-rate", "0.1", "--epochs", "1", "--state-out", "s")[
                0
            ]
            == 0
        )
        states.append(state("s"))
    assert_same_bits(states[0], states[1])
    assert_same_bits(states[0], states[2])


def test_nothing_to_write_is_warned_of(command):
    warning = "bngrad: warning: the trained weights are not written: give -o, --state-out or --checkpoint\n"
    assert command(*TRAIN, "--epochs", "1")[2] == warning
    assert command(*TRAIN, "--epochs", "1", "--state-out", "s")[2] == ""


def test_resumed_run_goes_on_with_its_checkpoint(command):
    assert command(*TRAIN, "--epochs", "1", "--checkpoint", "c.safetensors")[0] == 0
    assert (
        command("train", "step.onnx", "--data", "train.npz", "--resume", "c.safetensors", "--epochs", "2")[0] == 0
    )
    trainer = bngrad.Trainer("step.onnx", learning_rate=0.1)
    trainer.load("c.safetensors")
    assert trainer.calls == 12


def test_drop_last_is_of_training_alone(command):
    options = ["--validation-split", "0.25", "--batch-size", "30", "--drop-last", "--epochs", "1"]
    assert command(*TRAIN, *options)[0] == 0  # 33 samples to train on, 11 to evaluate


def test_a_run_without_an_update_is_refused(command):
    bngrad.training_step(network(), accumulate=100).save("rare.onnx")
    code, _, err = command("train", "rare.onnx", *TRAIN[2:], "--epochs", "1", "--batch-size", "22")
    assert code == 2
    assert "2 steps are too few for an update of the weights, which takes 100" in err


def test_the_best_state_of_the_resumed_run_is_kept(command):
    options = ["--validation-split", "0.25", "--epochs", "1", "--checkpoint", "c.safetensors"]
    assert command(*TRAIN, *options)[0] == 0
    arguments = ["--resume", "c.safetensors", "--epochs", "2", "--state-out", "c.best.safetensors"]
    code, _, err = command(*TRAIN, *arguments)
    assert code == 2
    assert "c.best.safetensors is another output, or a file" in err


def test_drop_last_and_split(command):
    options = ["--validation-split", "0.25", "--drop-last", "--epochs", "2", "--log", "log.jsonl"]
    assert command(*TRAIN, *options)[0] == 0
    assert [record["step"] for record in records() if "loss" in record] == list(range(1, 9))  # 33 samples
    assert all("accuracy" in record for record in records() if "training_loss" in record)


def test_a_step_of_a_fixed_batch_size(command):
    bngrad.training_step(network(TEXT.replace("[N", "[8"))).save("fixed.onnx")
    options = ["--data", "train.npz", "--learning-rate", "0.1", "--epochs", "1", "--log", "log.jsonl"]
    assert command("train", "fixed.onnx", *options, "--validation", "valid.npz")[0] == 0
    assert len([record for record in records() if "loss" in record]) == 5
    code, _, err = command("train", "fixed.onnx", *options, "--batch-size", "4")
    assert (code, err) == (2, "bngrad: error: --batch-size is 4, but the step takes only batches of 8\n")


def test_the_first_of_equal_epochs_is_the_best(command):
    bngrad.training_step(network(), frozen=["bn"]).save("frozen.onnx")
    options = ["--validation", "valid.npz", "--learning-rate", "0", "--epochs", "9", "--patience", "3", "--json"]
    document = json.loads(command("train", "frozen.onnx", "--data", "train.npz", *options)[1])
    assert (document["status"], document["best_epoch"], document["epochs"]) == ("stopped early", 1, 4)


def test_early_stop(command):
    options = ["--validation", "valid.npz", "--learning-rate", "0", "--epochs", "9", "--patience", "2", "--json"]
    document = json.loads(command(*TRAIN, *options)[1])
    # The running statistics alone change, so the loss may fall for some epochs.
    assert document["status"] == "stopped early"
    assert document["epochs"] == document["best_epoch"] + 2


def test_plot(command):
    pytest.importorskip("matplotlib")
    assert command(*TRAIN, "--epochs", "1", "--plot", "curve.svg")[0] == 0
    assert Path("curve.svg").read_text().startswith("<?xml")


# Resumed runs


RUN = ["--epochs", "4", "--schedule", "cosine", "--validation-split", "0.2", "--seed", "3", "--log", "log.jsonl"]


def whole_run(command, step="step.onnx"):
    """The records, the last and the best state of a run that is not interrupted."""
    arguments = [*TRAIN[:1], step, *TRAIN[2:], *RUN]
    assert command(*arguments, "--checkpoint", "whole.safetensors")[0] == 0
    expected = without_seconds(), state("whole.safetensors"), state("whole.best.safetensors")
    Path("log.jsonl").unlink()
    return expected


def assert_resumed(expected, path="c.safetensors"):
    log, last, best = expected
    assert without_seconds() == log
    seconds = [record["seconds"] for record in records()]
    assert seconds == sorted(seconds)
    assert_same_bits(state(path), last)
    assert_same_bits(state(Path(path).with_suffix(".best.safetensors")), best)


STOPS = {"after-an-epoch": 4, "within-the-first-epoch": 3, "within-the-third": 11}
KILLED = """
import os, signal, sys
from bngrad.training.trainer import Trainer
from bngrad.cli import run
method, left = sys.argv[1], int(sys.argv[2])
called = getattr(Trainer, method)

def counted(*arguments, **data):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return called(*arguments, **data)

setattr(Trainer, method, counted)
sys.exit(run(sys.argv[3:]))
"""


def killed(calls, *arguments, method="step"):
    """Runs the command as a process and kills it before a call of a method of the trainer."""
    words = [sys.executable, "-c", KILLED, method, str(calls), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def interrupted(command, monkeypatch):
    """A function that runs the command and presses Ctrl-C before a call of a method of the trainer."""

    def call(calls, *arguments, method="step"):
        left, called = iter(range(calls, -1, -1)), getattr(Trainer, method)

        def counted(*arguments, **data):
            if next(left, None) == 0:
                signal.raise_signal(signal.SIGINT)
            return called(*arguments, **data)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, method, counted)
            return command(*arguments)

    return call


@pytest.mark.parametrize(
    "case",
    [case if case == "within-the-third" else pytest.param(case, marks=pytest.mark.long) for case in STOPS],
)
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_killed_run_resumes_to_the_same_bits(case, command):
    step = "flat.onnx" if case == "within-the-third" else "step.onnx"
    expected = whole_run(command, step)
    arguments = [*TRAIN[:1], step, *TRAIN[2:], *RUN]
    every = ["--checkpoint", "c.safetensors", "--checkpoint-every", "2"]
    killed(STOPS[case], *arguments, *every)
    resumed = ["train", step, "--data", "train.npz", "--log", "log.jsonl", "--resume", "c.safetensors"]
    assert command(*resumed, "--checkpoint", "c.safetensors")[0] == 0
    assert_resumed(expected)


@pytest.mark.parametrize("case", ["after-an-epoch", "within-the-third"])
def test_ctrl_c_writes_a_checkpoint(case, command, interrupted):
    expected = whole_run(command)
    code, out, err = interrupted(STOPS[case], *TRAIN, *RUN, "--checkpoint", "c.safetensors", "-o", "out.onnx")
    assert (code, err) == (130, "")
    line = f"interrupted after step {STOPS[case] + 1}: continue with --resume c.safetensors"
    assert out.splitlines()[-1] == line
    assert not Path("out.onnx").exists()
    resumed = ["train", "step.onnx", "--data", "train.npz", "--log", "log.jsonl", "--resume", "c.safetensors"]
    assert command(*resumed, "--checkpoint", "c.safetensors")[0] == 0
    assert_resumed(expected)


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGKILL", marks=pytest.mark.long)])
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_run_that_is_interrupted_while_it_validates(name, command, interrupted):
    """The last checkpoint is after all batches of an epoch, but in that epoch."""
    expected = whole_run(command)
    every = ["--checkpoint", "c.safetensors", "--checkpoint-every", "5"]
    if name == "SIGINT":
        assert interrupted(2, *TRAIN, *RUN, *every, method="evaluate_parts")[0] == 130
    else:
        killed(2, *TRAIN, *RUN, *every, method="evaluate_parts")
    assert json.loads(read_tensors("c.safetensors")[1]["bngrad.step"])["notes"]["position"]["batch"] == 5
    resumed = ["train", "step.onnx", "--data", "train.npz", "--log", "log.jsonl", "--resume", "c.safetensors"]
    assert command(*resumed, "--checkpoint", "c.safetensors")[0] == 0
    assert_resumed(expected)


def test_ctrl_c_without_a_checkpoint(interrupted):
    code, out, err = interrupted(2, *TRAIN, "-o", "out.onnx", "--json")
    assert (code, err, json.loads(out)["status"]) == (130, "", "interrupted")
    assert written() == []


def test_a_resumed_run_with_dropout_warns(command):
    text = TEXT.replace("Flatten (p)", "Flatten (d)").replace(
        "    flat", "one = Constant <value_int = 1> () on = Cast <to = 9> (one) d, m = Dropout (p, , on) flat"
    )
    bngrad.training_step(network(text)).save("drop.onnx")
    arguments = ["train", "drop.onnx", "--data", "train.npz", "--checkpoint", "c", "--learning-rate", "0.1"]
    code, _, err = command(*arguments, "--epochs", "1")
    assert (code, err) == (0, "")
    code, _, err = command(*arguments, "--epochs", "2", "--resume", "c")
    line = "bngrad: warning: the step has random nodes, such as Dropout: the resumed run draws other numbers\n"
    assert (code, err) == (0, line)


def test_a_finished_run_can_be_resumed_and_extended(command):
    assert command(*TRAIN, "--epochs", "4", "--state-out", "four", "--seed", "7")[0] == 0
    assert command(*TRAIN, "--epochs", "2", "--seed", "7", "--checkpoint", "c.safetensors")[0] == 0
    resume = ["train", "step.onnx", "--data", "train.npz", "--resume", "c.safetensors"]
    code, out, _ = command(*resume, "-o", "out.onnx")
    assert (code, out.splitlines()[0]) == (0, "finished after 2 epochs, 12 steps")
    assert command(*resume, "--epochs", "4", "--state-out", "s")[0] == 0
    assert_same_bits(state("s"), state("four"))


def test_a_stopped_run_stays_stopped(command):
    options = ["--validation", "valid.npz", "--learning-rate", "0", "--epochs", "9", "--patience", "1"]
    assert command(*TRAIN, *options, "--checkpoint", "c.safetensors", "--state-out", "first")[0] == 0
    resume = ["train", *TRAIN[1:4], "--validation", "valid.npz", "--resume", "c.safetensors"]
    code, out, _ = command(*resume, "--state-out", "second")
    assert (code, out.split()[:2]) == (0, ["stopped", "early"])
    assert_same_bits(state("first"), state("second"))


def reversed_data():
    np.savez("reversed.npz", **{name: array[::-1] for name, array in samples(44).items()})


OTHER_RUNS = {
    "data-within-an-epoch": ("step.onnx", "reversed.npz", 3, "c was trained on other data"),
    "data-of-a-new-epoch": ("step.onnx", "reversed.npz", None, "c was trained on other data"),
    "model": (
        "tanh.onnx",
        "train.npz",
        None,
        "c is the state of another training step: its model or loss has other",
    ),
}


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_a_run_that_is_resumed_with_something_else_says_so(case, command, interrupted):
    step, data, stop, line = OTHER_RUNS[case]
    reversed_data()
    bngrad.training_step(network(TEXT.replace("Relu", "Tanh")), optimizer=bngrad.SGD(momentum=0.9)).save(
        "tanh.onnx"
    )
    if stop is None:
        assert command(*TRAIN, "--epochs", "1", "--checkpoint", "c")[0] == 0
    else:
        assert interrupted(stop, *TRAIN, "--checkpoint", "c")[0] == 130
    resume = ["train", step, "--data", data, "--resume", "c", "--epochs", "2"]
    if case != "data-of-a-new-epoch":
        code, _, err = command(*resume)
        assert (code, line in err, "--resume-anyway" in err) == (2, True, True)
        resume.append("--resume-anyway")
    code, _, err = command(*resume)
    assert (code, err.count("\n"), err.startswith(f"bngrad: warning: {line}")) == (0, 1, True)


def test_a_validation_loss_that_is_not_finite_is_said(command):
    bad = samples(20)
    bad["x"][3] = np.nan
    np.savez("nan.npz", **bad)
    arguments = [*TRAIN, "--epochs", "2", "--validation", "nan.npz", "--checkpoint", "c", "--state-out", "last"]
    code, out, err = command(*arguments)
    assert (code, "last: the last state" in out, Path("c.best").exists()) == (0, True, False)
    assert re.fullmatch(
        r"(bngrad: warning: the validation loss of epoch \d is nan, so it is not compared: .*\n){2}", err
    )


def test_the_lowest_validation_loss_is_that_of_one_validation_set(command):
    easy = samples(20)
    easy["x"][np.arange(20), 0, easy["labels"]] += 9
    np.savez("easy.npz", **easy)
    assert command(*TRAIN, "--epochs", "1", "--validation", "easy.npz", "--checkpoint", "c")[0] == 0
    resume = ["train", "step.onnx", "--data", "train.npz", "--resume", "c", "--epochs", "2"]
    code, out, err = command(*resume, "--validation", "valid.npz", "--json")
    assert (code, err) == (
        0,
        "bngrad: warning: c was validated on other data, so the lowest validation loss is searched anew\n",
    )
    assert json.loads(out)["best_epoch"] == 2


RESUMED = [
    (["--batch-size", "4"], "was written within an epoch with --batch-size 8, but 4 is given"),
    (["--seed", "4"], "was written within an epoch with --seed 0, but 4 is given"),
    (["--drop-last"], "was written within an epoch with --drop-last False, but True is given"),
    (["--validation-split", "0.5"], "was written within an epoch with --validation-split None, but 0.5"),
    (["--data", "valid.npz"], "was trained on other data: 44 samples, now 20, and was written within"),
    (["--data", "reversed.npz"], "was trained on other data, and was written within an epoch"),
    (["--patience", "1"], "--patience needs a validation loss"),
]


def test_what_a_resumed_run_refuses(command, interrupted):
    reversed_data()
    assert interrupted(3, *TRAIN, "--checkpoint", "c.safetensors")[0] == 130
    for options, message in RESUMED:
        data = [] if "--data" in options else ["--data", "train.npz"]
        code, out, err = command("train", "step.onnx", *data, "--resume", "c.safetensors", *options)
        assert (code, out, err.count("\n")) == (2, "", 1), options
        assert message in err


TAMPERED = [
    ({"epochs": "many"}, "c records a wrong --epochs: 'many' is not a valid integer range."),
    ({"batch_size": -1}, "c records a wrong --batch-size: -1 is not in the range x>=1."),
    ({"schedule": "sine"}, "c records a wrong --schedule: 'sine' is not one of"),
    ({"seed": [1]}, "c records a wrong --seed"),
    ({"seed": float("inf")}, "c records a wrong --seed"),
    ({"drop_last": 7}, "c records a wrong --drop-last"),
    ({"seed": ...}, "c does not record the option --seed"),
]


def test_options_that_a_checkpoint_has_wrong(command):
    assert command(*TRAIN, "--epochs", "1", "--checkpoint", "c")[0] == 0
    trainer = bngrad.Trainer("step.onnx", learning_rate=0)
    notes = trainer.load("c")
    for change, message in TAMPERED:
        options = {key: value for key, value in (notes["options"] | change).items() if value is not ...}
        trainer.save("c", **notes | {"options": options})
        code, out, err = command("train", "step.onnx", "--data", "train.npz", "--resume", "c")
        assert (code, out) == (2, "")
        assert err.startswith(f"bngrad: error: {message}")


def test_options_that_a_checkpoint_has_as_null(command):
    assert command(*TRAIN, "--epochs", "1", "--checkpoint", "c")[0] == 0
    trainer = bngrad.Trainer("step.onnx", learning_rate=0)
    notes = trainer.load("c")
    refused = set()
    for name in notes["options"]:
        trainer.save("c", **notes | {"options": notes["options"] | {name: None}})
        code, _, err = command("train", "step.onnx", "--data", "train.npz", "--resume", "c", "--resume-anyway")
        assert code == 0 or (code, err.count("\n")) == (2, 1)
        assert "internal error" not in err
        if "records no value of" in err:
            refused.add(name)
    assert refused >= {"seed", "epochs", "schedule"}


def test_a_model_that_cannot_be_finalized_is_not_trained(command):
    model = network()
    del model.graph.output[1]
    bngrad.training_step(model).save("loss.onnx")
    arguments = ["--data", "train.npz", "--learning-rate", "0.1", "-o", "out.onnx", "--log", "log.jsonl"]
    code, out, err = command("train", "loss.onnx", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: the model has no output but losses and running statistics")
    assert "log.jsonl" not in written()


FILES = {
    "none.safetensors": "none.safetensors does not exist",
    "step.safetensors": "step.safetensors is a state, but not a checkpoint of bngrad train",
    "flat.safetensors": "flat.safetensors is the state of another model or optimizer than the step",
    "train.npz": "train.npz is not a .safetensors file, or is damaged",
}


def test_files_that_are_no_checkpoints(command):
    for file, message in FILES.items():
        code, out, err = command(*TRAIN, "--resume", file)
        assert (code, out) == (2, "")
        assert err.startswith(f"bngrad: error: {message}")


# Losses that are not finite


def test_a_loss_that_is_not_finite_stops(command):
    arguments = ["train", "step.onnx", "--data", "bad.npz", "--learning-rate", "0.1", "--batch-size", "8"]
    options = ["--checkpoint", "c.safetensors", "--checkpoint-every", "1", "-o", "out.onnx", "--log", "log.jsonl"]
    code, out, err = command(*arguments, *options)
    assert (code, err) == (1, "")
    last = len(records())
    line = (
        f"stopped: the loss is nan in call {last + 1}: the data 'x' are not finite; the state is unchanged; "
        "c.safetensors has an earlier state"
    )
    assert out.splitlines()[-1] == line
    assert written() == ["c.safetensors", "log.jsonl"]
    assert state("c.safetensors")["step"] == last
    assert all(np.isfinite(array).all() for array in state("c.safetensors").values())


def test_batches_that_are_not_finite_are_left_out(command):
    arguments = ["train", "step.onnx", "--data", "bad.npz", "--learning-rate", "0.1", "--batch-size", "8"]
    options = ["--on-nan", "continue", "--epochs", "2", "--log", "log.jsonl", "--state-out", "s"]
    assert command(*arguments, *options)[0] == 0
    steps = [record for record in records() if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert sum(record["loss"] is None for record in steps) == 2
    assert state("s")["step"] == 10
    assert all(np.isfinite(array).all() for array in state("s").values())


@pytest.mark.parametrize("choice", ["stop", "continue"])
def test_a_run_that_diverges(choice, command):
    bngrad.training_step(network(), wrt=["weight"], frozen=["bn"]).save("steep.onnx")
    arguments = ["train", "steep.onnx", *TRAIN[2:4], "--learning-rate", "3e38", "--on-nan", choice, "--json"]
    code, out, _ = command(*arguments, "--checkpoint", "c.safetensors", "-o", "out.onnx")
    document = json.loads(out)
    assert (code, document["status"], document["output"]) == (1, "not finite", None)
    assert re.search("the loss is (nan|inf) in call|no batch of epoch 2 has a finite loss", document["reason"])
    assert "out.onnx" not in written()


STEEP = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N] x) => (float loss) <float[1] w = {3}> {
    y = Mul (x, w)
    loss = ReduceMean <keepdims = 0> (y)
}"""


@pytest.mark.parametrize("choice", ["stop", "continue"])
def test_a_state_that_is_not_finite(choice, command):
    """The loss is finite, then the weight is not: no checkpoint has it, and no batch that is left out helps."""
    bngrad.training_step(onnx.parser.parse_model(STEEP), wrt=["w"]).save("steep.onnx")
    np.savez("x.npz", x=np.full(8, 10, np.float32))
    arguments = ["train", "steep.onnx", "--data", "x.npz", "--learning-rate", "3e38", "--on-nan", choice]
    checkpoint = ["--checkpoint", "c.safetensors", "--epochs", "1"]
    code, out, _ = command(*arguments, *checkpoint, "--batch-size", "8")
    reason = "the state is not finite ('w'), so that after step 1 is not written; load an earlier state, and"
    line = f"stopped: {reason} lower the learning rate or clip the gradients"
    assert (code, out.splitlines()[1:]) == (1, [line])
    code, out, _ = command(*arguments, *checkpoint, "--batch-size", "4")
    assert code == 1
    assert out.splitlines()[1].startswith(
        "stopped: the loss is -inf in call 2: the state is not finite since an earlier call ('w')"
    )
    assert "c.safetensors" not in written()


def test_a_validation_loss_that_is_an_average_is_said_once(command):
    text = STEEP.replace("ReduceMean", "ReduceMax")
    bngrad.training_step(onnx.parser.parse_model(text), wrt=["w"]).save("largest.onnx")
    np.savez("x.npz", x=np.arange(8, dtype=np.float32))
    options = ["--validation", "x.npz", "--epochs", "2", "--learning-rate", "1e-3", "--batch-size", "4"]
    code, _, err = command("train", "largest.onnx", "--data", "x.npz", *options)
    assert code == 0
    said = "the validation loss is the average of batches weighted by samples: ReduceMax node"
    assert sum(said in line for line in err.splitlines()) == 1


def test_no_finite_loss_at_all(command):
    np.savez("nan.npz", **{name: array * np.nan if name == "x" else array for name, array in samples(16).items()})
    code, out, _ = command(
        "train", "step.onnx", "--data", "nan.npz", "--learning-rate", "1", "--on-nan", "continue"
    )
    assert (code, out.splitlines()[1:]) == (1, ["stopped: no batch of epoch 1 has a finite loss"])


# Disks and folders


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits")
@pytest.mark.parametrize("what", ["--checkpoint", "--log", "--state-out", "-o", "--plot"])
def test_a_full_disk(what, command):
    file = {"--log": "log.jsonl", "-o": "out.onnx", "--plot": "curve.svg"}.get(what, "s.safetensors")
    if what == "--plot":
        pytest.importorskip("matplotlib")
    assert command(*TRAIN, "--epochs", "1", what, file)[0] == 0
    before = {path: path.read_bytes() for path in Path().iterdir() if not path.is_symlink()}
    with file_size_limit(700):
        code, _, err = command(*TRAIN, "--epochs", "2", what, file)
    reason = "the disk is full" if what == "--log" else "File too large"
    assert code == 2
    assert err.endswith(f"bngrad: error: {file} cannot be written: {reason}\n")
    if what != "--log":  # which grows line by line
        assert {path: path.read_bytes() for path in Path().iterdir() if not path.is_symlink()} == before


def test_a_full_disk_within_a_run_keeps_the_last_checkpoint(command):
    if os.name != "posix":
        pytest.skip("needs POSIX limits")
    resume = ["--checkpoint", "c.safetensors"]
    with file_size_limit(20_000):
        code, _, err = command(*TRAIN, "--epochs", "40", *resume, "--log", "log.jsonl")
    assert (code, err) == (2, "bngrad: error: log.jsonl cannot be written: the disk is full\n")
    again = ["train", "step.onnx", "--data", "train.npz", "--resume", "c.safetensors", "--state-out", "s"]
    assert command(*again)[0] == 0
    assert command(*TRAIN, "--epochs", "40", "--state-out", "whole")[0] == 0
    assert_same_bits(state("s"), state("whole"))


# Refused arguments

REFUSED = {
    "no-data": (["--learning-rate", "1"], "Missing option '--data' (see bngrad train --help)"),
    "no-rate": (["--data", "train.npz"], "no learning rate is given; expected --learning-rate"),
    "negative-rate": (
        ["--data", "train.npz", "--learning-rate", "-1"],
        "--learning-rate is -1.0; expected a finite",
    ),
    "nan-rate": (["--data", "train.npz", "--learning-rate", "nan"], "--learning-rate is nan; expected a finite"),
    "nan-start": (
        [*TRAIN[2:], "--schedule", "linear", "--warmup", "2", "--warmup-start", "nan"],
        "--warmup-start is nan; expected a finite number, at least 0",
    ),
    "infinite-minimum": (
        [*TRAIN[2:], "--schedule", "cosine", "--minimum", "inf"],
        "--minimum is inf; expected a finite number, at least 0",
    ),
    "negative-factor": (
        [*TRAIN[2:], "--schedule", "step", "--decay-every", "2", "--decay-factor", "-0.5"],
        "--decay-factor is -0.5; expected a finite number, at least 0",
    ),
    "missing-data": (["--data", "none.npz", "--learning-rate", "1"], "none.npz does not exist"),
    "model-for-data": (["--data", "step.onnx", "--learning-rate", "1"], "step.onnx is not an .npz file"),
    "no-epochs": ([*TRAIN[2:], "--epochs", "0"], "Invalid value for '--epochs': 0 is not in the range x>=1"),
    "no-batch": ([*TRAIN[2:], "--batch-size", "0"], "Invalid value for '--batch-size'"),
    "large-batch": ([*TRAIN[2:], "--batch-size", "99", "--drop-last"], "44 samples are too few for a batch of 99"),
    "patience": ([*TRAIN[2:], "--patience", "2"], "--patience needs a validation loss; give --validation or"),
    "two-validations": (
        [*TRAIN[2:], "--validation", "valid.npz", "--validation-split", "0.5"],
        "both --validation and --validation-split are given; expected one of them",
    ),
    "split": ([*TRAIN[2:], "--validation-split", "1"], "Invalid value for '--validation-split'"),
    "small-split": ([*TRAIN[2:], "--validation-split", "0.001"], "a validation split of 0.001 takes 0 of 44"),
    "linear-without-warm-up": ([*TRAIN[2:], "--schedule", "linear"], "--schedule linear needs --warmup"),
    "long-warm-up": (
        [*TRAIN[2:], "--schedule", "cosine", "--warmup", "60"],
        "warmup is 60; expected less than the number of updates, 60",
    ),
    "step-without-interval": ([*TRAIN[2:], "--schedule", "step"], "--schedule step needs --decay-every"),
    "warm-up-of-constant": (
        [*TRAIN[2:], "--warmup", "3"],
        "--warmup is given, but the schedule is constant; expected --schedule linear or cosine",
    ),
    "decay-of-cosine": (
        [*TRAIN[2:], "--schedule", "cosine", "--decay-every", "3"],
        "--decay-every is given, but the schedule is cosine; expected --schedule step",
    ),
    "plot-format": (
        [*TRAIN[2:], "--plot", "curve.bmp"],
        "the plot curve.bmp has the suffix '.bmp'; expected one of",
    ),
    "output-folder": ([*TRAIN[2:], "-o", "none/out.onnx"], "output folder none does not exist; create it first"),
    "output-is-the-step": ([*TRAIN[2:], "-o", "step.onnx"], "output step.onnx is another output, or a file of"),
    "checkpoint-is-the-state": (
        [*TRAIN[2:], "--checkpoint", "step.safetensors"],
        "output step.safetensors is another output, or a file of the step or the data; choose another file",
    ),
    "log-is-the-data": ([*TRAIN[2:], "--log", "train.npz"], "output train.npz is another output, or a file of"),
    "one-file-for-two": (
        [*TRAIN[2:], "--state-out", "c", "--checkpoint", "./c"],
        "output c is another output, or a file of",
    ),
    "best-checkpoint": (
        [*TRAIN[2:], "--state-out", "c.best.safetensors", "--checkpoint", "c.safetensors"],
        "output c.best.safetensors is another output, or a file of",
    ),
    "output-is-the-resumed": (
        [*TRAIN[2:], "--resume", "flat.safetensors", "-o", "flat.safetensors"],
        "output flat.safetensors is another output, or a file of",
    ),
    "checkpoint-folder": ([*TRAIN[2:], "--checkpoint", "none/c"], "output folder none does not exist"),
    "log-is-a-folder": ([*TRAIN[2:], "--log", "."], "output . is a directory; expected a file"),
    "timeout": ([*TRAIN[2:], "--timeout", "5"], "--timeout is for --distributed, which is not given"),
    "every-without-checkpoint": ([*TRAIN[2:], "--checkpoint-every", "2"], "--checkpoint-every needs --checkpoint"),
}


def test_refused_arguments(command):
    for case, (arguments, message) in REFUSED.items():
        code, out, err = command("train", "step.onnx", *arguments)
        assert (code, out, err.count("\n"), written()) == (2, "", 1, []), case
        assert err.startswith(f"bngrad: error: {message}"), case


DATA = {
    "float64": ({"x": np.ones((8, 1, 4, 4))}, "'x' is float64; expected float32"),
    "shape": ({"x": np.ones((8, 4, 4), np.float32)}, "'x' has shape [8, 4, 4]; expected [?, 1, 4, 4]"),
    "missing": ({"x": None}, "there is no data for 'x'"),
    "extra": ({"y": np.ones(8)}, "'y' is not a data input of this model"),
    "rows": ({"labels": np.zeros(7, np.int64)}, "the arrays have different numbers of rows: 'x' 8, 'labels' 7"),
    "labels": ({"labels": np.arange(8)}, "'labels' has the label 3; expected 0 to 2"),
    "negative": ({"labels": np.arange(8) - 8}, "'labels' has the label -"),
}


@pytest.mark.parametrize("case", DATA)
def test_refused_data(case, command):
    arrays, message = DATA[case]
    np.savez("d.npz", **{name: array for name, array in {**samples(8), **arrays}.items() if array is not None})
    code, out, err = command("train", "step.onnx", "--data", "d.npz", "--learning-rate", "1", "-o", "out.onnx")
    assert (code, out) == (2, "")
    assert err.startswith(f"bngrad: error: {message}")
    assert written() == ["d.npz"]


MODELS = {
    "missing": ("none.onnx", "none.onnx does not exist"),
    "no-step": ("plain.onnx", "plain.onnx: the model has no metadata 'bngrad.step'"),
    "no-evaluation": ("alone.onnx", "alone.eval.onnx does not exist"),
}


@pytest.mark.parametrize("case", MODELS)
def test_files_that_are_no_steps(case, command):
    file, message = MODELS[case]
    for name in ("plain.onnx", "plain.eval.onnx"):
        onnx.save(network(), name)
    Path("alone.onnx").symlink_to("step.onnx")
    code, out, err = command("train", file, "--data", "train.npz", "--learning-rate", "1")
    assert (code, out) == (2, "")
    assert err.startswith(f"bngrad: error: {message}")


@pytest.mark.parametrize("kind", ["array", "folder", "hard-link"])
def test_data_are_not_overwritten(kind, command):
    Path("folder").mkdir()
    for name, array in samples(16).items():
        np.save(f"folder/{name}.npy", array)
    os.link("folder/x.npy", "linked.npy")
    single = ["--data", "x=folder/x.npy", "--data", "labels=folder/labels.npy"]
    data = ["--data", "folder"] if kind == "folder" else single
    log = "linked.npy" if kind == "hard-link" else "folder/x.npy"
    before = Path("folder/x.npy").read_bytes()
    code, _, err = command("train", "step.onnx", *data, "--learning-rate", "0.1", "--epochs", "1", "--log", log)
    assert (code, "choose another file" in err) == (2, True)
    assert Path("folder/x.npy").read_bytes() == before == Path("linked.npy").read_bytes()


def test_a_run_resumed_without_validation_writes_its_last_state(command):
    command(*TRAIN, "--epochs", "1", "--validation", "valid.npz", "--checkpoint", "c.safetensors")
    options = ["--resume", "c.safetensors", "--epochs", "2", "--state-out", "resumed.safetensors"]
    code, out, _ = command(*TRAIN, *options)
    assert (code, "resumed.safetensors: the last state" in out) == (0, True)
    command(*TRAIN, "--epochs", "2", "--state-out", "whole.safetensors")
    assert_same_bits(state("whole.safetensors"), state("resumed.safetensors"))


@pytest.mark.parametrize("reader", ["| head -n 1", ">&-"], ids=["pipe", "closed"])
@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_training_ends_where_nobody_reads_its_lines(reader):
    options = " ".join([*TRAIN, "--epochs", "30", "-o", "out.onnx"])
    done = subprocess.run(  # noqa: S602 - the arguments are ours
        f"{sys.executable} -m bngrad {options} {reader}", shell=True, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("out.onnx").exists()


# ---- files that follow a run ----


def test_a_web_page_and_events_of_a_run(command):
    bngrad.training_step(network(), optimizer="sgd", clip_norm=1.0).save("clipped.onnx")
    options = ["--epochs", "2", "--validation", "valid.npz", "-o", "o.onnx", "--log", "log.jsonl"]
    options += ["--html", "run.html", "--tensorboard", "events"]
    code, _, err = command(TRAIN[0], "clipped.onnx", *TRAIN[2:], *options)
    assert (code, err) == (0, "")
    page = Page(Path("run.html"))
    page.check_self_contained()
    for text in (
        "Finished",
        "clipped.onnx",
        "SHA-256",
        "learning-rate 0.1",
        "batch-size 8",
        "Norm of the gradients",
    ):
        assert text in page.text
    assert page.table["epoch"] == ["2", "1"]
    assert all(record["gradient_norm"] > 0 for record in records() if "loss" in record)
    (events,) = Path("events").iterdir()
    assert events.read_bytes().count(b"loss/step") == 12
    assert events.read_bytes().count(b"loss/validation") == 2


def test_the_page_of_a_run_that_is_interrupted(interrupted):
    assert interrupted(2, *TRAIN, "--html", "run.html")[0] == 130
    assert "Interrupted" in Page(Path("run.html")).text
    assert written() == ["run.html"]


@pytest.mark.parametrize(
    ("option", "path"), [("--html", "train.npz"), ("--html", "no/run.html"), ("--tensorboard", "train.npz")]
)
def test_files_of_a_run_that_are_refused(option, path, command):
    code, out, err = command(*TRAIN, option, path)
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: ")
    assert len(err.splitlines()) == 1
