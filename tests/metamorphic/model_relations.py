"""What must hold between two training steps of a whole model, whatever the right numbers are: a table.

A relation is a function of a `Run` that gives pairs (got, due). They are equal to the last bit where the same
operations are done in the same order, and else differ by rounding: by no more than `steps.SAFETY` times what
moving every input by its last bit does to that output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bngrad.validation.float64 import evaluate
from metamorphic.dues import Due, exactly
from metamorphic.forward_models import turned_dims

if TYPE_CHECKING:
    from collections.abc import Callable

    from metamorphic.forward_models import ForwardModel
    from metamorphic.steps import Run


class Relation(NamedTuple):
    """A relation, for which modes of the batch norms it holds, and for which models."""

    dues: Callable[[Run], list[Due]]
    frozen: tuple[bool, ...] = (False, True)
    holds: Callable[[ForwardModel], bool] = lambda _model: True


def nearly(run, got, want, times=1.0):
    """Dues of outputs that differ by rounding. ``times``: what else the error is multiplied by."""
    return [Due(name, got[name], want[name], times * run.noise[name]) for name in want]


def _gradients(outputs):
    """The loss and the gradients, without the running statistics."""
    return {name: value for name, value in outputs.items() if not name.startswith("new_")}


def _per_element(run, outputs, function, dim):
    """The outputs, with a function of (array, axis) applied along each of their axes of a name."""
    mapped = {}
    for name, value in outputs.items():
        result = value
        for axis, one in enumerate(run.model.dims(name)):
            result = function(result, axis) if one == dim else result
        mapped[name] = result
    return mapped


# ---- the same operations in the same order: the same bits ----


def twice(run):
    return exactly(run.step()(run.feeds), run.outputs)


def threads(run):
    return exactly(run.step(threads=3)(run.feeds), run.outputs)


def scaled_loss(run):
    """Twice, and minus, the loss is twice, and minus, every gradient; none is none. 2 costs no digit."""
    dues = []
    for factor in (2, -1, 0):
        got = run.step()({**run.feeds, "gain": np.asarray(run.feeds["gain"] * factor)})
        dues += exactly(
            got, {n: value * factor for n, value in _gradients(run.outputs).items()}, f"times {factor}"
        )
    return dues


def unfused(run):
    """The gradient of a ReLU before that of a batch norm, or both in one."""
    return exactly(run.step(fuse=False)(run.feeds), run.outputs)


def dialect(run):
    """By way of ORT's dialect, which has the batch norms' nodes of its own builder."""
    got = run.step(route="dialect")(run.feeds)
    # What it has no op for is spelled out in standard ops, which add in another order.
    return nearly(run, got, run.outputs) if run.frozen or run.model.spelled_out else exactly(got, run.outputs)


# ---- the same sums in another order ----


def functions(run):
    """The ops' own definitions, with nothing registered."""
    return nearly(run, run.step(provider="function")(run.feeds), run.outputs)


def permuted_batch(run):
    return _permuted(run, "N")


def permuted_channels(run):
    """The channels of a layer in another order, in all that belongs to it; of classes, the targets too."""
    assert run.model.permuted, "a model without a layer"
    return [due._replace(what=f"{dim}: {due.what}") for dim in run.model.permuted for due in _permuted(run, dim)]


def _permuted(run, dim):
    order = np.random.default_rng(3).permutation(run.model.extents[dim])
    feeds = _per_element(run, run.feeds, lambda a, axis: a.take(order, axis), dim)
    if dim == "K" and "target" in feeds:
        feeds["target"] = np.argsort(order)[feeds["target"]]
    want = _per_element(run, run.outputs, lambda a, axis: a.take(order, axis), dim)
    return nearly(run, run.step()(feeds), want)


def turned(run):
    """Rows for columns, in the data, the weights and the attributes."""

    def swap(arrays):
        dims = {name: run.model.dims(name) for name in arrays}
        moved = {name for name in arrays if turned_dims(dims[name]) != dims[name]}
        return {name: np.swapaxes(a, -1, -2) if name in moved else a for name, a in arrays.items()}

    return nearly(run, run.step(turned=True)(swap(run.feeds)), swap(run.outputs))


