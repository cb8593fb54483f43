"""Checkpoints: a resumed training has the bits of an uninterrupted one, and what is no checkpoint is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import bngrad
from bngrad.errors import InputError
from bngrad.io.tensor_files import read_tensors
from bngrad.training import checkpoints
from bngrad.training.checkpoints import Checkpoints, Position, best_path, resume
from trainer_cases import TEXT, assert_same_bits, batch, network, step_of

OPTIONS = {
    "sgd": {},
    "adamw-flat": {"optimizer": "adamw", "layout": "flat"},
    "accumulated": {"optimizer": bngrad.SGD(momentum=0.9), "accumulate": 2},
}


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("case", OPTIONS)
def test_a_resumed_training_has_the_same_bits(case, calls, tmp_path):
    step = step_of(**OPTIONS[case])
    schedule = bngrad.CosineSchedule(0.1, 8)
    whole = bngrad.Trainer(step, learning_rate=schedule)
    losses = [whole.step(**batch(index)) for index in range(8)]
    first = bngrad.Trainer(step, learning_rate=schedule)
    for index in range(calls):
        first.step(**batch(index))
    first.save(tmp_path / "c.safetensors", epoch=2, order=[1, 2])
    second = bngrad.Trainer(step, learning_rate=schedule)
    assert second.load(tmp_path / "c.safetensors") == {"epoch": 2, "order": [1, 2]}
    assert (second.calls, second.learning_rate) == (first.calls, first.learning_rate)
    assert [second.step(**batch(index)) for index in range(calls, 8)] == losses[calls:]
    assert_same_bits(second.state_dict(), whole.state_dict())


def test_a_checkpoint_of_one_layout_loads_in_the_other(tmp_path):
    named, flat = (bngrad.Trainer(step_of(layout=layout), learning_rate=0.1) for layout in ("named", "flat"))
    named.step(**batch(0))
    named.save(tmp_path / "c")
    flat.load(tmp_path / "c")
    assert named.step(**batch(1)) == flat.step(**batch(1))
    assert_same_bits(named.state_dict(), flat.state_dict())


def test_the_file_is_what_other_languages_read(tmp_path):
    trainer = bngrad.Trainer(step_of(optimizer="adam"), learning_rate=0.1)
    trainer.step(**batch())
    trainer.save(tmp_path / "c.safetensors", model="mine", roles="mine, too")
    with safe_open(tmp_path / "c.safetensors", "numpy") as file:
        metadata = json.loads(file.metadata()["bngrad.step"])
        assert set(file.keys()) == set(trainer.info.state)
        np.testing.assert_array_equal(file.get_tensor("step"), 1)
    assert metadata["model"] == trainer.info.model
    assert metadata["roles"]["kernel/exp_avg"] == "optimizer"
    assert trainer.load(tmp_path / "c.safetensors") == {"model": "mine", "roles": "mine, too"}


def edited(path, trainer, change):
    trainer.save(path)
    tensors, metadata = read_tensors(path)
    tensors, metadata = change(tensors, metadata)
    save_file(tensors, path, metadata)


def without_metadata(tensors, _metadata):
    return tensors, {}


def other_shape(tensors, _metadata):
    return tensors | {"offset": np.ones(4, np.float32)}, {}


def broken_metadata(tensors, _metadata):
    return tensors, {"bngrad.step": "{"}


def list_metadata(tensors, _metadata):
    return tensors, {"bngrad.step": "[1]"}


def test_a_file_without_metadata_is_a_state(tmp_path):
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    edited(tmp_path / "c", trainer, without_metadata)
    with pytest.warns(bngrad.errors.BngradWarning, match="c does not record which .* wrote it: the names"):
        assert trainer.load(tmp_path / "c") == {}


OTHER_STEPS = {
    "optimizer": ({"optimizer": "adam"}, "'bias/exp_avg' is not in the state"),
    "momentum": ({"optimizer": bngrad.SGD(momentum=0.9)}, "'bias/momentum_buffer' is not in the state"),
    "weights": ({"wrt": ["weight"]}, "the state lacks 'kernel', 'scale', "),
}


@pytest.mark.parametrize("case", OTHER_STEPS)
def test_a_checkpoint_of_another_step(case, tmp_path):
    options, reason = OTHER_STEPS[case]
    bngrad.Trainer(step_of(**options), learning_rate=0.1).save(tmp_path / "c")
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    with pytest.raises(InputError) as raised:
        trainer.load(tmp_path / "c")
    expected = f"{tmp_path / 'c'} is the state of another model or optimizer than the step: {reason}"
    assert str(raised.value).startswith(expected)


def adam(**options):
    return {"optimizer": bngrad.Adam(**options)}


def of_text(old, new, **options):
    assert old in TEXT
    return {"text": TEXT.replace(old, new), **options}


def of_constant(number):
    return of_text("r = Relu (b)", f"s = Constant <value_float = {number}> () r = PRelu (b, s)")


MOMENTUM = {"optimizer": bngrad.SGD(momentum=0.9)}
ANOTHER_MODEL = "its model or loss has other operations, attributes or constants than that of the step"
ANOTHER_TRAINING = "it was trained in another way: other parameter groups"
BATCH_NORM = "<training_mode = 1>"
SAME_STATE = {
    "adamw": (adam(), {"optimizer": "adamw"}, "it was made with adam (weight_decay 0.0), the step has adamw (w"),
    "betas": (adam(beta1=0.8), adam(), "it was made with adam (beta1 0.8), the step has adam (beta1 0.9)"),
    "nesterov": (
        MOMENTUM,
        {"optimizer": bngrad.SGD(momentum=0.9, nesterov=True)},
        "it was made with sgd (nesterov False), the step has sgd (nesterov True)",
    ),
    "accumulate": ({"accumulate": 2}, {"accumulate": 4}, "it was made with accumulate 2, the step has 4"),
    "clip": ({"clip_norm": 1}, {}, "it was made with clip_norm 1.0, the step has None"),
    "groups": ({"groups": [bngrad.ParameterGroup(max_rank=1, learning_rate_scale=0)]}, {}, ANOTHER_TRAINING),
    "ops": ({}, {"fuse": False}, "other ops (--memory, --fuse, --conv-grad, --channels-last, --group-updates)"),
    "activation": ({}, of_text("Relu", "Tanh"), ANOTHER_MODEL),
    "attribute": ({}, of_text("pads = [1,1,1,1]", "dilations = [2,2], pads = [2,2,2,2]"), ANOTHER_MODEL),
    "loss": ({}, of_text("Loss (", "Loss <ignore_index = 2> ("), ANOTHER_MODEL),
    "constant": (of_constant(0.1), of_constant(0.2), ANOTHER_MODEL),
    "momentum-of-batch-norms": ({}, of_text(BATCH_NORM, "<training_mode = 1, momentum = 0.5>"), ANOTHER_MODEL),
    "both": (adam(), of_text("Relu", "Tanh", optimizer="adamw"), f"(weight_decay 0.01); {ANOTHER_MODEL}"),
}


def of_case(text=TEXT, **options):
    return bngrad.training_step(network(text), **options)


@pytest.mark.parametrize("case", SAME_STATE)
def test_a_state_of_another_step_with_the_same_tensors(case, tmp_path):
    of_state, of_step, reason = SAME_STATE[case]
    written, trainer = (bngrad.Trainer(of_case(**options), learning_rate=0.1) for options in (of_state, of_step))
    written.save(tmp_path / "c")
    before = trainer.state_dict()
    for load, what in ((trainer.load, tmp_path / "c"), (trainer.load_state_dict, written.state_dict())):
        with pytest.raises(
            InputError, match=rf"is the state of another training step: .*{re.escape(reason)}.*; continue"
        ):
            load(what)
        assert_same_bits(trainer.state_dict(), before)
        with pytest.warns(bngrad.errors.BngradWarning, match=re.escape(reason)):
            load(what, anyway=True)
    trainer.load_state_dict(dict(written.state_dict()))  # plain arrays have no origin


def renamed_and_reordered():
    """The network with other names of nodes and values, and its nodes in another order."""
    model = network(
        TEXT.replace("flat", "rows").replace("[bn]", "[norm]").replace("(r)", "(q)").replace(" r =", " q =")
    )
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["x"], ["unused"]))
    model.producer_name, model.doc_string = "another", "text"
    return model


def from_file(folder):
    """The network with its weights and a constant in external data."""
    onnx.save(
        network(),
        folder / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
        convert_attribute=True,
    )
    return folder / "m.onnx"


THE_SAME = {
    "again": lambda _: step_of(),
    "flat": lambda _: step_of(layout="flat"),
    "fetched": lambda _: step_of(outputs=["logits", "kernel_grad"]),
    "defaults": lambda _: step_of(defaults=True),
    "synchronized": lambda _: step_of(sync=True),
    "no-functions": lambda _: step_of(functions=False),
    "other-weights": lambda _: bngrad.training_step(network(seed=5)),
    "renamed": lambda _: bngrad.training_step(renamed_and_reordered()),
    "external": lambda folder: bngrad.training_step(from_file(folder)),
}


@pytest.mark.parametrize("case", THE_SAME)
def test_a_state_of_the_same_step_in_another_form(case, tmp_path):
    bngrad.Trainer(step_of(), learning_rate=0.1).save(tmp_path / "c")
    trainer = bngrad.Trainer(THE_SAME[case](tmp_path), learning_rate=0.1)
    assert trainer.load(tmp_path / "c") == {}


MAKES = """
import sys
import onnx
import bngrad
print(bngrad.training_step(onnx.load(sys.argv[1]), optimizer="adam", clip_norm=1).info.fingerprint)
"""


def test_another_process_makes_the_same_fingerprint(tmp_path):
    onnx.save(network(), tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-c", MAKES, tmp_path / "m.onnx"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == f"{step_of(optimizer='adam', clip_norm=1).info.fingerprint}\n".encode()


def test_a_step_without_a_fingerprint(tmp_path):
    """Of an older bngrad; the optimizer is compared all the same."""
    step = step_of()
    old = bngrad.Trainer(replace(step, info=replace(step.info, fingerprint=None)), learning_rate=0.1)
    bngrad.Trainer(step, learning_rate=0.1).save(tmp_path / "new")
    old.save(tmp_path / "old")
    for trainer, name, whose in (
        (old, "new", "the training step has"),
        (bngrad.Trainer(step, learning_rate=0.1), "old", "old has"),
    ):
        with pytest.warns(bngrad.errors.BngradWarning, match=f"{whose} no fingerprint of its graph, so whether"):
            trainer.load(tmp_path / name)


EDITS = {
    "shape": (other_shape, "c: state 'offset' has shape [4]; expected [3]"),
    "broken-metadata": (broken_metadata, "c has metadata 'bngrad.step' that cannot be read"),
    "list-metadata": (list_metadata, "c has metadata 'bngrad.step' that cannot be read"),
}


@pytest.mark.parametrize("case", EDITS)
def test_refused_files(case, tmp_path):
    change, message = EDITS[case]
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    edited(tmp_path / "c", trainer, change)
    with pytest.raises(InputError, match=re.escape(message)):
        trainer.load(tmp_path / "c")
    assert trainer.step(**batch()) > 0


@pytest.mark.parametrize("content", [b"", b"text", b"PK\3\4"], ids=["empty", "text", "zip"])
def test_files_of_other_formats(content, tmp_path):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match=r"is not a \.safetensors file, or is damaged"):
        bngrad.Trainer(step_of(), learning_rate=0.1).load(tmp_path / "c")


def test_paths_that_cannot_be_written(tmp_path):
    trainer = bngrad.Trainer(step_of(), learning_rate=0.1)
    for path, message in {
        tmp_path: "is a directory; expected a file",
        tmp_path / "none" / "c": "does not exist; create it first",
        Path(os.devnull): "is a device or a pipe",
    }.items():
        with pytest.raises(InputError, match=message):
            trainer.save(path)
    assert list(tmp_path.iterdir()) == []


SAVES = """
import sys
import bngrad
trainer = bngrad.Trainer(sys.argv[1], learning_rate=0.1)
print("ready", flush=True)
while True:
    trainer.save(sys.argv[2])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_process_that_is_killed_leaves_a_whole_file(tmp_path):
    step = bngrad.training_step(network(), optimizer="adam")
    step.save(tmp_path / "step.onnx")
    trainer, path = bngrad.Trainer(step, learning_rate=0.1), tmp_path / "c.safetensors"
    trainer.save(path)
    for wait in (0.003, 0.027):
        command = [sys.executable, "-c", SAVES, tmp_path / "step.onnx", path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(wait)
            process.kill()
            assert process.wait() == -signal.SIGKILL
        trainer.load(path)


# The checkpoints of a run: the last one, and the best one beside it.


@pytest.fixture
def trainer():
    return bngrad.Trainer(step_of(), learning_rate=0.1)


def states(trainer, count):
    results = []
    for index in range(count):
        trainer.step(**batch(index))
        results.append(trainer.state_dict())
    return results


def test_last_and_best(trainer, tmp_path):
    path = tmp_path / "run.safetensors"
    first, second, third = states(trainer, 3)
    of_run = Checkpoints(path, trainer.info, {"seed": 5})
    of_run.save(first, None, Position(epoch=1, step=1))
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]
    assert resume(path, trainer).best is None
    of_run.save(second, second, Position(epoch=2, step=2, best_epoch=2, best_loss=0.5))
    resumed = resume(path, trainer)
    assert_same_bits(resumed.best, second)
    of_run.save(third, second, Position(epoch=2, step=3, batch=1, best_epoch=2, best_loss=0.5))
    resumed = resume(path, trainer)
    assert_same_bits(resumed.state, third)
    assert_same_bits(resumed.best, second)
    assert resumed.position == Position(epoch=2, step=3, batch=1, best_epoch=2, best_loss=0.5)
    assert resumed.options == {"seed": 5}
    assert best_path(path).name == "run.best.safetensors"


