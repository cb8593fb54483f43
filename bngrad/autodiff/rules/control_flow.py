"""Gradients of If, Loop and Scan; `bngrad.autodiff.control_flow` builds their nodes.

The gradients after those of the inputs are with respect to the values that the bodies read from around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.control_flow.branches import gradients_of_if
from bngrad.autodiff.control_flow.loops import gradients_of_loop
from bngrad.autodiff.control_flow.repetition import repetition
from bngrad.autodiff.control_flow.steps import LoopSteps, ScanSteps
from bngrad.autodiff.rule import gradient
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.control_flow.steps import Steps
    from bngrad.autodiff.rule import Gradients

_VERSIONS = (16, 19, 21, 23, 24, 25)


@gradient("If", inputs=None, versions=_VERSIONS, attributes={"then_branch": ANY, "else_branch": ANY})
def if_(back: Backward) -> Gradients:
    """If(c, f, g) -> If(c, df, dg): the gradients of the branch taken; 0 for what only the other branch reads."""
    return gradients_of_if(back)


@gradient(
    "Scan",
    inputs=None,
    versions=_VERSIONS,
    attributes=dict.fromkeys(
        (
            *("body", "num_scan_inputs", "scan_input_axes", "scan_input_directions"),
            *("scan_output_axes", "scan_output_directions"),
        ),
        ANY,
    ),
)
def scan(back: Backward) -> Gradients:
    """H', y = f(H, x, w) in each step, with dH' from the step after it.

    In the other direction, dH, dx and the w of this step = df(dH', dy), and dw is the sum over the steps.
    """
    return _of_repetition(back, ScanSteps)


@gradient("Loop", inputs=None, versions=_VERSIONS, attributes={"body": ANY})
def loop(back: Backward) -> Gradients:
    """The same as Scan without scan inputs, by a Loop of as many steps as were done."""
    return _of_repetition(back, LoopSteps)


def _of_repetition(back: Backward, kind: type[Steps]) -> Gradients:
    repeated = repetition(back.node)
    if repeated is None:
        back.refuse("its inputs and outputs are not those of its body; expected as many")
    return gradients_of_loop(back, repeated, kind)
