"""Gradients of If, Loop and Scan; `bngrad.autodiff.control_flow` builds their nodes.

The gradients after those of the inputs are with respect to the values that the bodies read from around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.control_flow.branches import gradients_of_if
from bngrad.autodiff.rule import gradient
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_VERSIONS = (16, 19, 21, 23, 24, 25)


@gradient("If", inputs=None, versions=_VERSIONS, attributes={"then_branch": ANY, "else_branch": ANY})
def if_(back: Backward) -> Gradients:
    """If(c, f, g) -> If(c, df, dg): the gradients of the branch taken; 0 for what only the other branch reads."""
    return gradients_of_if(back)
