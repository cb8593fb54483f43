"""Relations that must hold between two training steps of a model, whatever the right numbers are.

A relation is a function of a `Run` that returns comparisons. Arrays must be equal bit for bit if the same
operations run in the same order. Otherwise the tolerance is `steps.SAFETY` times the change of the output when
every input changes in its last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bngrad.validation.float64 import evaluate
from metamorphic.comparisons import Comparison, exactly
from metamorphic.forward_models import transposed_dims

if TYPE_CHECKING:
    from collections.abc import Callable

    from metamorphic.forward_models import ForwardModel
    from metamorphic.steps import Run


class Relation(NamedTuple):
    """A relation, with the modes of the batch norms and the models for which it holds."""

    compare: Callable[[Run], list[Comparison]]
    frozen: tuple[bool, ...] = (False, True)
    holds: Callable[[ForwardModel], bool] = lambda _model: True


def nearly(run, got, expected, times=1.0):
    """Returns comparisons of outputs that differ by rounding; ``times`` multiplies the tolerance."""
    return [Comparison(name, got[name], expected[name], times * run.noise[name]) for name in expected]


def _gradients(outputs):
    """Returns the loss and the gradients, without the running statistics."""
    return {name: value for name, value in outputs.items() if not name.startswith("new_")}


def _per_element(run, outputs, function, dim):
    """Applies a function of (array, axis) to the outputs, along each axis with the given name."""
    mapped = {}
    for name, value in outputs.items():
        result = value
        for axis, dimension in enumerate(run.model.dims(name)):
            result = function(result, axis) if dimension == dim else result
        mapped[name] = result
    return mapped


# ---- the same operations in the same order: equal bit for bit ----


def twice(run):
    return exactly(run.step()(run.feeds), run.outputs)


def threads(run):
    return exactly(run.step(threads=3)(run.feeds), run.outputs)


def scaled_loss(run):
    """Multiplying the loss by 2, -1 or 0 multiplies every gradient by it, without rounding."""
    comparisons = []
    for factor in (2, -1, 0):
        got = run.step()({**run.feeds, "gain": np.asarray(run.feeds["gain"] * factor)})
        comparisons += exactly(
            got, {n: value * factor for n, value in _gradients(run.outputs).items()}, f"times {factor}"
        )
    return comparisons


def unfused(run):
    """The gradients of a ReLU and a batch norm may be fused or not."""
    return exactly(run.step(fuse=False)(run.feeds), run.outputs)


def dialect(run):
    """The training graph may be made in ORT's dialect and then rewritten."""
    got = run.step(route="dialect")(run.feeds)
    # Gradients without an op in the dialect are decomposed, which changes the order of summation.
    return nearly(run, got, run.outputs) if run.frozen or run.model.decomposed else exactly(got, run.outputs)


# ---- the same sums in another order ----


def functions(run):
    """The ops may run as functions, without a registered library."""
    return nearly(run, run.step(implementation="function")(run.feeds), run.outputs)


def permuted_batch(run):
    return _permuted(run, "N")


def permuted_channels(run):
    """The channels of a layer may be permuted in all its tensors; if they are the classes, in the targets too."""
    assert run.model.permuted, "the model has no layer"
    return [
        comparison._replace(name=f"{dim}: {comparison.name}")
        for dim in run.model.permuted
        for comparison in _permuted(run, dim)
    ]


def _permuted(run, dim):
    order = np.random.default_rng(3).permutation(run.model.sizes[dim])
    feeds = _per_element(run, run.feeds, lambda a, axis: a.take(order, axis), dim)
    if dim == "K" and "target" in feeds:
        feeds["target"] = np.argsort(order)[feeds["target"]]
    expected = _per_element(run, run.outputs, lambda a, axis: a.take(order, axis), dim)
    return nearly(run, run.step()(feeds), expected)


def transposed(run):
    """The spatial dimensions may be swapped in the data, the weights and the attributes."""

    def swap(arrays):
        dims = {name: run.model.dims(name) for name in arrays}
        moved = {name for name in arrays if transposed_dims(dims[name]) != dims[name]}
        return {name: np.swapaxes(a, -1, -2) if name in moved else a for name, a in arrays.items()}

    return nearly(run, run.step(transposed=True)(swap(run.feeds)), swap(run.outputs))


