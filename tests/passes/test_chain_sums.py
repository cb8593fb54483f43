"""Sums of a gradient's contributions, one after the other."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.passes.optimize.chain_sums import ChainSumsPass
from pass_models import close, header, model, ops, proto, run

TEXT = (
    header(18)
    + """g (float[N] a, float[N] b, float[N] c) => (float[N] y) {
    [%s] y = Sum (%s)
}"""
)


@pytest.mark.parametrize(
    ("name", "inputs", "after"),
    [
        ("AccumulateGrad_x_grad", "a, b", ["Add"]),
        ("AccumulateGrad_x_grad", "a, b, c", ["Add", "Add"]),
        ("AccumulateGrad_x_grad", "a, b, a, c, b", ["Add"] * 4),
        ("AccumulateGrad_x_grad", "a", ["Sum"]),
        ("of_the_model", "a, b", ["Sum"]),
    ],
)
def test_what_becomes_of_a_sum(name, inputs, after, rng):
    text = TEXT % (name, inputs)
    ir_model = model(text)
    changed = ChainSumsPass()(ir_model).modified
    assert ops(ir_model) == after
    assert changed == (after != ["Sum"])
    assert [value.name for value in ir_model.graph.outputs] == ["y"]
    feeds = {name: rng.standard_normal(7, np.float32) for name in "abc" if name in inputs}
    used = proto(text)
    kept = [value for value in used.graph.input if value.name in feeds]
    del used.graph.input[:]
    used.graph.input.extend(kept)
    ir_model.graph.inputs[:] = [value for value in ir_model.graph.inputs if value.name in feeds]
    close(run(ir.to_proto(ir_model), feeds), run(used, feeds), 0)
