"""``bngrad train --distributed`` on two ranks: the results of one process, who prints and writes, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.cli import run
from bngrad.io.tensor_files import read_tensors
from bngrad.training.trainer import Trainer
from mpi_run import mpi_run
from train_ranks import STEP, with_signal
from training.trainer_cases import TEXT, network, samples

BASE = ["train", "step.onnx", "--data", "train.npz", "--learning-rate", "0.1", "--batch-size", "9"]
RANKS = [*BASE, "--distributed", "--timeout", "60"]
RESUMED = ["--validation", "valid.npz", "--resume"]
WHOLE = ["--epochs", "3", "--validation", "valid.npz", "--schedule", "cosine"]


def outputs(name):
    files = {
        "-o": "onnx",
        "--checkpoint": "safetensors",
        "--state-out": "state",
        "--log": "jsonl",
        "--plot": "svg",
    }
    return [word for option, suffix in files.items() for word in (option, f"{name}.{suffix}")]


def replaced(**options):
    """The arguments with other values for some options."""
    words = list(RANKS)
    for name, value in options.items():
        words[words.index(f"--{name.replace('_', '-')}") + 1] = value
    return words


RUNS = {
    "whole": [*RANKS, *WHOLE, *outputs("whole"), "--plot", "whole.svg"],
    "again": [*RANKS, *WHOLE, *outputs("again"), "--threads", "2"],
    "json": [*RANKS, "--epochs", "1", "--validation-split", "0.3", "--json"],
    "patience": [*RANKS, *WHOLE, "--learning-rate", "0", "--patience", "1", "--schedule", "constant"],
    "skips-nan": [*replaced(data="nan.npz"), "--epochs", "1", "--on-nan", "continue", "--log", "skips-nan.jsonl"],
    "stops-at-nan": [*replaced(data="nan.npz"), "--epochs", "2", "--checkpoint", "stops-at-nan.safetensors"],
    "fixed": ["train", "fixed.onnx", *RANKS[2:-5], "--distributed", "--log", "fixed.jsonl", "--epochs", "2"],
    "resumed": [*RANKS[:4], "--distributed", *RESUMED, "resumed.safetensors", "--log", "resumed.jsonl"],
    "interrupted": [*RANKS, *WHOLE, *outputs("interrupted")],
    "no-output": [*RANKS, "--epochs", "1"],
}

ERRORS = {
    "unknown-option": ([*RANKS, "--nix"], "No such option '--nix'"),
    "missing-data": (replaced(data="nix.npz"), "nix.npz does not exist; expected an .npz file"),
    "other-data": (RANKS, "ranks 0 and 1 do not match: the hash of the data is"),
    "other-step": (RANKS, "ranks 0 and 1 do not match: the fingerprint of the training step is"),
    "missing-step": (["train", "nix.onnx", *RANKS[2:]], "nix.onnx does not exist"),
    "not-synchronized": (["train", "plain.onnx", *RANKS[2:]], "the training step is not synchronized.* --sync"),
    "function": (
        [*RANKS, "--implementation", "function"],
        "the implementation is function, which has no collectives",
    ),
    "output-folder": ([*RANKS, "-o", "nix/out.onnx"], "output folder nix does not exist; create it first"),
    "small-batch": (replaced(batch_size="1"), "a batch has 1 sample for 2 ranks; expected one for each: give "),
    "small-last-batch": (replaced(batch_size="43"), "the last batch of an epoch has 1 sample .*--drop-last"),
    "fixed-batch": (["train", "fixed.onnx", *RANKS[2:]], "--batch-size is 9, .* 2 ranks: --batch-size 8"),
    "another-option": ([*RANKS, "--seed", "{rank}"], "ranks 0 and 1 do not match: --seed is 0 on rank 0 and 1 on"),
    "another-file": (replaced(data="part{rank}.npz"), "--data is .'part0.npz'. on rank 0 and .'part1.npz'. on"),
    "a-label": ([*replaced(data="label.npz"), "--state-out", "x"], r"rank \d: 'labels' has the label 7; expected"),
    "missing-checkpoint": ([*RANKS, "--resume", "nix.safetensors"], "nix.safetensors does not exist"),
    "no-checkpoint": ([*RANKS, "--resume", "step.safetensors"], "step.safetensors is a state, but not a checkp"),
    "bad-schedule": ([*RANKS, "--schedule", "linear"], "--schedule linear needs --warmup"),
    "bad-log": ([*RANKS, "--epochs", "1", "--log", "nix/log.jsonl"], "output folder nix does not exist"),
}
"""Each is an error on both ranks, which rank 0 prints."""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The results of both ranks by case; the files are in the present folder."""
    folder = tmp_path_factory.mktemp("train")
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    options = {"optimizer": bngrad.SGD(momentum=0.9)}
    bngrad.training_step(network(), sync=True, **options).save("step.onnx")
    bngrad.training_step(network(), **options).save("plain.onnx")
    bngrad.training_step(network(TEXT.replace("[N", "[4")), sync=True, **options).save("fixed.onnx")
    np.savez("train.npz", **samples(44))
    np.savez("valid.npz", **samples(21, seed=1))
    for name, change in {"nan": ("x", np.nan), "label": ("labels", 7)}.items():
        data = samples(44)
        data[change[0]][17] = change[1]
        np.savez(f"{name}.npz", **data)
    assert run([*BASE, *WHOLE, "--checkpoint", "one.safetensors", "--log", "one.jsonl"]) == 0
    patch.setattr(Trainer, "step", with_signal(0, 7))
    assert run([*BASE, *WHOLE, *outputs("resumed")]) == 130
    patch.setattr(Trainer, "step", STEP)
    words = RUNS | {name: words for name, (words, _) in ERRORS.items()}
    cases = {name: {"arguments": arguments, "folder": "."} for name, arguments in words.items()}
    cases["interrupted"]["signal"] = [1, 7]
    cases["other-data"]["folder"] = "data-of-rank-{rank}"
    cases["other-step"]["folder"] = "step-of-rank-{rank}"
    for rank in range(2):
        for kind in ("data", "step"):
            Path(f"{kind}-of-rank-{rank}").mkdir()
        np.savez(f"data-of-rank-{rank}/train.npz", **samples(44, seed=rank))
        np.savez(f"step-of-rank-{rank}/train.npz", **samples(44))
        for suffix in ("onnx", "eval.onnx", "safetensors"):
            Path(f"data-of-rank-{rank}/step.{suffix}").symlink_to(folder / f"step.{suffix}")
        step = bngrad.training_step(network(), sync=True, optimizer=bngrad.SGD(momentum=0.8 + 0.1 * rank))
        step.save(f"step-of-rank-{rank}/step.onnx")
    Path("cases.json").write_text(json.dumps(cases))
    ranks = mpi_run(2, Path(__file__).with_name("train_ranks.py"), folder / "cases.json").ranks
    assert [rank.error for rank in ranks] == ["", ""]
    yield [json.loads(rank.out) for rank in ranks]
    patch.undo()


