"""`validate` finds each injected fault, and names the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import pytest

import bngrad
from bngrad.oracle import prepare_forward
from bngrad.passes.pipeline import rewrite
from bngrad.validation.inputs import bind_dimensions, draw_inputs
from faults import FAULTS
from models import digits_resnet20, light
from test_one_percent import network as small

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from bngrad.oracle import Oracle

pytestmark = pytest.mark.usefixtures("shared_oracle")


def _training_graph(
    forward: onnx.ModelProto, batch: int, oracle: Oracle
) -> tuple[ir.Model, dict[str, np.ndarray]]:
    model = ir.from_proto(forward)
    bind_dimensions(model, {"N": batch}, {})
    prepared = prepare_forward(ir.to_proto(model))
    original = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    feeds = draw_inputs(rewrite(original, target="training").model, arrays=prepared.values, seed=1)
    return original, feeds


@pytest.fixture(scope="module")
def networks(oracle):
    """The training graph and inputs of a network, made once."""
    graphs = {}

    def network(name):
        if name not in graphs:
            build = {"small": small, "digits_resnet20": digits_resnet20.build}.get(
                name, lambda: light.prepare(name)
            )
            graphs[name] = _training_graph(build(), 2, oracle)
        return graphs[name]

    return network


def _last_gradient(model: ir.Model, index: int) -> ir.Node:
    """A gradient near the loss, where M is small enough for M - 1 to show in a float."""
    nodes = [node for node in model.graph if node.op_type == "BatchNormalizationGrad"]
    return nodes[min(index, len(nodes) - 1)]  # the small network has one


LONG = pytest.mark.long
DROPPED, SMALLEST = "xhat term dropped", "1e-4 in one channel"
CASES = [
    *(pytest.param("small", fault, id=f"small-{fault}") for fault in FAULTS),
    *(
        pytest.param("digits_resnet20", fault, id=f"digits-{fault}", marks=() if fault == DROPPED else LONG)
        for fault in FAULTS
    ),
    *(pytest.param("shufflenet", fault, id=f"shufflenet-{fault}", marks=LONG) for fault in FAULTS),
    *(pytest.param("densenet121", fault, id=f"densenet121-{fault}", marks=LONG) for fault in FAULTS),
]


@pytest.mark.parametrize(("network", "fault"), CASES)
def test_injected_fault_is_found_and_named(networks, network, fault):
    original, feeds = networks(network)
    wrong = rewrite(original, target="training").model
    node = _last_gradient(wrong, 1)
    name = node.name
    FAULTS[fault](wrong, node)

    report = bngrad.validate(original, rewritten=wrong, inputs=feeds, implementation="function")

    assert not report.passed
    lock_step = next(check for check in report.checks if check.name == "lock-step")
    assert {row.subject for row in lock_step.failures} == {name}


@pytest.mark.parametrize("network", ["digits_resnet20", pytest.param("shufflenet", marks=LONG)])
def test_right_rewrite_passes(networks, network):
    original, feeds = networks(network)
    report = bngrad.validate(original, inputs=feeds, implementation="function")
    assert report.passed
    assert [check.skipped for check in report.checks] == ["", "", ""]


DIGITS = [pytest.param("digits_resnet20", fault, marks=LONG) for fault in FAULTS]


@pytest.mark.parametrize(("network", "fault"), [("small", DROPPED), ("small", SMALLEST), *DIGITS])
def test_float64_finds_a_fault_in_a_whole_graph(networks, network, fault):
    original, feeds = networks(network)
    wrong = rewrite(original, target="training").model
    FAULTS[fault](wrong, _last_gradient(wrong, 10))
    report = bngrad.validate(
        original, rewritten=wrong, inputs=feeds, against="reference", implementation="function"
    )
    whole = next(check for check in report.checks if check.name == "float64")
    assert whole.failures


SHOWN = [case for case in DIGITS if case.values[1] != SMALLEST]
"""The smallest fault changes the gradients of the digits by 6e-6 of their size. The limit is 1e-5."""


@pytest.mark.parametrize(("network", "fault"), [("small", DROPPED), ("small", "M off by one"), *SHOWN])
def test_central_differences_find_a_fault(networks, network, fault):
    original, feeds = networks(network)
    wrong = rewrite(original, target="training").model
    FAULTS[fault](wrong, _last_gradient(wrong, 10))
    report = bngrad.validate(original, rewritten=wrong, inputs=feeds, against="numeric", implementation="function")
    assert not report.passed
