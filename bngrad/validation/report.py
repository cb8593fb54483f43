"""The result of a validation, as data; `bngrad.reports` writes it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.inspection.graph_nodes import GraphNode
    from bngrad.inspection.identity import Identity
    from bngrad.runtime.environment import Environment
    from bngrad.validation.statistics import TensorStatistics

Array = NDArray[Any]

Verdict = Literal["passed", "failed", "incomplete"]

VERDICTS: dict[Verdict, str] = {"passed": "passed", "failed": "FAILED", "incomplete": "INCOMPLETE"}
"""Verdicts as reports print them."""

EXIT_CODES: dict[Verdict, int] = {"passed": 0, "failed": 1, "incomplete": 3}
"""The exit code of `validate`; 2 is an error."""


MOST_NAMES = 3
"""The most names in the text on values that were not compared for one reason."""

ALL_GRADIENTS = "gradients"
"""The key of `Check.undecided` if no gradient can be compared, whatever the reference."""


@dataclass(frozen=True)
class Row:
    """The comparison of one tensor."""

    subject: str
    """The node or graph output that the tensor belongs to."""
    tensor: str
    """The name of the tensor."""
    kind: str
    """The kind of the tensor: ``loss``, ``gradient``, ...; for a node its op type."""
    implementation: str
    """The implementation of the ops that computed the tensor; `float64, function` in the checks in double."""
    against: str
    """The reference that the tensor was compared with."""
    max_abs: float
    """The largest absolute difference."""
    relative_l2: float
    """The 2-norm of the difference over the 2-norm of the expected value."""
    measure: float
    """The deciding value, in the unit of the check; the row passes if it is at most the check's limit."""
    passed: bool
    """True if the measure is at most the limit of the check."""
    note: str = ""
    """A remark on the comparison; empty if there is none."""
    position: int | None = None
    """The position of the node that computes the tensor among those of the training graph; None if unknown."""


@dataclass
class Check:
    """One method of comparison."""

    name: str
    """The name of the check."""
    unit: str
    """The unit of `Row.measure`."""
    limit: float
    """The largest `Row.measure` that passes."""
    rows: list[Row] = field(default_factory=list)
    """The comparisons; in JSON, worst first."""
    skipped: str = ""
    """The reason why the check was skipped; empty if it was not."""
    undecided: dict[str, str] = field(default_factory=dict)
    """The values that could not be compared although the check was run, with the reason for each."""
    notes: list[str] = field(default_factory=list)
    """Remarks on how the check was run."""
    required: bool = False
    """True if the report is incomplete when the check is skipped, or leaves a value undecided."""
    statistics: dict[str, list[TensorStatistics]] = field(default_factory=dict)
    """The tensors of the subjects with the largest measures, worst first."""

    @property
    def passed(self) -> bool:
        """True if the check was run, compared anything, and all rows passed."""
        return not self.problem

    @property
    def problem(self) -> str:
        """The reason why the check did not pass; empty if it did."""
        if self.skipped:
            return f"skipped, {self.skipped}"
        if not self.rows:
            reasons = "; ".join(self.not_compared())
            return f"nothing was compared{f' ({reasons})' if reasons else ''}"
        if failed := len(self.failures):
            return f"{failed} of {len(self.rows)} comparisons failed"
        if self.required and self.undecided:
            count = len(self.undecided)
            return f"{count} of {len(self.rows) + count} values could not be decided"
        return ""

    @property
    def failures(self) -> list[Row]:
        """The rows that did not pass, worst first."""
        return [row for row in self.worst_first() if not row.passed]

    def not_compared(self) -> list[str]:
        """Returns the undecided values with their reasons, as text: the first few of each reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.undecided.items():
            names.setdefault(reason, []).append(name)
        return [f"{', '.join(few[:MOST_NAMES])}{_others(few)}: {reason}" for reason, few in names.items()]

    def worst_first(self) -> list[Row]:
        """Returns the rows sorted by their measure; NaN is worst."""
        return sorted(self.rows, key=lambda row: -rank(row.measure))


@dataclass
class Report:
    """The result of a validation."""

    model: str
    """The model that was validated."""
    batch_norms: dict[str, int]
    """The number of batch-norm nodes of the original, by op type."""
    against: str
    """The reference that the gradients were compared with."""
    implementations: list[str]
    """The implementations of the ops that were validated."""
    seed: int
    """The seed of random values."""
    inputs: dict[str, list[int]]
    """The shape of every input."""
    checks: list[Check] = field(default_factory=list)
    """The checks, in the order in which they were run."""
    notes: list[str] = field(default_factory=list)
    """Remarks on the model, and on how it was validated."""
    warnings: Sequence[str] = field(default_factory=list)
    """Reasons why a forward model is probably not suitable for training."""
    identity: Identity | None = None
    """The identity of the model: hashes and counts."""
    environment: Environment | None = None
    """The versions and the machine of the run."""
    error: str = ""
    """The reason why the model could not be validated; empty if it was."""
    other_references: list[str] = field(default_factory=list)
    """The references that could decide if a check of this one cannot be run."""
    command: str = ""
    """The command line that made the report; empty for Python."""
    instead_of: str = ""
    """The reference that was asked for, if it is not `against`, with the reason in `notes`; empty if it is."""
    nodes: Sequence[GraphNode] = field(default=(), repr=False)
    """The nodes of the training graph, for pictures; not in JSON."""

    @property
    def compared_with(self) -> str:
        """The reference, and the one that it replaces."""
        return f"{self.against} instead of {self.instead_of}" if self.instead_of else self.against

    @property
    def providers(self) -> list[str]:
        """Deprecated, the same as `implementations`: the next version will not have it."""
        return self.implementations

    @property
    def passed(self) -> bool:
        """True if at least one check was run, and all checks that were run or are required passed."""
        return not self.reason

    @property
    def verdict(self) -> Verdict:
        """``incomplete`` if no comparison failed, but one that decides could not be made."""
        if self.passed:
            return "passed"
        return "failed" if self.error or any(check.failures for check in self.checks) else "incomplete"

    @property
    def advice(self) -> str:
        """The references that could decide an incomplete report, in one sentence; empty for others."""
        open_ = any(
            check.required and (check.skipped or check.undecided.keys() - {ALL_GRADIENTS}) for check in self.checks
        )
        if self.verdict != "incomplete" or not open_ or not self.other_references:
            return ""
        others = " or ".join(f"--against {name}" for name in self.other_references)
        return f"No comparison failed. {others} can decide."

    @property
    def reason(self) -> str:
        """The reason why the report did not pass, in one line; empty if it did."""
        if self.error:
            return self.error
        if all(check.skipped for check in self.checks):
            checks = "; ".join(f"{check.name}: {check.problem}" for check in self.checks)
            return f"nothing was compared{f' ({checks})' if checks else ''}"
        decisive = [check for check in self.checks if check.required or not check.skipped]
        return "; ".join(f"{check.name}: {check.problem}" for check in decisive if not check.passed)

    def __str__(self) -> str:
        """Returns a line for each check, and whether the report passed."""
        lines = [f"{self.model}: {self.compared_with}"]
        for check in self.checks:
            line = f"{check.name}: {check.problem or f'{len(check.rows)} comparisons passed'}"
            for row in check.worst_first()[:1]:
                line += f"; largest {row.measure:.3g} {check.unit}, of {row.tensor!r} (limit {check.limit:g})"
            lines.append(line)
        return "\n".join([*lines, f"{VERDICTS[self.verdict]}{'' if self.passed else f': {self.reason}'}"])

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON document of ``--json``; infinities and NaN are given as text."""
        document = asdict(replace(self, nodes=()))
        del document["nodes"]
        document["providers"] = self.providers
        document["passed"] = self.passed
        document["verdict"] = self.verdict
        document["reason"] = self.reason
        document["advice"] = self.advice
        for check, content in zip(self.checks, document["checks"], strict=True):
            content["passed"] = check.passed
            content["rows"] = [asdict(row) for row in check.worst_first()]
            for row in content["rows"]:
                _name_infinities(row)
            for tensors in content["statistics"].values():
                for tensor in tensors:
                    _name_infinities(tensor)
        return document


