"""Gradients at limits and ties of files of tf2onnx, beside TensorFlow's; see docs/reference/ties.md."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bngrad

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(run_in_keras, tmp_path_factory):
    path = tmp_path_factory.mktemp("ties")
    run_in_keras(Path(__file__).parent / "ties.py", path)
    return path


def test_gradients_are_those_of_tensorflow(folder):
    rows = json.loads((folder / "ties.json").read_text(encoding="utf-8"))
    names = [f"x{i}" for i in range(len(rows))]
    graph = bngrad.differentiate(folder / "ties.onnx", wrt=names)
    gradients = bngrad.read_training_graph(graph).gradients
    feeds = {name: np.array(point, np.float32) for name, (point, _) in zip(names, rows.values(), strict=True)}
    got = bngrad.session(graph).run([gradients[name] for name in names], feeds)
    wrong = {
        name: (value.tolist(), right)
        for (name, (_, right)), value in zip(rows.items(), got, strict=True)
        if not np.allclose(value, right, 1e-4, 1e-5)
    }
    assert not wrong, wrong
