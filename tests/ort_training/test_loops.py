"""Whole training loops on the files of onnxruntime.training 1.19.2, which runs the same loops."""

from __future__ import annotations

import os
import shutil

import numpy as np
import onnx
import onnxruntime
import pytest
from filelock import FileLock

from bngrad.errors import BngradWarning
from bngrad.ort_training import api, artifacts, checkpoint_file, flatbuffer, onnxblock
from bngrad.ort_training.checkpoint_file import read_checkpoint
from bngrad.ort_training.checkpoint_schema import CHECKPOINT
from ort_training import loops, old_package

LIMIT = 1e-5
"""Of float32 sums in another order, relative to the largest element."""


@pytest.fixture(scope="session")
def artifact_folders(tmp_path_factory):
    """Folders of artifacts, created once for all processes that test.

    ``old``: by 1.19.2, with what it has seen in all loops. ``ours``: by this package.
    """
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "loops"
    with FileLock(base.with_suffix(".lock")):
        if not base.exists():
            path, folder = (tmp_path_factory.mktemp(name) for name in ("path", "loops"))
            for name in ("old", "ours"):
                (folder / name).mkdir()
            old_package.run(*old_package.old_python(path), "run_loops.py", folder / "old")
            with pytest.warns(BngradWarning, match="'mean' and 'var' are not in the checkpoint"):
                loops.generate(artifacts, onnxblock, folder / "ours")
            folder.rename(base)
    return base


@pytest.fixture
def old(artifact_folders):
    return artifact_folders / "old"


@pytest.fixture
def ours(artifact_folders):
    return artifact_folders / "ours"


def copy(folder, name, tmp_path):
    """A copy of the artifacts of a loop."""
    return shutil.copytree(folder / loops.MODELS[name], tmp_path / name)


def close(actual, expected):
    assert list(actual) == list(expected)
    for key, value in expected.items():
        if value.dtype.kind == "f":
            scale = max(np.abs(value).max(initial=0), 1e-3)
            np.testing.assert_allclose(actual[key] / scale, value / scale, rtol=0, atol=LIMIT, err_msg=key)
            assert actual[key].shape == value.shape
        else:
            assert actual[key].tolist() == value.tolist(), key


@pytest.mark.parametrize("name", loops.LOOPS)
def test_loop(name, old, tmp_path):
    actual = loops.LOOPS[name](api, copy(old, name, tmp_path))
    close(actual, np.load(old / f"{name}.npz"))


@pytest.mark.parametrize("name", loops.LOOPS)
def test_loop_on_our_artifacts(name, old, ours, tmp_path):
    actual = loops.LOOPS[name](api, copy(ours, name, tmp_path))
    expected = dict(np.load(old / f"{name}.npz"))
    if "names" in expected:  # that of the loss has a number that counts in a process
        expected["names"] = np.array([*expected["names"][:2], actual["names"][2]])
    close(actual, expected)


@pytest.mark.parametrize("name", loops.RESUMED)
def test_ours_goes_on_from_the_old_checkpoint(name, old, tmp_path):
    folder = copy(old, name, tmp_path)
    close(loops.RESUMED[name](api, folder, folder / "middle"), np.load(old / f"{name}-middle.npz"))


def test_the_old_package_goes_on_from_our_checkpoints(old, tmp_path, monkeypatch):
    """That of the second loop has a data file, as large ones do; so has what the old package saves then."""
    folder, path = shutil.copytree(old, tmp_path / "old"), tmp_path / "path"
    path.mkdir()
    loops.mlp(api, copy(old, "mlp", tmp_path))
    shutil.copy(tmp_path / "mlp" / "middle", folder / "mlp" / "ours")
    monkeypatch.setattr(checkpoint_file, "_MAX_INLINE_BYTES", 0)
    loops.cnn(api, copy(old, "cnn", tmp_path))
    for name in ("ours", "ours.data"):
        shutil.copy(tmp_path / "cnn" / name.replace("ours", "middle"), folder / "cnn" / name)
    old_package.run(*old_package.old_python(path), "run_loops.py", folder, "ours")
    for name in loops.RESUMED:
        close(np.load(folder / f"{name}-ours.npz"), np.load(folder / f"{name}-middle.npz"))
    assert (folder / "cnn" / "again.data").exists()
    saved, resumed = read_checkpoint(folder / "cnn" / "again"), np.load(folder / "cnn-ours.npz")
    for name, array in (saved.trainable | saved.frozen).items():
        np.testing.assert_array_equal(array, resumed[f"step 4 after {name}"])


