"""Recognized batch norms and near misses, with the reason for each miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.passes.imports.decomposed.polynomial import ONE, WHOLE, atoms, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.algebra import Over, Variance
    from bngrad.passes.imports.decomposed.analysis import Analysis
    from bngrad.passes.imports.decomposed.polynomial import Monomial, Polynomial


class Candidate(NamedTuple):
    """A batch norm, or a near miss."""

    name: str
    """The name of the node that computes it."""
    kind: str
    """forward, backward, frozen forward or frozen backward."""
    taken: bool
    """True if an op replaced it."""
    reason: str
    """The reason why it was not replaced; empty if it was."""


def lookalikes(analysis: Analysis) -> list[Candidate]:
    """The variances that normalize data, and the sums for a gradient, that belong to no batch norm."""
    forward = {norm.statistics.variance for result in analysis.results.values() for norm in result.forward}
    variances = analysis.algebra.variances.values()
    candidates = [
        Candidate(_node_name(analysis, variance.atom), "forward", False, _reason(analysis, variance))
        for variance in variances
        if variance not in forward
    ]
    for base, atom in analysis.algebra.bases():
        reason = _no_variance(analysis, base)
        if reason:
            candidates.append(Candidate(_node_name(analysis, atom), "forward", False, reason))
    return [*candidates, *_unfinished(analysis)]


def name_of(value: ir.Value) -> str:
    """The name of the node that computes a value, or else of the value."""
    node = value.producer()
    return str(value.name) if node is None or not node.name else node.name


def _reason(analysis: Analysis, variance: Variance) -> str:
    if not analysis.reduces_batch(variance.x, variance.over):
        return (
            "it normalizes over other axes than a batch norm, which reduces the first dimension of its data and "
            "keeps one: a layer, group or instance normalization"
        )
    return f"no value is scale * ({_text(analysis, variance.x)} - mean) / sqrt(variance + epsilon) + bias"


def _no_variance(analysis: Analysis, base: Polynomial) -> str:
    """The reason why a sum under a root is not a variance; empty if it has no sum of squares."""
    for _, _, inner, _ in analysis.algebra.sums_in(base):
        if any(exponent % (2 * WHOLE) for _, exponent in inner):
            continue
        text = _text(analysis, tuple((atom, exponent // 2) for atom, exponent in inner))
        if len(base.keys() - {ONE}) == 1:
            return f"it does not subtract the mean of {text}: an RMS normalization"
        return f"it is not the mean of ({text} - mean)^2 plus epsilon over one set of axes"
    return ""


def _unfinished(analysis: Analysis) -> Iterator[Candidate]:
    """Data that is computed from a variance and from S(dY * x), but is not a dX."""
    seen: set[tuple[Monomial, Over]] = set()
    for value, form in list(analysis.forms.by_value.items()):
        marked = atoms(form) & analysis.algebra.variance_of.keys()
        if value in analysis.results or not marked or not analysis.is_read_elsewhere(value):
            continue
        for atom in marked:
            x, over, _, _ = analysis.algebra.variance_of[atom]
            if (
                (x, over) in seen
                or not analysis.reduces_batch(x, over)
                or not _has_product(analysis, form, x, over)
            ):
                continue
            seen.add((x, over))
            reason = f"it depends on the sum of dY * {_text(analysis, x)}, but not as the gradient of a batch norm"
            yield Candidate(name_of(value), "backward", False, reason)


def _has_product(analysis: Analysis, form: Polynomial, x: Monomial, over: Over) -> bool:
    """Returns whether a form of data has a sum of x times other data."""
    if not any(analysis.algebra.varies(monomial) & over for monomial in form):
        return False
    products = (times(inner, x, -1) for _, _, inner, along in analysis.algebra.sums_in(form) if along == over)
    return any(dY and dY != x and all(exponent > 0 for _, exponent in dY) for dY in products)


def _node_name(analysis: Analysis, atom: int) -> str:
    node = analysis.algebra.maker[atom]
    return "" if node is None else node.name or str(node.outputs[0].name)


def _text(analysis: Analysis, x: Monomial) -> str:
    values = (analysis.algebra.leaf_of(atom) for atom, _ in x)
    return " * ".join(str(value.name) if value is not None else "x" for value in values)
