"""The artifacts of this package against those of onnxruntime-training-cpu 1.19.2, which trains its own."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from filelock import FileLock

from bngrad.ort_training import api
from bngrad.ort_training.checkpoint_file import read_checkpoint
from bngrad.ort_training.training_model import STATE_KEY
from ort_training import old_package
from ort_training.artifact_cases import CASES
from ort_training.run_artifact_cases import results

SCRIPT = "run_artifact_cases.py"
OLD, NEW = "onnxruntime.training", "bngrad.ort_training"

RUN = [name for name, case in CASES.items() if case.runs]

LIMIT = 2e-5
"""Of float32 sums in another order, some of which cancel, relative to the largest element."""


@pytest.fixture(scope="session")
def artifact_folders(tmp_path_factory):
    """Folders of artifacts, and of what was trained with them: created once for all processes that test.

    ``old``: by 1.19.2. ``new``: by this package. ``new_for_old``: made by this package, and trained by 1.19.2.
    """
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "artifacts"
    with FileLock(base.with_suffix(".lock")):
        if not base.exists():
            make(*(tmp_path_factory.mktemp(name) for name in ("path", "artifacts"))).rename(base)
    return base


def make(path, base):
    python, old_path = old_package.old_python(path)

    def run_old(what, name):
        old_package.run(python, old_path, SCRIPT, what, OLD, base / name)

    def run_new(what, name, *target):
        # A process of its own counts the names anew.
        old_package.run(sys.executable, os.pathsep.join(sys.path), SCRIPT, what, NEW, base / name, *target)

    for name in ("old", "new", "new_for_old"):
        (base / name).mkdir()
    run_old("both", "old")
    run_new("both", "new")
    run_new("generate", "new_for_old", "ort")
    run_old("train", "new_for_old")
    return base


@pytest.fixture
def old(artifact_folders):
    return artifact_folders / "old"


@pytest.fixture
def new(artifact_folders):
    return artifact_folders / "new"


@pytest.fixture
def new_for_old(artifact_folders):
    return artifact_folders / "new_for_old"


def load(folder, name, stem):
    return onnx.load(folder / name / f"{CASES[name].options.get('prefix', '')}{stem}_model.onnx")


def described(values):
    return [(value.name, value.type.SerializeToString(deterministic=True)) for value in values]


@pytest.mark.parametrize("name", CASES)
def test_training_model_has_the_old_inputs_and_outputs(old, new, name):
    before, after = load(old, name, "training"), load(new, name, "training")
    inputs, outputs = described(before.graph.input), described(before.graph.output)
    assert described(after.graph.input)[: len(inputs)] == inputs
    assert described(after.graph.output)[: len(outputs)] == outputs
    state = json.loads({entry.key: entry.value for entry in after.metadata_props}[STATE_KEY])
    assert [output.name for output in after.graph.output][len(outputs) :] == [*state.values()]
    # Running statistics that are not parameters have defaults.
    others = [value.name for value in after.graph.input][len(inputs) :]
    assert {*others} <= state.keys() & {tensor.name for tensor in after.graph.initializer}
    assert state.keys() <= {value.name for value in after.graph.input}


@pytest.mark.parametrize("name", CASES)
def test_evaluation_model_has_the_old_inputs_and_outputs(old, new, name):
    before, after = load(old, name, "eval"), load(new, name, "eval")
    assert described(after.graph.input) == described(before.graph.input)
    assert described(after.graph.output) == described(before.graph.output)
    assert not any(node.domain for node in after.graph.node)


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_is_the_old_one(old, new, name):
    file = f"{CASES[name].options.get('prefix', '')}checkpoint"
    before, after = (read_checkpoint(folder / name / file) for folder in (old, new))
    for kind in ("trainable", "frozen"):
        want, got = getattr(before, kind), getattr(after, kind)
        assert [*got] == [*want]
        assert all(np.array_equal(got[key], want[key]) for key in want)


@pytest.mark.parametrize("name", RUN)
def test_losses_gradients_and_statistics_are_the_old_ones(old, new, name):
    require_equal(train(CASES[name], new / name), old / name)


@pytest.mark.parametrize("name", RUN)
def test_module_trains_as_the_old_one(old, new, name):
    require_equal(np.load(new / name / "results.npz"), old / name, without=_mended(name))


RECURRENT = {"lstm": "LSTMTraining", "gru": "GRUTraining"}
"""Old ops that are not lowered; here the gradients of LSTM and GRU are standard ONNX."""


@pytest.mark.parametrize("name", [name for name in RUN if name not in RECURRENT])
def test_module_trains_the_old_files(old, name):
    require_equal(results(api, CASES[name], old / name), old / name, without=_mended(name))


@pytest.mark.parametrize("name", RECURRENT)
def test_module_refuses_old_files_by_the_name_of_an_op(old, name):
    with pytest.raises(RuntimeError, match=rf"com.microsoft.{RECURRENT[name]} node .* cannot run on stock ONNX"):
        results(api, CASES[name], old / name)


def _mended(name):
    """1.19.2 evaluates with the initial values of statistics that are not parameters."""
    return {"evaluation"} if name == "constant statistics" else set()


@pytest.mark.parametrize("name", RUN)
def test_artifacts_for_1_19_train_there(old, new_for_old, name):
    model = load(new_for_old, name, "training")
    assert described(model.graph.output) == described(load(old, name, "training").graph.output)
    assert not any(node.domain == "bngrad" for node in model.graph.node)
    require_equal(np.load(new_for_old / name / "results.npz"), old / name)


def require_equal(got, old, without=frozenset()):
    want = np.load(old / "results.npz")
    assert {*want} <= {*got}
    for key in {*want} - without:
        assert got[key].shape == want[key].shape, key
        error = np.max(np.abs(got[key] - want[key]), initial=0)
        assert error <= LIMIT * np.max(np.abs(want[key]), initial=0.05), (key, error)


def train(case, folder):
    """Returns the results of `run_artifact_cases.train`, by stock ONNX Runtime."""
    prefix = case.options.get("prefix", "")
    session, evaluation = (
        onnxruntime.InferenceSession(folder / f"{prefix}{stem}_model.onnx", providers=["CPUExecutionProvider"])
        for stem in ("training", "eval")
    )
    state = json.loads(session.get_modelmeta().custom_metadata_map[STATE_KEY])
    checkpoint = read_checkpoint(folder / f"{prefix}checkpoint")
    parameters = checkpoint.trainable | checkpoint.frozen
    held = {**parameters}
    for name, value in checkpoint.trainable.items():
        held[f"{name}_grad.accumulation.buffer"] = np.zeros_like(value)
    names = [value.name for value in session.get_outputs()]
    results = {}
    for call, inputs in enumerate(case.batches()):
        data = dict(zip(case.data, inputs, strict=True))
        feeds = {**data, **held, "lazy_reset_grad": np.array([call != 1])}
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        held |= {old: outputs[new] for old, new in state.items()}
        results[f"loss {call}"] = outputs[names[0]]
        results |= {f"{name} {call}": held[name] for name in parameters}
        results |= {
            f"{name}_grad {call}": held[f"{name}_grad.accumulation.buffer"] for name in checkpoint.trainable
        }
    (results["evaluation"], *_) = evaluation.run(None, {**data, **{name: held[name] for name in parameters}})
    return results