def halves(run):
    """Frozen, samples do not see each other: the gradients by weights are sums over the halves of a batch."""
    size = run.model.extents["N"]
    parts = []
    for part in (range(size // 2), range(size // 2, size)):
        feeds = _per_element(run, run.feeds, lambda a, axis, p=part: a.take(p, axis), "N")
        parts.append(_gradients(run.step()(feeds)))
    want = {
        name: np.concatenate([part[name] for part in parts])
        if "N" in run.model.dims(name)
        else parts[0][name] + parts[1][name]
        for name in parts[0]
    }
    return nearly(run, run.outputs, want)


def doubled_batch(run):
    """A batch and itself again has the same statistics, and twice the gradients by weights."""
    got = run.step()(_per_element(run, run.feeds, lambda a, axis: np.concatenate([a, a], axis), "N"))
    want = _per_element(run, run.outputs, lambda a, axis: np.concatenate([a, a], axis), "N")
    for name in _gradients(want):
        if "N" not in run.model.dims(name):
            want[name] = want[name] * 2
    return nearly(run, got, want, times=2)


# ---- what batch norm is ----


def shifted(run):
    """A bias in front of a batch norm in training moves its running mean, and nothing else."""
    dues = []
    for bias, mean, factor in run.model.shifted:
        got = run.step()({**run.feeds, bias: run.feeds[bias] + 1})
        new = f"new_{mean}"
        moved = run.outputs | {new: run.outputs[new] + 0.25 * factor}
        # Terms are larger by the shift, and so is their rounding.
        dues += nearly(run, got, moved, times=4)
        zero = np.zeros_like(run.outputs[f"{bias}_grad"])
        dues.append(Due(f"{bias}_grad", run.outputs[f"{bias}_grad"], zero, run.noise[f"{bias}_grad"]))
    return dues


def running_values(run):
    """The new running values are 3/4 of the old, and the rest the batch's, which does not depend on the old."""
    names = list(run.model.running)
    moved = {name.removeprefix("new_"): run.feeds[name.removeprefix("new_")] + 2 for name in names}
    got = run.step()({**run.feeds, **moved})
    return nearly(run, got, {name: run.outputs[name] + (1.5 if name in names else 0) for name in run.outputs})


def frozen_on_its_own_statistics(run):
    """A frozen step on the batch's mean and variance has the loss of training, and the gradients by all behind."""
    statistics = {}
    for name in run.model.running:
        old = run.feeds[name.removeprefix("new_")]
        statistics[name.removeprefix("new_")] = (run.outputs[name] - 0.75 * old) * 4
    got = run.step(frozen=True)({**run.feeds, **statistics})
    # Taking the batch's part out of a quarter multiplies its rounding by 8.
    want = {name: run.outputs[name] for name in ("loss", *run.model.behind)}
    return nearly(run, got, want, times=8)


def kept_when_frozen(run):
    """Frozen, the running statistics stay as they are."""
    return exactly(run.outputs, {name: run.feeds[name.removeprefix("new_")] for name in run.model.running})


# ---- derivatives ----


def differences(run):
    """Each gradient is the slope of the forward model in float64, along a direction with a part in all of it."""
    forward = run.model.proto()
    feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in run.feeds.items()}
    if run.frozen:
        for node in forward.graph.node:
            _freeze(node)
    step, dues = 1e-6, []
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
        dues.append(Due(name, np.sum(along * gradient), np.asarray(slope), 1e-5 * size + rounding + 1e-7))
    return dues


def _freeze(node):
    """The forward model of a frozen step: batch norms with the running statistics."""
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
    "turned": Relation(turned, holds=lambda model: model.turns),
    "halves": Relation(halves, frozen=(True,)),
    "doubled batch": Relation(doubled_batch),
    "shifted": Relation(shifted, frozen=(False,)),
    "running values": Relation(running_values, frozen=(False,)),
    "frozen on its own statistics": Relation(frozen_on_its_own_statistics, frozen=(False,)),
    "kept when frozen": Relation(kept_when_frozen, frozen=(True,)),
}
