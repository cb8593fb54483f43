"""Errors of batch norms in primitives and of the ops that replace them, against float64.

    python tests/bench/bench_recognized_errors.py MODEL [MODEL ...] [--shift 10]

MODEL and MODEL.npz are those of `bench_recognized_steps.py`. Each batch norm that is recognized is cut out of both
graphs together with its gradient, and both parts run by themselves on the values that the graph in primitives has
there: no ReLU elsewhere magnifies a difference. The reference is the part with the ops in float64 NumPy; the other
part in float64 has to agree with it. Errors are 2-norms of the difference over that of the reference. --shift adds
as many standard deviations to the data of each batch norm. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.opset.functions import DOMAIN
from bngrad.passes.pipeline import for_target
from bngrad.runtime.session import session
from bngrad.validation.float64 import Evaluator
from bngrad.validation.inputs import feeds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    Arrays = dict[str, np.ndarray]

KINDS = {
    "BatchNormalizationTraining": ("Y", "mean", "variance", "mean", "inv_std"),
    "BatchNormalizationGrad": ("dX", "dscale", "dbias"),
}

LARGEST_DIFFERENCE = 1e-5
"""Of the two parts in float64: some of those in primitives have 1 / N in float32, or compute the data again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--shift", type=float, default=0.0)
    options = parser.parse_args()
    for path in options.models:
        model = ir.load(path)
        before, after = (
            for_target(model, target="stock", functions=False, fuse=False, recognize=recognize)[0]
            for recognize in (False, True)
        )
        with np.load(path.with_suffix(".npz")) as recorded:
            feeds = feeds_of(before, dict(recorded))
        report(path.stem, errors(before, after, feeds, options.shift))


class Site:
    """A batch norm of the recognized graph with its gradients, and where both graphs have the same values.

    Args:
        node: The BatchNormalizationTraining.
        values: The values of the graph in primitives by name.
        own: The names of the nodes of the graph in primitives.
    """

    def __init__(self, node: ir.Node, values: dict[str, ir.Value], own: set[str]) -> None:
        self._values, self._own = values, own
        nodes = {use.node: None for value in node.outputs for use in value.uses() if use.node.op_type in KINDS}
        self.data = node.inputs[0].name
        self.inputs: dict[str, None] = {}
        self.outputs: dict[str, str] = {}
        for member in (node, *nodes):
            inside = {value for other in (node, *nodes) for value in other.outputs}
            for value in member.inputs:
                if value not in inside:
                    self.inputs |= dict.fromkeys(self._sources(value))
            for kind, value in zip(KINDS[member.op_type], member.outputs, strict=True):
                self.outputs |= dict.fromkeys(self._results(value), kind)
        self.inputs = {name: None for name in self.inputs if name not in self.outputs}

    def _sources(self, value: ir.Value) -> Iterator[str]:
        """The names of the values in both graphs that a value is computed from."""
        node = value.producer()
        if value.const_value is not None and not value.is_graph_input():
            return
        if value.name in self._values and (node is None or node.op_type != "Constant"):
            yield value.name
        elif node is not None:
            for source in node.inputs:
                yield from self._sources(source)

    def _results(self, value: ir.Value) -> Iterator[str]:
        """The names of the values in both graphs that only this graph's nodes compute from a value."""
        if value.name in self._values:
            yield value.name
            return
        for use in value.uses():
            if use.node.name not in self._own and use.node.op_type not in KINDS:
                for output in use.node.outputs:
                    yield from self._results(output)


def errors(before: ir.Model, after: ir.Model, feeds: Arrays, shift: float) -> dict[str, list[tuple[float, ...]]]:
    """The errors before and after, and how far the references are apart, for each tensor of a kind."""
    by_name = ir.convenience.create_value_mapping(before.graph, include_subgraphs=False)
    own = {node.name for node in before.graph}
    ops = (node for node in after.graph if node.domain == DOMAIN)
    sites = [Site(node, by_name, own) for node in ops if node.op_type == "BatchNormalizationTraining"]
    values = captured(before, {name for site in sites for name in site.inputs} - feeds.keys(), feeds) | feeds
    rows = defaultdict(list)
    for site in sites:
        here = dict(values)
        if shift:
            data = values[site.data]
            here[site.data] = data + np.float32(shift) * data.std()
        parts = [part(model, site, here) for model in (before, after)]
        fed = [feeds_of(model, here) for model in parts]
        got = [
            dict(zip(site.outputs, session(model).run(list(site.outputs), arrays), strict=True))
            for model, arrays in zip(parts, fed, strict=True)
        ]
        other, want = (Evaluator(ir.to_proto(model))(arrays) for model, arrays in zip(parts, fed, strict=True))
        for name, kind in site.outputs.items():
            *distances, apart = (distance(results[name], want[name]) for results in (*got, other))
            if apart > LARGEST_DIFFERENCE:
                raise SystemExit(
                    f"{name}: the parts differ by {apart:.1e} in float64; they do not have the same data"
                )
            rows[kind].append((*distances, apart))
    return rows


def captured(model: ir.Model, names: set[str], feeds: Arrays) -> Arrays:
    """Values inside of a graph."""
    model = model.clone()
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    outputs = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(values[name] for name in sorted(names - outputs))
    return dict(zip(sorted(names), session(model).run(sorted(names), feeds), strict=True))


def part(model: ir.Model, site: Site, values: Arrays) -> ir.Model:
    """The part of a graph between the inputs and the outputs of a site."""
    inputs = dict.fromkeys([*site.inputs, *(value.name for value in model.graph.inputs)])
    graph = ir.convenience.extract(model.graph, list(inputs), list(site.outputs))
    for value in list(graph.inputs):
        if not value.uses():
            graph.inputs.remove(value)
        else:
            value.shape = ir.Shape(values[value.name].shape)
    return ir.Model(graph, ir_version=model.ir_version)


def distance(got: np.ndarray, want: np.ndarray) -> float:
    """The 2-norm of the difference over that of the reference."""
    norm = float(np.linalg.norm(want))
    return float(np.linalg.norm(got.astype(np.float64) - want)) / (norm or 1.0)


def report(name: str, rows: dict[str, list[tuple[float, ...]]]) -> None:
    """Prints a line for each kind of tensor, and one for all."""
    print(f"{name}: error in primitives, of the ops: median (worst)")
    for kind, numbers in (*rows.items(), ("all", [row for group in rows.values() for row in group])):
        before, after, other = np.transpose(numbers)
        ratios = after / np.maximum(before, np.finfo(np.float64).eps)
        print(
            f"  {kind:9} {len(numbers):4} tensors: {np.median(before):.1e} ({before.max():.1e})  "
            f"{np.median(after):.1e} ({after.max():.1e}); of the ops over in primitives: median "
            f"{np.median(ratios):.2f}, most {ratios.max():.2f}, above 1 {np.sum(ratios > 1)}, above 2 "
            f"{np.sum(ratios > 2)}; references differ by {other.max():.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
