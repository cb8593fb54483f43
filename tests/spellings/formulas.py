"""The formulas that a spelling starts from: closed forms, or the primitive-by-primitive gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spellings.derivatives import vjp
from spellings.expressions import topological

if TYPE_CHECKING:
    import random

    from spellings.expressions import Node, Space

TASKS = ("forward", "frozen forward", "training", "backward", "frozen backward")
"""The outputs of a model: ``training`` has forward and backward in one graph; the others have one of them."""


@dataclass
class Formula:
    """One batch norm in its first form.

    Attributes:
        task: One of `TASKS`.
        outputs: The outputs of the model, by name. A name is one of Y, dX, dscale, dbias, or of another value:
            mean, var, inv_std, xhat, new_running_mean, new_running_var.
        epsilon: The number added to the variance.
        parts: Values by name: x, dy, mean, var, inv_std, xhat and so on, for mutations.
        used: The names of the forms that were drawn.
        affine: Whether it has a scale and a bias, and whether the scale is 1 + gamma.
        gate: Whether dY is the gradient of a ReLU.
        residual: Whether another gradient is added to dX.
        momentum: The weight of the old running average.
        unbiased: Whether the running variance is unbiased.
    """

    task: str
    epsilon: float
    outputs: dict[str, Node] = field(default_factory=dict)
    parts: dict[str, Node] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    affine: str = "scale, bias"
    gate: bool = False
    residual: bool = False
    momentum: float = 0.9
    unbiased: bool = False


class _Draw:
    def __init__(self, space: Space, rng: random.Random, task: str, epsilon: float) -> None:
        self.s, self.rng = space, rng
        self.formula = Formula(task, epsilon)
        self.parts = self.formula.parts

    def choose(self, what: str, **forms) -> Node:
        name = self.rng.choice(list(forms))
        self.formula.used.append(f"{what}: {name.replace('_', ' ')}")
        return forms[name]()

    def leaf(self, name: str, full: bool = False) -> Node:
        node = self.s.leaf(name, self.s.all if full else self.s.kept)
        self.parts[name] = node
        return node

    def statistics(self, x: Node) -> None:
        """Sets mean, var and inv_std, as functions of x or as inputs."""
        s, n = self.s, self.s.count()
        task, parts = self.formula.task, self.parts
        if task == "backward":
            parts["mean"], parts["inv_std"] = self.leaf("mean"), self.leaf("inv_std")
            return
        if task.startswith("frozen"):
            mean = self.leaf("mean")
            if task == "frozen backward" and self.rng.random() < 0.3:
                self.leaf("inv_std")
                return
            var = self.leaf("var")
        else:
            mean = self.choose("mean", ReduceMean=lambda: s.mean(x), sum_over_N=lambda: s.div(s.sum(x), n))

            def centered() -> Node:
                return s.sub(x, mean)

            def difference() -> Node:
                return s.sub(s.mean(s.mul(x, x)), s.mul(mean, mean))

            var = self.choose(
                "variance",
                mean_of_squared_difference=lambda: s.mean(s.pow(centered(), 2)),
                mean_of_product=lambda: s.mean(s.mul(centered(), centered())),
                sum_of_squares_over_N=lambda: s.div(s.sum(s.mul(centered(), centered())), n),
                mean_of_squares_less_square=difference,
                clipped_difference=lambda: s.relu(difference()),
                sums=lambda: s.div(s.sub(s.sum(s.mul(x, x)), s.div(s.mul(s.sum(x), s.sum(x)), n)), n),
                mean_of_centered_times_x=lambda: s.mean(s.mul(centered(), x)),
            )
        parts["mean"], parts["var"] = mean, var
        shifted = s.add(var, s.const(self.formula.epsilon))
        s.positive.add(shifted)
        parts["shifted"] = shifted
        parts["inv_std"] = self.choose(
            "inv_std",
            reciprocal_of_root=lambda: s.rsqrt(shifted),
            power=lambda: s.pow(shifted, -0.5),
            root_of_reciprocal=lambda: s.sqrt(s.recip(shifted)),
            one_over_root=lambda: s.div(s.const(1), s.sqrt(shifted)),
        )

    def scale(self) -> Node | None:
        if "scale" not in self.formula.affine:
            return None
        gamma = self.leaf("gamma")
        return self.s.add(gamma, self.s.const(1)) if "1 +" in self.formula.affine else gamma

    def forward(self, x: Node) -> Node:
        s, mean, inv = self.s, self.parts["mean"], self.parts["inv_std"]
        scale = self.scale()
        bias = self.leaf("beta") if "bias" in self.formula.affine else None
        centered = s.sub(x, mean)
        if scale is None:
            forms = {"xhat": lambda: s.mul(centered, inv)}
            if "shifted" in self.parts:
                forms["over_root"] = lambda: s.div(centered, s.sqrt(self.parts["shifted"]))
            y = self.choose("forward", **forms)
            return y if bias is None else s.add(y, bias)
        factor = s.mul(inv, scale)
        offset = s.neg(s.mul(mean, factor)) if bias is None else s.sub(bias, s.mul(mean, factor))

        def biased(y: Node) -> Node:
            return y if bias is None else s.add(y, bias)

        return self.choose(
            "forward",
            xhat_times_scale=lambda: biased(s.mul(s.mul(centered, inv), scale)),
            centered_times_factor=lambda: biased(s.mul(centered, factor)),
            x_times_factor_plus_offset=lambda: s.add(s.mul(x, factor), offset),
        )

    def backward(self, x: Node, dy: Node, y: Node | None) -> dict[str, Node]:
        s, inv, scale = self.s, self.parts["inv_std"], self.scale()
        if y is not None and self.rng.random() < 0.5:
            self.formula.used.append("backward: VJP of the forward pass")
            names = {"dX": x, "dscale": self.parts.get("gamma"), "dbias": self.parts.get("beta")}
            names = {name: node for name, node in names.items() if node is not None}
            return dict(zip(names, vjp(s, y, dy, list(names.values()), self.rng), strict=True))
        centered = s.sub(x, self.parts["mean"])
        results = {"dX": self._frozen_dx(dy) if self.formula.task == "frozen backward" else self._dx(dy, centered)}
        if scale is not None:
            results["dscale"] = self.choose(
                "dscale",
                dot_with_xhat=lambda: s.sum(s.mul(dy, s.mul(centered, inv))),
                dot_with_centered=lambda: s.mul(s.sum(s.mul(dy, centered)), inv),
            )
        if "bias" in self.formula.affine:
            results["dbias"] = s.sum(dy)
        return results

    def _scaled(self, a: Node) -> Node:
        scale = self.scale()
        return a if scale is None else self.s.mul(a, scale)

    def _frozen_dx(self, dy: Node) -> Node:
        s, inv = self.s, self.parts["inv_std"]
        return self.choose(
            "backward",
            dy_times_factor=lambda: s.mul(dy, self._scaled(inv)),
            in_turn=lambda: s.mul(self._scaled(dy), inv),
        )

    def _dx(self, dy: Node, centered: Node) -> Node:
        s, parts, n, inv = self.s, self.parts, self.s.count(), self.parts["inv_std"]
        factor, total, xhat = self._scaled(inv), s.sum(dy), s.mul(centered, inv)

        def closed() -> Node:
            dot = s.sum(s.mul(dy, xhat))
            inner = s.sub(s.sub(s.mul(n, dy), total), s.mul(xhat, dot))
            return s.mul(s.div(factor, n), inner)

        def torch() -> Node:
            dot = s.sum(s.mul(dy, centered))
            projected = s.mul(centered, s.mul(s.div(dot, n), s.mul(inv, inv)))
            return s.mul(s.sub(s.sub(dy, projected), s.div(total, n)), factor)

        def xla() -> Node:
            dot = s.sum(s.mul(dy, centered))
            over = parts["shifted"] if "shifted" in parts else s.recip(s.mul(inv, inv))
            inner = s.sub(s.sub(s.mul(n, dy), total), s.div(s.mul(centered, dot), over))
            return s.mul(s.div(factor, n), inner)

        def means() -> Node:
            dot = s.mean(s.mul(dy, xhat))
            return s.mul(factor, s.sub(dy, s.add(s.mean(dy), s.mul(xhat, dot))))

        def dxhat() -> Node:
            d = self._scaled(dy)
            return s.mul(inv, s.sub(s.sub(d, s.mean(d)), s.mul(xhat, s.mean(s.mul(d, xhat)))))

        return self.choose("backward", closed=closed, torch=torch, XLA=xla, means=means, dxhat=dxhat)


def draw_formula(space: Space, rng: random.Random, task: str, epsilon: float | None = None) -> Formula:
    """Returns one batch norm in one of its first forms."""
    draw = _Draw(space, rng, task, epsilon or rng.choice([1e-3, 1e-5, 1e-2, 0.1, 1e-5]))
    formula = draw.formula
    formula.affine = rng.choice(["scale, bias"] * 5 + ["", "scale", "bias", "1 + scale, bias"])
    x = draw.leaf("x", full=True)
    draw.statistics(x)
    y = None
    if task != "backward" and (task != "frozen backward" or rng.random() < 0.5):
        y = draw.forward(x)
    if task in ("forward", "frozen forward", "training"):
        formula.outputs["Y"] = y
    if task in ("training", "backward", "frozen backward"):
        _add_backward(draw, x, y)
    if task in ("forward", "training"):
        _add_others(draw, x)
    used = {node.value for node in topological(formula.outputs.values()) if node.op == "leaf"}
    formula.parts = {name: node for name, node in formula.parts.items() if node.op != "leaf" or name in used}
    formula.used.append(f"affine: {formula.affine or 'none'}")
    return formula


def _add_backward(draw: _Draw, x: Node, y: Node | None) -> None:
    s, rng, formula = draw.s, draw.rng, draw.formula
    dy = draw.leaf("dy", full=True)
    if rng.random() < 0.25:
        formula.gate = True
        formula.used.append("ReLU in front of the backward")
        if formula.task == "training" and y is not None:
            z = y if rng.random() < 0.5 else s.relu(y)
            if z is not y:
                formula.outputs["Z"] = z
        else:
            z = draw.leaf("z", full=True)
        dy = s.gate(dy, z)
    draw.parts["gated"] = dy
    results = draw.backward(x, dy, y)
    if rng.random() < 0.2:
        formula.residual = True
        formula.used.append("another gradient added to dX")
        results["dX"] = s.add(results["dX"], draw.leaf("residual", full=True))
    asked = list(results)
    if rng.random() < 0.3:
        asked = [name for name in asked if name == "dX" or rng.random() < 0.5]
    if formula.task == "frozen backward" and "dscale" in results and rng.random() < 0.8:
        asked.append("dscale")
    formula.outputs.update({name: results[name] for name in results if name in asked})


def _add_others(draw: _Draw, x: Node) -> None:
    """Adds outputs of values that are also read elsewhere."""
    s, rng, parts, formula = draw.s, draw.rng, draw.parts, draw.formula
    for name in ("mean", "var", "inv_std"):
        if rng.random() < 0.12:
            formula.outputs[name] = parts[name]
    if rng.random() < 0.1:
        formula.outputs["xhat"] = s.mul(s.sub(x, parts["mean"]), parts["inv_std"])
    if rng.random() < 0.3:
        formula.used.append("running averages")
        formula.momentum = rng.choice([0.9, 0.99, 0.5])
        formula.unbiased = rng.random() < 0.5
        var = parts["var"]
        if formula.unbiased:
            less = s.sub(s.count(), s.const(1))
            var = s.mul(var, s.div(s.count(), less)) if rng.random() < 0.5 else s.div(s.mul(var, s.count()), less)
        for name, new in (("mean", parts["mean"]), ("var", var)):
            old, keep = draw.leaf(f"running_{name}"), formula.momentum
            formula.outputs[f"new_running_{name}"] = draw.choose(
                "running average",
                two_products=lambda old=old, new=new, keep=keep: s.add(
                    s.mul(s.const(keep), old), s.mul(s.const(1 - keep), new)
                ),
                old_plus_difference=lambda old=old, new=new, keep=keep: s.add(
                    old, s.mul(s.const(1 - keep), s.sub(new, old))
                ),
                old_less_difference=lambda old=old, new=new, keep=keep: s.sub(
                    old, s.mul(s.sub(old, new), s.const(1 - keep))
                ),
            )
