"""The mode that ``--frozen`` and ``--training`` give each batch norm, by name or pattern."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from bngrad.errors import ModelError
from bngrad.graph.name_messages import unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir


class _Choice(NamedTuple):
    """A name or pattern, the training_mode that it selects, and the batch norms that it matches."""

    pattern: str
    mode: int
    nodes: frozenset[ir.Node]
    is_name: bool


def chosen_modes(
    names: Mapping[ir.Node, str], frozen: Sequence[str], training: Sequence[str]
) -> dict[ir.Node, int]:
    """Returns the training_mode of the batch norms that names or patterns match.

    Where both options match a batch norm, the narrower one decides: a name before a pattern, and a pattern before
    another that matches the same batch norms and more.

    Args:
        names: The names of the batch norms.
        frozen: Names or patterns of those that use their running statistics.
        training: The same for those that use the batch's.

    Raises:
        ModelError: One matches no batch norm, or both match one and neither is narrower.
    """
    choices = [_match(names, pattern, mode) for mode, given in enumerate((frozen, training)) for pattern in given]
    modes: dict[ir.Node, int] = {}
    for node, name in names.items():
        asking = [choice for choice in choices if node in choice.nodes]
        deciding = [one for one in asking if not any(_is_narrower(other, one) for other in asking)]
        wanted = {choice.mode: choice.pattern for choice in deciding}
        if len(wanted) > 1:
            raise ModelError(
                f"batch norm {name!r} is matched by --frozen {wanted[0]!r} and by --training {wanted[1]!r}; "
                "expected one of them, or its name in one"
            )
        if wanted:
            (modes[node],) = wanted
    return modes


def matching(names: Mapping[ir.Node, str], pattern: str) -> frozenset[ir.Node]:
    """The nodes that a pattern matches; one that is a name, such as ``bn[0]``, matches that name alone."""
    named = frozenset(node for node, name in names.items() if name == pattern)
    return named or frozenset(node for node, name in names.items() if fnmatchcase(name, pattern))


def _match(names: Mapping[ir.Node, str], pattern: str, mode: int) -> _Choice:
    found = matching(names, pattern)
    if not found:
        raise ModelError(unknown_name(pattern, set(names.values()), "a batch norm"))
    return _Choice(pattern, mode, found, is_name=pattern in names.values())


def _is_narrower(one: _Choice, other: _Choice) -> bool:
    return one.nodes < other.nodes or (one.nodes <= other.nodes and one.is_name and not other.is_name)
