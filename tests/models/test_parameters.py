"""Seeded draws, and the one-step save."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from models import training
from models.parameters import Parameters

DRAWS = ["weight", "around_zero", "around_one", "variance"]


@pytest.mark.parametrize("draw", DRAWS)
def test_draw_depends_on_seed_and_name_alone(draw):
    def drawn(seed, name):
        return getattr(Parameters(seed), draw)(name, [4, 3])

    assert drawn(0, "a").dtype == np.float32
    np.testing.assert_array_equal(drawn(0, "a"), drawn(0, "a"))
    assert not (drawn(0, "a") == drawn(0, "b")).any()
    assert not (drawn(0, "a") == drawn(1, "a")).any()


def test_save_makes_the_folder_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "new" / "m.onnx"
    training.save(onnx.ModelProto(ir_version=8), path)
    training.save(onnx.ModelProto(ir_version=9), path)
    assert onnx.load(path).ir_version == 9
    assert list(path.parent.iterdir()) == [path]


def test_failed_save_leaves_the_old_file(tmp_path):
    class Refusing:
        def SerializeToString(self, *, deterministic):  # noqa: N802  protobuf's name
            raise ValueError(f"too large, deterministic={deterministic}")

    path = tmp_path / "m.onnx"
    training.save(onnx.ModelProto(ir_version=8), path)
    with pytest.raises(ValueError, match="too large"):
        training.save(Refusing(), path)
    assert onnx.load(path).ir_version == 8
    assert list(tmp_path.iterdir()) == [path]


def test_missing_graph_element_is_an_error():
    with pytest.raises(TypeError, match="missing"):
        training.known(None)