def _others(names: Sequence[str]) -> str:
    return f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else ""


def failed_report(model: str, against: str, seed: int, error: str) -> Report:
    """Returns the report of a model that could not be validated.

    Args:
        model: The model.
        against: The reference that it was to be compared with.
        seed: The seed of random values.
        error: The reason why it could not be validated.
    """
    return Report(model, {}, against, [], seed, {}, error=error)


def _name_infinities(content: dict[str, Any]) -> None:
    """Replaces infinities and NaN, which JSON does not have, by text."""
    for key, value in content.items():
        if isinstance(value, float) and not math.isfinite(value):
            content[key] = str(value)


def rank(measure: float) -> float:
    """Returns the key that errors are sorted by: the error itself; NaN is worst."""
    return math.inf if math.isnan(measure) else measure


def differences(got: Array, want: Array) -> tuple[float, float]:
    """Returns the largest absolute difference of two arrays, and the relative 2-norm of their difference.

    Elements that are both NaN or the same infinity do not differ; if only one is not finite, they differ by
    infinity.
    """
    return measures(absolute_difference(got, want), want)


def measures(difference: NDArray[np.float64], want: Array) -> tuple[float, float]:
    """Returns the largest element of an `absolute_difference`, and its 2-norm relative to that of `want`."""
    if difference.size == 0:
        return 0.0, 0.0
    size = norm(want)
    apart = float(np.linalg.norm(difference))
    relative = 0.0 if apart == 0 else apart / size if size else math.inf
    return float(difference.max()), relative


def distance(got: Array, want: Array) -> float:
    """Returns the 2-norm of the difference of two arrays; infinity if their shapes differ."""
    return float(np.linalg.norm(absolute_difference(got, want))) if got.shape == want.shape else math.inf


def norm(value: Array) -> float:
    """Returns the 2-norm of an array's finite elements."""
    result = float(np.linalg.norm(value.astype(np.float64, copy=False)))
    if math.isfinite(result):
        return result
    return float(np.linalg.norm(np.where(np.isfinite(value), value, 0).astype(np.float64)))


def absolute_difference(got: Array, want: Array) -> NDArray[np.float64]:
    """Returns |got - want| in float64; see `differences` for elements that are not finite."""
    left, right = got.astype(np.float64, copy=False), want.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):
        difference = np.asarray(np.abs(left - right))
    if np.isfinite(difference).all():
        return difference
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    difference = np.where(same, 0.0, difference)
    return np.where(np.isnan(difference), np.inf, difference)
