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
from bngrad.graph.nodes import all_nodes
from bngrad.runtime.session import session
from bngrad.validation.double import too_large
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.inputs import feeds_of
from bngrad.validation.lockstep import EXACT
from bngrad.validation.noise import LIMIT, MOVES, Closest, closer, compared, floors, moves
from bngrad.validation.report import Check, Row
from bngrad.validation.seeding import draws_random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.runtime.session import Provider
    from bngrad.validation.float64 import Evaluator

    Array = NDArray[Any]


_SPACINGS = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
"""What the elements of a 16-bit type are apart, relative to them."""


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
    unit, exact = _spacing(tested), []
    try:
        for moved in moves(feeds, seed, unit):
            exact.append(in_float64(moved, names))
            progress(next(done), total)
    except UnsupportedNodeError as error:
        check.skipped = str(error)
        return check
    except EvaluationError as error:
        check.rows.append(_failed("function", str(error)))
        return check
    floor: dict[str, float] = {}
    for provider in providers:
        answers: list[dict[str, Array]] = []
        closest: dict[str, Closest] = {}
        try:
            runner = session(tested, provider)
            for moved in itertools.islice(moves(feeds, seed, unit), 2 if floor else MOVES + 1):
                answers.append(dict(zip(names, runner.run(names, moved), strict=True)))
                closer(closest, answers[-1], exact)
                progress(next(done), total)
        except Exception as error:  # noqa: BLE001 - whatever stops it is a finding
            check.rows.append(_failed(provider, " ".join(str(error).split())))
            continue
        floor = floor or floors(answers, kinds)
        check.rows += [
            compared(name, kinds[name], provider, EXACT, answer, floor[name]) for name, answer in closest.items()
        ]
    return check


def _unfit(model: ir.Model) -> str:
    """Why a model's answers cannot be compared; empty if they can."""
    if any(value.dtype == ir.DataType.BFLOAT16 for value in (*model.graph.inputs, *model.graph.outputs)):
        return "the model has bfloat16 inputs or outputs, which ONNX Runtime takes no arrays of in Python"
    random = next((node for node in all_nodes(model) if draws_random_numbers(node)), None)
    if random is not None:
        return f"{random.op_type} node {random.name!r} draws random numbers, which ONNX Runtime draws otherwise"
    return ""


def _spacing(model: ir.Model) -> float:
    """The relative spacing of the narrowest 16-bit type in a model; 0 if it has none."""
    types = {
        value.dtype for node in all_nodes(model) for value in (*node.inputs, *node.outputs) if value is not None
    }
    return max((spacing for dtype, spacing in _SPACINGS.items() if dtype in types), default=0.0)


def _failed(provider: str, note: str) -> Row:
    inf, graph = float(np.inf), "training graph"
    return Row(graph, graph, "graph", provider, EXACT, inf, inf, inf, passed=False, note=note)
