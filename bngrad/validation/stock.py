"""The graph under test on the installed ONNX Runtime, against itself in float64.

How far right answers in float may be from the exact ones depends on the network. It is measured, as in `noise`:
moving every float input by its last bit changes what is rounded on the way, so the answers to such moves are as
far from each other as they are from the exact ones. And as there, the closest of several answers are compared, for
a unit that sits on the kink of its ReLU is on either side by chance.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.nodes import all_nodes
from bngrad.runtime import session
from bngrad.validation.double import too_large
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.inputs import feeds_of
from bngrad.validation.noise import LIMIT, MOVES, moves
from bngrad.validation.report import Check, Row, absolute_difference
from bngrad.validation.seeding import draws_random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.runtime import Provider
    from bngrad.validation.float64 import Evaluator

    Array = NDArray[Any]

_ROUNDINGS = 8
"""The floor of a tensor that the moves hardly change, in roundings of its type."""

_NEGLIGIBLE = 1e-2
"""Of the largest of its kind: a gradient that is zero in exact arithmetic is compared as if it were this large."""


def on_stock(
    tested: ir.Model,
    in_float64: Evaluator,
    feeds: Mapping[str, Array],
    *,
    kinds: Mapping[str, str],
    providers: Sequence[Provider],
    seed: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Check:
    """Runs a training graph on the installed ONNX Runtime, and compares every output with it in float64.

    Args:
        tested: The training graph, with the functions of the ops of ``bngrad``.
        in_float64: The same.
        feeds: Its inputs, and others.
        kinds: What its outputs are.
        providers: The implementations of the ops of ``bngrad``; the first runs on all moves, the others on two.
        seed: For the moves.
        progress: Called with the number of runs done, and of all.

    Returns:
        The check; a row's measure is the 2-norm of the closest answers' difference over that of the answers to two
        moves.
    """
    check = Check("on stock ONNX Runtime", unit="x noise floor", limit=LIMIT)
    check.skipped = too_large(feeds) or _unfit(tested)
    if check.skipped:
        return check
    feeds, names = feeds_of(tested, feeds), [str(value.name) for value in tested.graph.outputs]
    kinds = {name: kinds.get(name, "other output") for name in names}
    total, done = MOVES + 1 + MOVES + 1 + 2 * (len(providers) - 1), itertools.count(1)
    exact = []
    try:
        for moved in moves(feeds, seed):
            exact.append(in_float64(moved, names))
            progress(next(done), total)
    except UnsupportedNodeError as error:
        check.skipped = str(error)
        return check
    except EvaluationError as error:
        check.rows.append(_row("training graph", "training graph", "float64", note=str(error)))
        return check
    floor: dict[str, float] = {}
    for provider in providers:
        answers = []
        try:
            runner = session(tested, provider)
            for moved in itertools.islice(moves(feeds, seed), 2 if floor else MOVES + 1):
                answers.append(dict(zip(names, runner.run(names, moved), strict=True)))
                progress(next(done), total)
        except Exception as error:  # noqa: BLE001 - whatever stops it is a finding
            note = " ".join(str(error).split())
            check.rows.append(_row("training graph", "training graph", provider, note=note))
            continue
        floor = floor or _floors(answers, exact, kinds)
        for name in names:
            check.rows.append(_compared(name, kinds[name], provider, answers, exact, floor[name]))
    return check


def _unfit(model: ir.Model) -> str:
    """Why a model's answers cannot be compared; empty if they can."""
    if any(value.dtype == ir.DataType.BFLOAT16 for value in (*model.graph.inputs, *model.graph.outputs)):
        return "the model has bfloat16 inputs or outputs, which ONNX Runtime takes no arrays of in Python"
    random = next((node for node in all_nodes(model) if draws_random_numbers(node)), None)
    if random is not None:
        return f"{random.op_type} node {random.name!r} draws random numbers, which ONNX Runtime draws otherwise"
    return ""


def _floors(
    answers: Sequence[Mapping[str, Array]], exact: Sequence[Mapping[str, Array]], kinds: Mapping[str, str]
) -> dict[str, float]:
    """How far right answers are from each other, by name."""
    largest = dict.fromkeys(kinds.values(), 0.0)
    for name, value in exact[0].items():
        largest[kinds[name]] = max(largest[kinds[name]], _norm(value))
    floors = {}
    for name, value in answers[0].items():
        spread = max(_distance(one[name], other[name]) for one, other in itertools.combinations(answers, 2))
        unit = float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 0.0
        size = max(_norm(exact[0][name]), _NEGLIGIBLE * largest[kinds[name]])
        floors[name] = max(spread, _ROUNDINGS * unit * size)
    return floors


def _compared(
    name: str,
    kind: str,
    provider: str,
    answers: Sequence[Mapping[str, Array]],
    exact: Sequence[Mapping[str, Array]],
    floor: float,
) -> Row:
    got, want = answers[0][name], exact[0][name]
    if got.shape != want.shape:
        return _row(name, kind, provider, note=f"shape {list(got.shape)}; expected {list(want.shape)}")
    pairs = [(answer[name], right[name]) for answer in answers for right in exact]
    got, want = min(pairs, key=lambda pair: _distance(*pair))
    distance, norm = _distance(got, want), _norm(want)
    measure = 0.0 if distance == 0 else distance / floor if floor else float(np.inf)
    figures = (float(absolute_difference(got, want).max(initial=0.0)), distance / norm if norm else distance)
    return Row(name, name, kind, provider, "float64", *figures, measure, passed=measure <= LIMIT)


def _distance(got: Array, want: Array) -> float:
    return float(np.linalg.norm(absolute_difference(got, want)))


def _norm(value: Array) -> float:
    return float(np.linalg.norm(np.where(np.isfinite(value), value, 0).astype(np.float64)))


def _row(name: str, kind: str, provider: str, note: str) -> Row:
    inf = float(np.inf)
    return Row(name, name, kind, provider, "float64", inf, inf, inf, passed=False, note=note)
