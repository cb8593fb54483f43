"""Normalizations that are not batch norm stay what they are, forward and backward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest
from other_norms import BATCHES, NORMS, batch_norm, ghost_batch_norm, instance_norm_as_batch_norm, model_of

import bngrad
from bngrad.passes.imports.decomposed.axes import Axes
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.prepare.infer_types import InferTypesPass
from gradient_fuzz import backend_models

DOCUMENT = Path(__file__).parents[3] / "docs" / "measurements" / "recognition.md"

CASES = [
    pytest.param(
        *(norm, layout, batch),
        id=f"{norm.__name__}-{layout}-{batch}",
        marks=[] if batch == BATCHES[(norms + place) % len(BATCHES)] else [pytest.mark.long],
    )
    for norms, (norm, layouts) in enumerate(NORMS.items())
    for place, layout in enumerate(layouts)
    for batch in BATCHES
    if batch != 1 or norm not in (ghost_batch_norm, instance_norm_as_batch_norm)  # the last is one then
]


def found(model, **options):
    """Returns the candidates that the pass finds in a model."""
    InferTypesPass()(model)
    ImportDecomposedPass(**options)(model)
    return candidates_of(model)


def gradients_of(proto):
    names = [value.name for value in proto.graph.input if value.name != "weights"]
    return ir.from_proto(bngrad.differentiate(proto, loss="loss", wrt=names, functions=False))


def taken(candidates):
    return sorted(candidate.kind for candidate in candidates if candidate.taken)


@pytest.mark.parametrize(("norm", "layout", "batch"), CASES)
def test_other_norm(norm, layout, batch):
    proto = model_of(norm, layout, batch)
    for forward_only in (True, False):
        assert taken(found(ir.from_proto(proto), forward_only=forward_only)) == []
    gradients = gradients_of(proto)
    assert {node.domain for node in gradients.graph} == {""}
    assert taken(found(gradients)) == []


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "TNC", "NC"])
@pytest.mark.parametrize("batch", [2, "N"])
def test_batch_norm(layout, batch):
    """The same writer's batch norm is recognized, so the others are not missed for another reason."""
    proto = model_of(batch_norm, layout, batch)
    assert taken(found(ir.from_proto(proto))) == ["forward"]

    assert "bngrad" in {node.domain for node in gradients_of(proto).graph}


def test_long_chain_of_equal_axes():
    axes = Axes()
    first = axes.new(3)
    last = first
    for _ in range(5000):
        following = axes.new(3)
        assert axes.equate(last, following)
        last = following
    assert axes.basic(first) == last


@pytest.mark.long
def test_backend_models():
    """The table in docs/measurements/recognition.md is that of now, and nothing is taken."""
    program = Path(backend_models.__file__).with_name("backend_matches.py")
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() in DOCUMENT.read_text(encoding="utf-8")