def test_the_last_one_is_written_first(trainer, tmp_path, monkeypatch):
    """So that the best one is never of an epoch that the last one does not know."""
    written = []
    monkeypatch.setattr(checkpoints, "write_state", lambda path, *_, **__: written.append(path.name))
    (state,) = states(trainer, 1)
    Checkpoints(tmp_path / "c.st", trainer.info, {}).save(state, state, Position(epoch=1, best_epoch=1))
    assert written == ["c.st", "c.best.st"]


def test_killed_between_the_two_files(trainer, tmp_path):
    """The last one says that it is the best, and the best one is still an older one."""
    path = tmp_path / "run.safetensors"
    first, second, third = states(trainer, 3)
    Checkpoints(path, trainer.info, {}).save(first, first, Position(epoch=1, best_epoch=1, best_loss=1.0))
    old = best_path(path).read_bytes()
    Checkpoints(path, trainer.info, {}).save(second, second, Position(epoch=2, best_epoch=2, best_loss=0.5))
    best_path(path).write_bytes(old)
    resumed = resume(path, trainer)
    assert_same_bits(resumed.best, second)
    Checkpoints(path, trainer.info, {}).save(third, resumed.best, Position(epoch=3, best_epoch=2, best_loss=0.5))
    assert_same_bits(resume(path, trainer).best, second)


