"""Batch norm spelled in primitives -> the ops of ``bngrad``.

::

    Y = (X - mean(X)) / sqrt(var(X) + epsilon) * scale + bias, in any spelling
    =>  Y, new_mean, new_var, saved_mean, saved_inv_std =
            bngrad.BatchNormalizationTraining(X, scale, bias, 0, 0, axes)        {epsilon, momentum=0}

    dX, dscale, dbias, the gradients of that, in any spelling
    =>  dX, dscale, dbias = bngrad.BatchNormalizationGrad(dY, X, scale, mean, inv_std, axes)

With a momentum of 0 the op returns the batch's statistics as the new running ones. The nodes that update running
averages read these, and stay primitives. A batch norm with given statistics becomes ONNX's BatchNormalization, and
its gradient a BatchNormalizationGrad with training_mode = 0.

A value is a batch norm if its normal form is one (`algebra`, `split_form`), in any spelling, and if the
primitives and the op compute the same numbers in float64 (`proof`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.subgraphs import subgraphs
from bngrad.io.domains import import_bngrad
from bngrad.opset.functions import DOMAIN
from bngrad.passes.imports.decomposed.graph_rewrite import GraphRewrite

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bngrad.passes.imports.decomposed.candidates import Candidate

CANDIDATES = "bngrad.decomposed"
"""The key in a model's ``meta`` for the result of `candidates_of`."""

_ROUNDS = 3


class ImportDecomposedPass(ir.passes.InPlacePass):
    """Recognizes batch norms, forward and backward, in the main graph, subgraphs and functions.

    Matches: data of rank 2 to 8 with any layout, whose first dimension is reduced and one is not.
    Leaves alone: everything that is not equal to a batch norm, with the reason in `candidates_of`.
    Guarantees: the outputs keep their names; the values of the graph differ by rounding at most.

    Args:
        kept: Initializers that are weights, not constants, even if all their elements are equal.
        forward_only: Whether to leave gradients alone, as the graph is differentiated next.
    """

    def __init__(self, *, kept: Collection[ir.Value] = (), forward_only: bool = False) -> None:
        super().__init__()
        self._kept, self._forward_only = frozenset(kept), forward_only

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        names = Names(model)
        candidates: list[Candidate] = []
        modified = False
        for graph in _graphs(model):
            refused: list[Candidate] = []
            for turn in range(_ROUNDS):
                rewrite = self._rewrite(graph, names, inner=turn > 0)
                taken = rewrite.run()
                candidates += taken
                refused = rewrite.refused
                modified |= bool(taken)
                if not taken and (turn or not rewrite.has_roots):
                    break
            candidates += refused
        if modified:
            import_bngrad(model)
        model.meta[CANDIDATES] = candidates
        return ir.passes.PassResult(model, modified=modified)

    def may_find_any(self, model: ir.Model) -> bool:
        """Returns whether a graph of a model normalizes anything; else the pass changes nothing."""
        names = Names(model)
        return any(self._rewrite(graph, names, inner=False).has_roots for graph in _graphs(model))

    def _rewrite(self, graph: ir.Graph, names: Names, *, inner: bool) -> GraphRewrite:
        return GraphRewrite(graph, names, self._kept, inner=inner, forward_only=self._forward_only)


def candidates_of(model: ir.Model) -> list[Candidate]:
    """The candidates that the pass recorded in a model: replaced batch norms and near misses."""
    return list(model.meta.get(CANDIDATES, ()))


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, its subgraphs, and those of functions other than the definitions of bngrad ops."""
    roots = [model.graph, *(function.graph for function in model.functions.values() if function.domain != DOMAIN)]
    while roots:
        graph = roots.pop()
        yield graph
        for node in list(graph):
            roots += subgraphs(node)