def halves(run):
    """If frozen, samples are independent: the gradients of the weights are sums over the halves of a batch."""
    size = run.model.sizes["N"]
    parts = []
    for half in (range(size // 2), range(size // 2, size)):
        feeds = _per_element(run, run.feeds, lambda a, axis, half=half: a.take(half, axis), "N")
        parts.append(_gradients(run.step()(feeds)))
    expected = {
        name: np.concatenate([part[name] for part in parts])
        if "N" in run.model.dims(name)
        else parts[0][name] + parts[1][name]
        for name in parts[0]
    }
    return nearly(run, run.outputs, expected)


def doubled_batch(run):
    """A batch concatenated with itself has the same statistics and twice the gradients of the weights."""
    got = run.step()(_per_element(run, run.feeds, lambda a, axis: np.concatenate([a, a], axis), "N"))
    expected = _per_element(run, run.outputs, lambda a, axis: np.concatenate([a, a], axis), "N")
    for name in _gradients(expected):
        if "N" not in run.model.dims(name):
            expected[name] = expected[name] * 2
    return nearly(run, got, expected, times=2)


# ---- properties of batch norm ----


def shifted(run):
    """A bias before a batch norm in training mode changes its running mean, and nothing else."""
    comparisons = []
    for bias, mean, factor in run.model.shifted:
        got = run.step()({**run.feeds, bias: run.feeds[bias] + 1})
        new = f"new_{mean}"
        moved = run.outputs | {new: run.outputs[new] + 0.25 * factor}
        # The shift makes the terms, and thus their rounding errors, larger.
        comparisons += nearly(run, got, moved, times=4)
        zero = np.zeros_like(run.outputs[f"{bias}_grad"])
        comparisons.append(
            Comparison(f"{bias}_grad", run.outputs[f"{bias}_grad"], zero, run.noise[f"{bias}_grad"])
        )
    return comparisons


def running_values(run):
    """The new running values are 3/4 of the old ones plus a part that does not depend on them."""
    names = list(run.model.running)
    moved = {name.removeprefix("new_"): run.feeds[name.removeprefix("new_")] + 2 for name in names}
    got = run.step()({**run.feeds, **moved})
    return nearly(run, got, {name: run.outputs[name] + (1.5 if name in names else 0) for name in run.outputs})


def frozen_on_its_own_statistics(run):
    """A frozen step with the batch's mean and variance has the training loss and the same downstream gradients."""
    statistics = {}
    for name in run.model.running:
        old = run.feeds[name.removeprefix("new_")]
        statistics[name.removeprefix("new_")] = (run.outputs[name] - 0.75 * old) * 4
    got = run.step(frozen=True)({**run.feeds, **statistics})
    # Recovering the batch's statistics from the running ones multiplies their rounding by 8.
    expected = {name: run.outputs[name] for name in ("loss", *run.model.downstream)}
    return nearly(run, got, expected, times=8)


def kept_when_frozen(run):
    """If frozen, the running statistics do not change."""
    return exactly(run.outputs, {name: run.feeds[name.removeprefix("new_")] for name in run.model.running})


# ---- derivatives ----


def differences(run):
    """Each gradient agrees with central differences of the forward model in float64, along a random direction."""
    forward = run.model.proto()
    feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in run.feeds.items()}
    if run.frozen:
        for node in forward.graph.node:
            _freeze(node)
    step, comparisons = 1e-6, []
    for name in run.model.wrt:
        gradient = run.outputs[f"{name}_grad"].astype(np.float64)
        rng = np.random.default_rng(len(name))
        along = rng.uniform(0.5, 1, gradient.shape) * np.sign(gradient) * rng.choice([1, 1, -1], gradient.shape)
        sides = [
            float(evaluate(forward, {**feeds, name: feeds[name] + s * step * along}, ["loss"])["loss"])
            for s in (1, -1)
        ]
        size = np.sum(np.abs(along * gradient))
        rounding = run.noise[f"{name}_grad"] * np.sum(np.abs(along))
        slope = (sides[0] - sides[1]) / (2 * step)
        comparisons.append(
            Comparison(name, np.sum(along * gradient), np.asarray(slope), 1e-5 * size + rounding + 1e-7)
        )
    return comparisons


def _freeze(node):
    """Makes a batch norm use its running statistics."""
    if node.op_type != "BatchNormalization":
        return
    del node.output[1:]
    for attribute in node.attribute:
        if attribute.name == "training_mode":
            attribute.i = 0


RELATIONS = {
    "differences": Relation(differences),
    "unfused": Relation(unfused),
    "dialect": Relation(dialect),
    "functions": Relation(functions),
    "twice": Relation(twice),
    "threads": Relation(threads),
    "scaled loss": Relation(scaled_loss),
    "permuted batch": Relation(permuted_batch),
    "permuted channels": Relation(permuted_channels),
    "transposed": Relation(transposed, holds=lambda model: model.transposable),
    "halves": Relation(halves, frozen=(True,)),
    "doubled batch": Relation(doubled_batch),
    "shifted": Relation(shifted, frozen=(False,)),
    "running values": Relation(running_values, frozen=(False,)),
    "frozen on its own statistics": Relation(frozen_on_its_own_statistics, frozen=(False,)),
    "kept when frozen": Relation(kept_when_frozen, frozen=(True,)),
}