def records(name, key="loss"):
    lines = map(json.loads, Path(f"{name}.jsonl").read_text().splitlines())
    return [record[key] for record in lines if key in record]


def state(path):
    return read_tensors(path)[0]


def assert_one(name):
    """The records and checkpoints of a run are those of one process, up to rounding."""
    for key in ("loss", "training_loss", "validation_loss"):
        np.testing.assert_allclose(records(name, key), records("one", key), rtol=2e-5)
    for key in ("learning_rate", "accuracy", "step", "epoch"):
        assert records(name, key) == records("one", key)
    for file in ("safetensors", "best.safetensors"):
        tensors, expected = state(f"{name}.{file}"), state(f"one.{file}")
        assert list(tensors) == list(expected)
        for tensor, array in tensors.items():
            np.testing.assert_allclose(array, expected[tensor], rtol=2e-4, atol=2e-5, err_msg=tensor)


@pytest.mark.parametrize("name", RUNS)
def test_only_rank_0_prints(job, name):
    expected = {"interrupted": 130, "stops-at-nan": 1}.get(name, 0)
    (code, out, err), other = job[0][name], job[1][name]
    assert (code, bool(out)) == (expected, True)
    assert other == [expected, "", ""]
    assert err.count("\n") == (1 if "the trained weights are not written" in err else 0)


