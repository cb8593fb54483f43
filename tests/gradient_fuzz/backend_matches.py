"""The batch norms that the recognition pass takes in onnx's backend models and their gradients.

    python tests/gradient_fuzz/backend_matches.py

It prints the table of docs/measurements/recognition.md, and exits with 1 if it takes a batch norm in another graph
than those of `BATCH_NORMS`.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import click
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import BngradError
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.prepare.infer_types import InferTypesPass
from gradient_fuzz.backend_models import backend_tests, case_of
from gradient_fuzz.cases import Case

WHAT = ("forward graphs", "forward graphs, as differentiate prepares them", "training graphs")

BATCH_NORMS = {("test_mvn", WHAT[2])}
"""The gradient of MeanVarianceNormalization over the axes 0, 2 and 3 has a batch norm without parameters."""


def taken(model: ir.Model, *, forward_only: bool = False) -> list[str]:
    """The kinds of the batch norms that the pass takes."""
    InferTypesPass()(model)
    ImportDecomposedPass(forward_only=forward_only)(model)
    return [candidate.kind for candidate in candidates_of(model) if candidate.taken]


def graph_of(test: object) -> onnx.ModelProto:
    """The forward model of a test."""
    return test.model if test.model is not None else onnx.load(Path(test.model_dir) / "model.onnx")


def gradients_of(test: object) -> ir.Model | None:
    """The training graph of a test's model, before it is rewritten; None if it has none."""
    try:
        case = case_of(test)
        if isinstance(case, Case):
            return training_graph(ir.from_proto(case.model), loss="loss", wrt=list(case.wrt)).model
    except (BngradError, TypeError, ValueError):
        pass
    return None


@click.command()
def main() -> None:
    """Print the number of graphs, and of batch norms that the pass takes in them."""
    warnings.simplefilter("ignore")
    unexpected = False
    graphs, matches = Counter(dict.fromkeys(WHAT, 0)), Counter(dict.fromkeys(WHAT, 0))
    for test in backend_tests():
        forward, gradients = graph_of(test), gradients_of(test)
        taken_kinds = {
            WHAT[0]: taken(ir.from_proto(forward)),
            WHAT[1]: taken(ir.from_proto(forward), forward_only=True),
        }
        if gradients is not None:
            taken_kinds[WHAT[2]] = taken(gradients)
        for what, kinds in taken_kinds.items():
            graphs[what] += 1
            matches[what] += len(kinds)
            if kinds and (test.name, what) not in BATCH_NORMS:
                unexpected = True
                print(f"TAKEN {test.name}: {what}: {kinds}", file=sys.stderr)
    print("| what | graphs | taken |\n|---|---|---|")
    for what in WHAT:
        print(f"| {what} | {graphs[what]:,} | {matches[what]} |")
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