def test_a_resumed_run_is_the_uninterrupted_one(old, tmp_path):
    folder = copy(old, "mlp", tmp_path)
    whole = loops.mlp(api, folder)
    resumed = loops.resumed_mlp(api, folder, folder / "middle")
    shared = [key for key in resumed if key in whole and key.startswith("step")]
    assert len(shared) == 32
    for key in shared:
        assert resumed[key].tobytes() == whole[key].tobytes(), key


@pytest.mark.parametrize("name", [*loops.RESUMED, "custom"])
def test_checkpoints_in_the_middle_are_alike(name, old, tmp_path):
    folder = copy(old, name, tmp_path)
    before = read_checkpoint(folder / "middle")
    loops.LOOPS[name](api, folder)
    after = read_checkpoint(folder / "middle")
    assert (list(after.trainable), list(after.frozen)) == (list(before.trainable), list(before.frozen))
    assert after.properties == before.properties
    (was,), (resumed,) = before.groups.values(), after.groups.values()
    assert (resumed.step, resumed.initial_learning_rate) == (was.step, was.initial_learning_rate)
    assert {name: list(arrays) for name, arrays in resumed.momentums.items()} == {
        name: list(arrays) for name, arrays in was.momentums.items()
    }
    for parameter, arrays in was.momentums.items():
        for moment, array in arrays.items():
            close({"m": resumed.momentums[parameter][moment]}, {"m": array})


def module_state(path):
    """The module's state in a checkpoint file, without the values."""
    state = flatbuffer.read(path.read_bytes(), CHECKPOINT, b"ODTC")["module_state"]
    for tensor in (*state["requires_grad_params"], *state["frozen_params"]):
        del tensor["raw_data"]
    return state


@pytest.mark.parametrize("name", ["nominal_checkpoint", "nominal"])
def test_nominal_checkpoints_are_alike(name, old, ours, tmp_path):
    """Of `generate_artifacts`, and of a nominal state that was saved, where the old package writes values."""
    folder = copy(ours, "mlp", tmp_path)
    loops.errors(api, folder)
    state = module_state(folder / name)
    assert state == module_state(old / "mlp" / name)
    assert {tuple(tensor["dims"]) for tensor in state["requires_grad_params"]} == {()}
    assert read_checkpoint(old / "mlp" / name).nominal


def test_the_exported_model(old, tmp_path):
    folder = copy(old, "cnn", tmp_path)
    theirs = (folder / "exported.onnx").read_bytes()
    loops.cnn(api, folder)
    exported = onnx.load(folder / "exported.onnx")
    onnx.checker.check_model(exported, full_check=True)
    assert {node.op_type for node in exported.graph.node} <= {
        "Conv",
        "BatchNormalization",
        "Relu",
        "Flatten",
        "MatMul",
    }
    x, _ = loops.images(3)
    results = [
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(["logits"], {"x": x})[0]
        for content in (exported.SerializeToString(), theirs)
    ]
    close({"logits": results[0]}, {"logits": results[1]})


def test_a_label_out_of_range_raises(old, tmp_path):
    """The old package gives a loss."""
    run = loops.Run(api, copy(old, "mlp", tmp_path))
    x, labels = loops.vectors(0)
    with pytest.raises(RuntimeError, match=r"(?i)out of (range|bounds)"):
        run.module(x, labels + 3)
    assert not run.state.parameters["w1"].grad.any()
