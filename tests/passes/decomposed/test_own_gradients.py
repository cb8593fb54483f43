"""`differentiate` of a batch norm in primitives: one op forward, and one backward."""

from __future__ import annotations

import pytest

import bngrad
from passes.decomposed import own_graphs
from passes.decomposed.recognition import batch_norms, outputs, primitives, require_close

WRT = ["x", "scale", "bias"]


@pytest.mark.parametrize(
    ("form", "rank", "relu"),
    [(form, rank, bool((list(own_graphs.FORMS).index(form) + rank) % 2)) for form, rank in own_graphs.forms()],
)
def test_gradients(form, rank, relu):
    model, values = own_graphs.forward(form, rank, relu=relu), own_graphs.feeds(rank)
    result = bngrad.differentiate(model, loss="loss", wrt=WRT, defaults=False)
    if form != "matmul":  # there the ones may be weights, see `prepare_forward`
        assert batch_norms(result) == (1, 1, 1)
        assert primitives(result) == {"ReduceSum": 1}
    require_close(outputs(result, values), own_graphs.expected(values, relu=relu), 1e-5)
