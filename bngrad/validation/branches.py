"""The branches of piecewise ops: the elements above zero of a Relu, the largest element of a MaxPool window.

A loss of such ops has kinks, at which a branch changes. `recorded` keeps the branches of one evaluation, and
`held` makes later evaluations take the same ones, wherever their inputs are. The loss then is smooth, and its
slope at the recorded inputs is that of the loss itself, unless they are at a kink.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Branch = TypeVar("Branch")

_CHOICE: ContextVar[Callable[[Callable[[], Any]], Any]] = ContextVar("choice", default=lambda compute: compute())


def choose(compute: Callable[[], Branch]) -> Branch:
    """Returns the branch of an op: what the function returns, or the branch that is held.

    Args:
        compute: Computes the branch from the inputs of the op.
    """
    branch: Branch = _CHOICE.get()(compute)
    return branch


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Records the branches of the ops that run in the context, in the order in which they run."""
    branches: list[Any] = []

    def record(compute: Callable[[], Any]) -> Any:  # noqa: ANN401 - a mask, or indices
        branches.append(compute())
        return branches[-1]

    token = _CHOICE.set(record)
    try:
        yield branches
    finally:
        _CHOICE.reset(token)


@contextmanager
def held(branches: Sequence[Any]) -> Iterator[None]:
    """Makes the ops that run in the context take recorded branches; more ops than were recorded fail."""
    remaining = iter(branches)
    token = _CHOICE.set(lambda _compute: next(remaining))
    try:
        yield
    finally:
        _CHOICE.reset(token)