def test_refused_pairs(trainer, tmp_path):
    path = tmp_path / "run.safetensors"
    first, second = states(trainer, 2)
    Checkpoints(path, trainer.info, {}).save(second, first, Position(epoch=2, best_epoch=1, best_loss=1.0))
    other = tmp_path / "other.safetensors"
    Checkpoints(other, trainer.info, {}).save(second, first, Position(epoch=2, best_epoch=1, best_loss=0.9))
    best_path(other).replace(best_path(path))
    with pytest.raises(InputError, match=r"is the state after epoch 1, .* expected the checkpoints of one run"):
        resume(path, trainer)
    best_path(path).unlink()
    with pytest.raises(
        InputError, match=r"run.best.safetensors, the state with the lowest validation loss, is missing"
    ):
        resume(path, trainer)


NOTES = [
    {},
    {"position": {}},
    {"options": 5, "position": {}},
    {"options": {}, "position": [1]},
    {"options": {}, "position": {"x": 1}},
    {"options": {}, "position": {"epoch": -1}},
    {"options": {}, "position": {"epoch": "1"}},
]


@pytest.mark.parametrize("notes", NOTES, ids=str)
def test_a_state_is_no_checkpoint_of_a_run(notes, trainer, tmp_path):
    trainer.save(tmp_path / "c", **notes)
    with pytest.raises(InputError, match="is a state, but not a checkpoint of bngrad train"):
        resume(tmp_path / "c", trainer)


def test_no_path_writes_nothing(trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Checkpoints(None, trainer.info, {}).save(trainer.state_dict(), None, Position())
    assert list(tmp_path.iterdir()) == []
