"""Tests of CheckpointState: parameters, properties and files."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.ort_training.api import CheckpointState, Module, Optimizer
from bngrad.ort_training.checkpoint_file import Checkpoint, read_checkpoint, write_checkpoint
from ort_training import small_artifacts


@pytest.fixture
def state(tmp_path):
    trainable = {
        "w": np.arange(6, dtype="f").reshape(3, 2),
        "scalar": np.array(2, "f"),
        "empty": np.empty((0, 3), "f"),
    }
    write_checkpoint(Checkpoint(trainable, {"mean": np.ones(2, "f"), "count": np.array([3])}), tmp_path / "c")
    return CheckpointState.load_checkpoint(str(tmp_path / "c"))


def test_parameters(state):
    names = ["count", "empty", "mean", "scalar", "w"]
    assert [name for name, _ in state.parameters] == names
    assert [parameter.name for _, parameter in state.parameters] == names
    assert len(state.parameters) == 5
    assert repr(state.parameters) == "Parameters(count, empty, mean, scalar, w)"
    assert repr(state.parameters["w"]) == "Parameter(name=w, requires_grad=True)"
    assert "w" in state.parameters
    assert "v" not in state.parameters
    assert [parameter.requires_grad for _, parameter in state.parameters] == [False, True, False, True, True]
    assert [parameter.grad for _, parameter in state.parameters] == [None] * 5
    assert [parameter.data.shape for _, parameter in state.parameters] == [(1,), (0, 3), (2,), (), (3, 2)]
    assert state.parameters["count"].data.tolist() == [3]


@pytest.mark.parametrize("name", ["w", "mean"])
def test_setting_copies(name, state):
    view = state.parameters[name].data
    for value, set_it in (
        (np.full(view.shape, 4, "f"), lambda value: state.parameters.__setitem__(name, value)),
        (np.full(view.shape, 5, "f"), lambda value: setattr(state.parameters[name], "data", value)),
        (np.asfortranarray(np.full(view.shape, 6, "f")), lambda value: state.parameters.__setitem__(name, value)),
    ):
        set_it(value)
        np.testing.assert_array_equal(view, value)
        value[...] = 0
        assert view.all()


VALUES = {
    "shape": (np.zeros((2, 3), "f"), "parameter 'w' is float32[3, 2]; it cannot be set to float32[2, 3]"),
    "broadcast": (np.zeros((1, 2), "f"), "it cannot be set to float32[1, 2]"),
    "number": (1.0, "it cannot be set to float64[]"),
    "dtype": (np.zeros((3, 2)), "it cannot be set to float64[3, 2]"),
    "list": ([[0, 0]] * 3, "it cannot be set to int64[3, 2]"),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_that_are_refused(case, state):
    value, message = VALUES[case]
    with pytest.raises(RuntimeError) as caught:
        state.parameters["w"] = value
    assert message in str(caught.value)
    assert isinstance(caught.value, InputError)
    with pytest.raises(RuntimeError):
        state.parameters["w"].data = value
    np.testing.assert_array_equal(state.parameters["w"].data.ravel(), np.arange(6))


def test_unknown_names(state):
    for use in (
        lambda: state.parameters["v"],
        lambda: state.parameters.__setitem__("v", np.zeros(1, "f")),
        lambda: state.properties["v"],
    ):
        with pytest.raises(KeyError, match=r"v not found"):
            use()


PROPERTIES = {
    "int": (3, 3),
    "bool": (True, 1),
    "numpy-int": (np.int32(-4), -4),
    "largest": (2**63 - 1, 2**63 - 1),
    "float": (0.1, float(np.float32(0.1))),
    "numpy-float": (np.float64(2.5), 2.5),
    "infinity": (float("inf"), float("inf")),
    "str": ("grün", "grün"),
    "empty": ("", ""),
}


@pytest.mark.parametrize("case", PROPERTIES)
def test_property(case, state, tmp_path):
    value, expected = PROPERTIES[case]
    state.properties["p"] = "of another type before"
    state.properties["p"] = value
    assert (type(state.properties["p"]), state.properties["p"]) == (type(expected), expected)
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    again = CheckpointState.load_checkpoint(tmp_path / "saved").properties
    assert list(again) == [("p", expected)]
    assert repr(again) == f"Properties({{'p': {expected!r}}})"


def test_properties(state):
    state.properties["b"], state.properties["a"] = 1, "x"
    assert list(state.properties) == [("a", "x"), ("b", 1)]
    assert len(state.properties) == 2
    assert "a" in state.properties
    assert "c" not in state.properties


@pytest.mark.parametrize("value", [None, [1], b"bytes", 1j, np.zeros(2)], ids=str)
def test_properties_of_other_types(value, state):
    with pytest.raises(TypeError, match="expected int, float or str"):
        state.properties["p"] = value
    assert "p" not in state.properties


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1e60], ids=str)
def test_properties_that_do_not_fit(value, state):
    with pytest.raises(RuntimeError, match="property 'p' does not fit"):
        state.properties["p"] = value
    assert len(state.properties) == 0


def test_saving_sorts_names(state, tmp_path):
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    saved = read_checkpoint(tmp_path / "saved")
    assert (list(saved.trainable), list(saved.frozen)) == (["empty", "scalar", "w"], ["count", "mean"])
    assert saved.trainable["scalar"].shape == ()


def test_what_has_no_moments_yet(linear, tmp_path):
    state = CheckpointState.load_checkpoint(linear / "checkpoint")
    Module(linear / "training_model.onnx", state)
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    assert read_checkpoint(tmp_path / "saved").groups == {}


@pytest.mark.parametrize("name", ["missing", ""], ids=["missing", "a-folder"])
def test_files_that_are_refused(name, tmp_path, state):
    with pytest.raises(RuntimeError, match="cannot be read"):
        CheckpointState.load_checkpoint(tmp_path / name)
    with pytest.raises(RuntimeError, match="cannot be written"):
        CheckpointState.save_checkpoint(state, tmp_path / "no" / "folder")


@pytest.mark.parametrize("value", ["checkpoint", None, {}], ids=str)
def test_a_state_is_made_by_loading(value):
    with pytest.raises(TypeError, match="Invalid argument for CheckpointState"):
        CheckpointState(value)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda state: pickle.loads(pickle.dumps(state))}  # noqa: S301


@pytest.mark.parametrize("trained", [False, True], ids=["loaded", "trained"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_trains_as_its_original(how, trained, tmp_path):
    folder = small_artifacts.linear(tmp_path)

    def step(state):
        module = Module(folder / "training_model.onnx", state)
        optimizer = Optimizer(folder / "adamw.onnx", module)
        module.lazy_reset_grad()
        module(*small_artifacts.batch())
        optimizer.step()
        return {name: parameter.data.copy() for name, parameter in state.parameters}

    original = CheckpointState.load_checkpoint(folder / "checkpoint")
    before = step(original) if trained else {name: p.data.copy() for name, p in original.parameters}
    twin = COPIES[how](original)
    moved = step(twin)
    assert any(not np.array_equal(moved[name], before[name]) for name in before)
    for name, parameter in original.parameters:
        np.testing.assert_array_equal(parameter.data, before[name])
    twin.properties["epoch"] = 1
    assert len(original.properties) == 0
    for name, value in step(original).items():
        np.testing.assert_array_equal(value, moved[name])


@pytest.mark.parametrize("name", [3, None, b"epoch"])
def test_property_names_that_are_no_strings(name, state, tmp_path):
    state.properties["epoch"] = 1
    with pytest.raises(TypeError, match=r"of a property is a .*; expected str"):
        state.properties[name] = 2
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    assert dict(CheckpointState.load_checkpoint(tmp_path / "saved").properties) == {"epoch": 1}


def test_two_states_of_one_share_it(state):
    other = CheckpointState(state=state._state)
    other.parameters["w"].data[...] = 5
    other.properties["epoch"] = 2
    assert (state.parameters["w"].data == 5).all()
    assert state.properties["epoch"] == 2


def test_a_nominal_file_has_scalars_without_values(tmp_path):
    path = tmp_path / "nominal"
    write_checkpoint(Checkpoint({"w": np.ones((3, 2), "f")}, {"m": np.ones(2)}, nominal=True), path)
    checkpoint = read_checkpoint(path)
    assert (checkpoint.nominal, checkpoint.trainable["w"].size, checkpoint.frozen["m"].dtype) == (
        True,
        0,
        np.float64,
    )
    assert path.stat().st_size < 300
