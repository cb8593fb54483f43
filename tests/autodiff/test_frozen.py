"""Whole networks with frozen batch norms, all or some: bngrad is right where ORT's builder is wrong."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.oracle import prepare_forward
from bngrad.runtime.session import IMPLEMENTATIONS, session
from bngrad.training.differentiate import differentiate
from bngrad.validation.float64 import Evaluator
from bngrad.validation.forward import forward_part
from bngrad.validation.numeric import central_differences
from models import digits_resnet20

FROZEN = {"all": ["*"], "some": ["stem.bn", "stage2.*"]}
BATCH = 2


@pytest.fixture(scope="module")
def forward():
    return digits_resnet20.build(seed=3)


@pytest.fixture(scope="module")
def feeds(forward):
    images, labels = digits_resnet20.digits()
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in forward.graph.initializer}
    return {**weights, "images": images[:BATCH], "labels": labels[:BATCH]}


@pytest.fixture(scope="module", params=FROZEN)
def frozen(request):
    """The patterns of the batch norms that are frozen."""
    return FROZEN[request.param]


@pytest.fixture(scope="module")
def graph(forward, frozen):
    return differentiate(ir.from_proto(forward), loss="loss", frozen=frozen)


@pytest.fixture(scope="module")
def tested(graph):
    """The same graph in float64."""
    return Evaluator(ir.to_proto(graph.model))


@pytest.fixture(scope="module")
def exact(tested, feeds):
    return tested(feeds)


def test_central_differences(graph, tested, feeds):
    forward = forward_part(graph.model, "loss")
    check = central_differences(tested, feeds, gradients=graph.gradients, forward=forward, loss="loss", seed=1)
    assert not check.skipped
    assert len(check.rows) == len(graph.gradients)
    assert not check.failures, check.failures[:3]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_on_stock(graph, feeds, exact, implementation):
    runner = session(graph.model, implementation)
    names = [output.name for output in runner.get_outputs()]
    for name, got in zip(names, runner.run(names, feeds), strict=True):
        scale = np.max(np.abs(exact[name]))
        assert np.max(np.abs(got - exact[name])) <= 1e-4 * scale, name


def test_ort_builder_is_right_once_they_are_spelled_out(forward, frozen, feeds, exact, oracle):
    model = in_frozen_mode(forward, frozen)
    prepared = prepare_forward(model, "loss")
    assert any("frozen BatchNormalization written as arithmetic" in note for note in prepared.notes)
    worst = worst_error(oracle, prepared, feeds, exact)
    assert worst <= 1e-4


def test_ort_builder_fails_the_same_check_when_it_is_left_to_itself(forward, frozen, feeds, exact, oracle):
    """It converts every frozen batch norm to training mode, without a message."""
    prepared = prepare_forward(forward, "loss")
    model = in_frozen_mode(ir.to_proto(prepared.model), frozen)
    worst = worst_error(oracle, prepared._replace(model=model), feeds, exact)
    assert worst > 0.1


def in_frozen_mode(model, patterns):
    """A copy with training_mode = 0, and so one output, at the batch norms of these names."""
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    dropped = set()
    for node in frozen.graph.node:
        if node.op_type == "BatchNormalization" and any(fnmatchcase(node.name, p) for p in patterns):
            dropped |= set(node.output[1:])
            del node.output[1:]
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
    kept = [output for output in frozen.graph.output if output.name not in dropped]
    del frozen.graph.output[:]
    frozen.graph.output.extend(kept)
    return frozen


def worst_error(oracle, prepared, feeds, exact):
    """The largest error of a gradient by ORT, relative to the largest element of the exact one."""
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    names = [f"{name}_grad" for name in prepared.wrt]
    inputs = {value.name for value in training.graph.inputs}
    values = oracle.run(training, {name: array for name, array in feeds.items() if name in inputs}, names)
    return max(np.max(np.abs(values[n] - exact[n])) / max(np.max(np.abs(exact[n])), 1e-6) for n in names)
