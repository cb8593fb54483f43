"""Cases: one batch norm spelled in a random equivalent way, or a near miss.

A case is a function of the campaign's seed and its number. A spelling is checked as it is made: the expression
equals the reference, in float64. A near miss differs from every reading of a batch norm (`spellings.readings`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from bngrad.opset import reference
from spellings import algebra, readings, reduction_algebra
from spellings.builder import TYPES
from spellings.emit import Emitter
from spellings.expressions import Space, topological
from spellings.formulas import TASKS, draw_formula
from spellings.mutations import MUTATIONS, TASKS_OF, all_reductions_changed, mutated
from spellings.rewrite import rewritten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from spellings.expressions import Node
    from spellings.formulas import Formula

assert algebra
assert reduction_algebra  # imported for their rewrites
RELATIVE_ERROR = 1e-9
"""The largest distance of a spelling in float64 from the reference."""
CONSISTENTLY = "all reductions over other axes"
EXPECTED_OF_TASK = {
    "forward": ("forward",),
    "frozen forward": ("frozen forward",),
    "training": ("forward", "backward"),
    "backward": ("backward",),
    "frozen backward": ("frozen backward",),
}


@dataclass
class Case:
    """A model and its expected matches.

    Attributes:
        story: A description in one line.
        model: The spelling.
        feeds: Inputs by name.
        outputs: Its outputs in float64, by name.
        taken: Kinds of matches that must be found.
        not_taken: Kinds of matches that must not be found.
        alone: Whether nothing else reads the statistics, so that no reduction may be left.
        used: The forms, rewrites and mutations that it is made of.
    """

    story: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    taken: tuple[str, ...] = ()
    not_taken: tuple[str, ...] = ()
    alone: bool = False
    used: list[str] = field(default_factory=list)


class UnsoundError(Exception):
    """A spelling is not equal to the reference: a bug of the generator."""


class _Data:
    """Values of the leaves of an expression."""

    def __init__(self, space: Space, roots: Sequence[Node], seed: int, data_type: int) -> None:
        self._space, self._rng, self._type = space, np.random.default_rng(seed), TYPES[data_type]
        self._leaves = {node.value: node for node in topological(roots) if node.op == "leaf"}
        for name in ("x", "dy"):
            self._leaves.setdefault(name, space.leaf(name, space.all))
        self._values = self._drawn(set(self._leaves))

    def draw(self, anew: set[str]) -> dict[str, np.ndarray]:
        """The values of all leaves, with new ones for some names."""
        return {**self._values, **self._drawn(anew & set(self._leaves))}

    def _drawn(self, names: set[str]) -> dict[str, np.ndarray]:
        values = {}
        for name in sorted(names):
            axes = self._leaves[name].axes
            shape = tuple(n if axis in axes else 1 for axis, n in enumerate(self._space.sizes))
            value = self._rng.normal(size=shape)
            if name in ("x", "x2", "other"):
                kept = tuple(n if axis in self._space.kept else 1 for axis, n in enumerate(self._space.sizes))
                value = value * self._rng.uniform(0.3, 2.0, size=kept) + self._rng.normal(size=kept)
            elif "var" in name or "inv_std" in name:
                value = self._rng.uniform(0.4, 2.5, size=shape)
            elif name.startswith("gamma"):
                value = value * 0.3 + 1.3
            # Rounded to the model's type, so that its inputs are these numbers.
            values[name] = value.astype(np.float32).astype(self._type).astype(np.float64)
        return values


def make_spelling(seed: int, index: int, steps: int | None = None) -> Case:
    """Returns one batch norm in one of its equivalent spellings.

    Args:
        seed: The campaign's seed.
        index: The number of the case.
        steps: The number of its rewrites that are applied; by default all.

    Raises:
        UnsoundError: It is not equal to the reference.
    """
    rng = random.Random(f"spelling {seed} {index}")  # noqa: S311
    task = TASKS[index % len(TASKS)]
    space = _draw_space(rng)
    formula = draw_formula(space, rng, task)
    names = list(formula.outputs)
    drawn = _draw_steps(rng)
    first = [formula.outputs[name] for name in names]
    roots, used = rewritten(space, first, rng, drawn if steps is None else min(steps, drawn))
    emission = random.Random(f"model {seed} {index}")  # noqa: S311
    case, leaves = _case(space, emission, dict(zip(names, roots, strict=True)), index)
    expected = _expected(space, formula, leaves)
    for name, value in case.outputs.items():
        exact = expected[name].reshape(value.shape)
        distance = np.abs(value - exact).max()
        if not distance <= RELATIVE_ERROR * np.abs(exact).max() + 1e-12:
            raise UnsoundError(f"{name} is {distance} away; {task}, {formula.used}, {used}")
    case.used = [*formula.used, *used, *case.used]
    case.alone = {"Y", "Z", "dX", "dscale", "dbias"}.issuperset(names)
    case.taken = _to_be_taken(formula, len(space.kept))
    case.story = f"{task} of {', '.join(names)}; sizes {space.sizes}, reduced {sorted(space.reduced)}"
    return case


def _to_be_taken(formula: Formula, channels: int) -> tuple[str, ...]:
    """The kinds of matches that are required: of formulas that cannot be anything else."""
    kinds = EXPECTED_OF_TASK[formula.task]
    if formula.task == "frozen backward":
        # dX is only dY times a factor; with dscale it is a batch norm's gradient.
        return kinds if "dscale" in formula.outputs else ()
    if formula.task == "backward" and "dX" not in formula.outputs:
        return ()
    if formula.task == "frozen forward" and channels > 1:
        # ONNX's BatchNormalization has one dimension of channels.
        return ()
    return kinds


def make_near_miss(seed: int, index: int) -> Case:
    """Returns a near miss: an expression that is not a batch norm in any reading."""
    rng = random.Random(f"near miss {seed} {index}")  # noqa: S311
    names_of_mutations = [*MUTATIONS, CONSISTENTLY]
    preferred = names_of_mutations[index % len(names_of_mutations)]
    for attempt in range(400):
        mutation = preferred if attempt < 200 else rng.choice(names_of_mutations)
        case = _near_miss(rng, mutation, index)
        if case is not None:
            return case
    raise UnsoundError(f"no near miss by {preferred} in 400 attempts")


def _near_miss(rng: random.Random, mutation: str, index: int) -> Case | None:
    task = rng.choice(TASKS_OF.get(mutation, TASKS))
    space = _draw_space(rng)
    formula = draw_formula(space, rng, task, epsilon=rng.choice([0.5, 0.25, 1.0]))
    names = list(formula.outputs)
    roots, used = rewritten(space, [formula.outputs[name] for name in names], rng, rng.choice([0, 0, 2, 6]))
    if mutation == CONSISTENTLY:
        changed = all_reductions_changed(space, roots, rng)
    else:
        changed = mutated(space, roots, rng, mutation)
    if changed is None or any(root.axes == frozenset() for root in changed):
        return None
    if not any(node.op == "leaf" and node.axes == space.all for node in topological(changed)):
        return None
    roots, more = rewritten(space, changed, rng, rng.choice([0, 0, 2, 6]))
    outputs = dict(zip(names, roots, strict=True))
    data = _Data(space, roots, rng.randrange(1 << 30), TensorProto.DOUBLE)
    if not readings.finite(space, roots, data.draw(set())):
        return None
    not_taken = tuple(kind for kind in EXPECTED_OF_TASK[task] if not _reads(space, outputs, data, kind))
    if not not_taken:
        return None
    case, _ = _case(space, rng, outputs, index)
    if not all(np.isfinite(value).all() for value in case.outputs.values()):
        return None
    case.not_taken = not_taken
    case.used = [f"near miss: {mutation}", *used, *more, *case.used]
    case.story = (
        f"near miss of {task} by {mutation}: {', '.join(names)}; sizes {space.sizes}, reduced"
        f" {sorted(space.reduced)}; not {', not '.join(not_taken)}"
    )
    return case


def _reads(space: Space, outputs: dict[str, Node], data: _Data, kind: str) -> bool:
    roots = list(outputs.values())
    match kind:
        case "forward":
            return readings.reads_forward(space, roots, data.draw)
        case "backward":
            # A right dscale may be taken, whatever dX is.
            return any(
                reads(space, roots, data.draw)
                for reads in (readings.reads_scale_gradient, readings.reads_backward)
            )
        case "frozen forward":
            return readings.reads_frozen_forward(space, roots, data.draw)
        case _:
            return "dscale" not in outputs or readings.reads_scale_gradient(space, roots, data.draw)


def _draw_steps(rng: random.Random) -> int:
    return rng.choice([0, 2, 5, 10, 10, 20, 20, 35])


def _draw_space(rng: random.Random) -> Space:
    """Tiny data of rank 2 to 5: 6 to 24 elements reduced, 2 or 3 of each kept axis."""
    channels = rng.choice([2, 3])
    form = rng.choice(["matrix", "NCHW", "NCHW", "NHWC", "per activation"])
    dynamic = rng.random() < 0.25
    if form == "matrix":
        return Space([rng.choice([6, 7, 10]), channels], [0], dynamic)
    if form == "per activation":
        rest = [channels, *rng.choice([[2], [3], [2, 2]])]
        return Space([rng.choice([6, 8]), *rest], [0], dynamic)
    spatial = rng.choice([[3], [4], [2, 3], [3, 2], [2, 2], [2, 2, 2], [2, 3, 2]])
    batch = rng.choice([3, 4] if len(spatial) < 3 else [2, 3])
    if form == "NCHW":
        sizes = [batch, channels, *spatial]
        return Space(sizes, [axis for axis in range(len(sizes)) if axis != 1], dynamic)
    return Space([batch, *spatial, channels], range(len(spatial) + 1), dynamic)


def _case(
    space: Space, rng: random.Random, outputs: dict[str, Node], index: int
) -> tuple[Case, dict[str, np.ndarray]]:
    """The model of an expression, with inputs and outputs."""
    data_type = rng.choice(
        [TensorProto.DOUBLE] * 6 + [TensorProto.FLOAT] * 6 + [TensorProto.FLOAT16, TensorProto.BFLOAT16]
    )
    data = _Data(space, list(outputs.values()), rng.randrange(1 << 30), data_type)
    emitter = Emitter(space, rng, data_type, rng.choice([13, 14, 15, 17, 18, 20, 21]))
    model = emitter.model(outputs)
    leaves = data.draw(set())
    bare = {
        node.value: leaves[node.value].reshape([space.sizes[axis] for axis in sorted(node.axes)])
        for node in topological(outputs.values())
        if node.op == "leaf"
    }
    names = [value.name for value in model.graph.input]
    values = space.evaluate(outputs.values(), leaves)
    results = {
        name: value.reshape([space.sizes[axis] for axis in sorted(node.axes)])
        for (name, node), value in zip(outputs.items(), values, strict=True)
    }
    used = list(dict.fromkeys(emitter.used))
    used.append(f"rank {len(space.sizes)}, {len(space.reduced)} reduced")
    used += ["symbolic batch"] if space.dynamic else []
    used.append(f"data of {TensorProto.DataType.Name(data_type).lower()}")
    return Case(f"case {index}", model, {name: bare[name] for name in names}, results, used=used), leaves


def _expected(space: Space, formula: Formula, leaves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by the formulas of the reference."""
    axes = tuple(sorted(space.reduced))

    def kept(name: str, otherwise: float) -> np.ndarray:
        if name not in leaves:
            return np.full([space.sizes[axis] for axis in sorted(space.kept)], otherwise)
        return leaves[name].reshape([space.sizes[axis] for axis in sorted(space.kept)])

    def full(vector: np.ndarray) -> np.ndarray:
        return np.expand_dims(vector, axes)

    x = leaves["x"]
    scale = kept("gamma", 1.0) + (1.0 if "1 +" in formula.affine and "gamma" in leaves else 0.0)
    bias = kept("beta", 0.0)
    results: dict[str, np.ndarray] = {}
    if formula.task in ("forward", "training"):
        momentum, unbiased = formula.momentum, formula.unbiased
        old = kept("running_mean", 0.0), kept("running_var", 1.0)
        forward = reference.batch_normalization_training(
            x, scale, bias, *old, axes, formula.epsilon, momentum, unbiased
        )
        mean, inv_std = forward.saved_mean, forward.saved_inv_std
        results["new_running_mean"], results["new_running_var"] = forward.new_running_mean, forward.new_running_var
        results["Y"] = forward.Y
    else:
        mean = kept("mean", 0.0)
        inv_std = kept("inv_std", 1.0) if "var" not in leaves else 1 / np.sqrt(kept("var", 1) + formula.epsilon)
        results["Y"] = (x - full(mean)) * full(inv_std * scale) + full(bias)
    results["mean"], results["inv_std"] = mean, inv_std
    results["var"] = 1 / inv_std**2 - formula.epsilon
    results["xhat"] = (x - full(mean)) * full(inv_std)
    results["Z"] = np.maximum(results["Y"], 0.0)
    if formula.task in ("training", "backward", "frozen backward"):
        dy = leaves["dy"]
        if formula.gate:
            dy = np.where(leaves.get("z", results["Y"]) > 0, dy, 0.0)
        gradients = reference.batch_normalization_grad(
            dy, x, scale, mean, inv_std, axes, formula.task != "frozen backward"
        )
        results["dX"] = gradients.dX + (leaves["residual"] if formula.residual else 0.0)
        results["dscale"], results["dbias"] = gradients.dscale, gradients.dbias
    return results
