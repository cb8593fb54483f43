from __future__ import annotations

import pytest

from bngrad.ort_training.api import CheckpointState, Module
from ort_training import small_artifacts


@pytest.fixture
def linear(tmp_path):
    """The folder with the artifacts of a linear model."""
    return small_artifacts.linear(tmp_path)


@pytest.fixture
def state(linear):
    return CheckpointState.load_checkpoint(linear / "checkpoint")


@pytest.fixture
def module(linear, state):
    return Module(linear / "training_model.onnx", state, linear / "eval_model.onnx")