def test_the_results_of_one_process(job):
    assert (
        job[0]["whole"][1]
        .splitlines()[-3]
        .startswith("finished after 3 epochs, 15 steps; lowest validation loss ")
    )
    assert_one("whole")
    assert onnx.load("whole.onnx").graph.output[0].name == "logits"
    assert Path("whole.svg").exists()


def test_the_same_bits_again_and_with_two_threads(job):
    assert records("again") == records("whole")
    for name in ("safetensors", "best.safetensors", "state"):
        first, second = (state(f"{run_}.{name}") for run_ in ("whole", "again"))
        for tensor, array in first.items():
            np.testing.assert_array_equal(array, second[tensor], err_msg=tensor)
    assert [job[rank]["again"][0] for rank in range(2)] == [0, 0]


def test_json(job):
    document = json.loads(job[0]["json"][1])
    assert (document["status"], document["epochs"], document["steps"]) == ("finished", 1, 4)
    assert document["accuracy"] is not None


def test_all_ranks_stop_early(job):
    assert "stopped early after 2 epochs, 10 steps" in job[0]["patience"][1]


def test_a_loss_that_is_not_finite(job):
    assert [loss for loss in records("skips-nan") if loss is None] == [None]
    assert len(records("skips-nan")) == 5
    message = (
        r".* steps an epoch; .*\n"
        r"stopped: the loss is nan in call \d: the data 'x' of rank \d are not finite; the state is unchanged\n"
    )
    assert re.fullmatch(message, job[0]["stops-at-nan"][1])


def test_a_batch_size_that_the_model_fixes(job):
    assert "finished after 2 epochs, 10 steps" in job[0]["fixed"][1]  # 44 samples in batches of 2 * 4
    whole = bngrad.Trainer("step.onnx", learning_rate=0.1)
    order, data = np.random.default_rng([0, 1]).permutation(44), samples(44)
    losses = [whole.step(**{key: data[key][order[at : at + 8]] for key in data}) for at in range(0, 40, 8)]
    np.testing.assert_allclose(records("fixed")[:5], losses, rtol=2e-5)


def test_two_ranks_resume_the_run_of_one(job):
    assert job[0]["resumed"][1].splitlines()[-1].startswith("finished after 3 epochs, 15 steps; lowest validation")
    assert_one("resumed")


def test_ctrl_c_on_one_rank_ends_all_after_the_same_step(job):
    last = job[0]["interrupted"][1].splitlines()[-1]
    assert last == "interrupted after step 8: continue with --resume interrupted.safetensors"
    resume = ["--resume", "interrupted.safetensors", "--log", "interrupted.jsonl", "--data", "train.npz"]
    assert run(["train", "step.onnx", *resume, "--validation", "valid.npz"]) == 0  # one process goes on
    assert_one("interrupted")


@pytest.mark.parametrize("name", ERRORS)
def test_rank_0_prints_an_error_of_all(job, name):
    (code, out, err), other = job[0][name], job[1][name]
    assert (code, other) == (2, [2, "", ""])
    assert re.fullmatch(r"(.* steps an epoch; .*\n)?", out)  # once a step is complete
    assert re.match(f"bngrad: error: .*{ERRORS[name][1]}", err), err
    assert err.count("\n") == 1


def test_a_job_without_the_option(job):
    ranks = mpi_run(2, "-m", "bngrad", *BASE, expected=2).ranks
    message = (
        "bngrad: error: this is one of several processes of an MPI launcher, which would each train alone; add "
    )
    for rank in ranks:
        assert (rank.out, rank.error) == ("", f"{message}--distributed\n")
    assert job


def test_a_job(job):
    first, second = mpi_run(2, "-m", "bngrad", *RANKS, *WHOLE, *outputs("process")).ranks
    assert (first.error, second) == ("", (0, "", ""))
    assert first.out.replace("process", "whole") == job[0]["whole"][1]
    assert records("process") == records("whole")
