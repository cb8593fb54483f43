"""The mode that ``--frozen`` and ``--training`` give each batch norm, by name or pattern.

A batch norm that neither matches follows the model. PyTorch's modern exporter writes every batch norm in inference
mode, and records the mode that it had: the recorded mode is the model's.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from bngrad.errors import ModelError
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.nodes import counted
from bngrad.graph.torch_records import (
    batch_norm_call,
    is_folded_batch_norm,
    recorded_mode,
    recorded_names,
    updated_means,
)
from bngrad.options import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
    patterns = [pattern for pattern in training if pattern != AUTO]
    choices = [
        _match(names, pattern, mode) for mode, selected in enumerate((frozen, patterns)) for pattern in selected
    ]
    modes: dict[ir.Node, int] = {}
    for node, name in names.items():
        asking = [choice for choice in choices if node in choice.nodes]
        deciding = [choice for choice in asking if not any(_is_narrower(other, choice) for other in asking)]
        patterns_by_mode = {choice.mode: choice.pattern for choice in deciding}
        if len(patterns_by_mode) > 1:
            raise ModelError(
                f"batch norm {name!r} is matched by --frozen {patterns_by_mode[0]!r} and by --training "
                f"{patterns_by_mode[1]!r}; expected one of them, or its name in one"
            )
        if patterns_by_mode:
            (modes[node],) = patterns_by_mode
    return modes


def put_in_training_mode(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Returns the batch norms that were in training mode in PyTorch."""
    return [node for node in nodes if recorded_mode(node)]


def folded_in_training_mode(graph: ir.Graph) -> list[ir.Node]:
    """Returns the nodes that batch norms were folded into that were in training mode in PyTorch.

    A node that two were folded into has only the call of the last one. The first is lost if the module updates a
    running mean that no recorded call reads.
    """
    folded = [node for node in graph if is_folded_batch_norm(node)]
    names = recorded_names(graph)
    calls = filter(None, map(batch_norm_call, graph))
    recorded = {names.get(str(call.buffer(3))) for call in calls if call.is_training}
    return folded if updated_means(graph) - recorded else [node for node in folded if recorded_mode(node)]


def refuse_folded(folded: Iterable[ir.Node], modes: Mapping[ir.Node, int]) -> None:
    """Refuses a file whose batch norms in training mode are gone, unless ``--frozen`` accepts it.

    Raises:
        ModelError: A node is not matched by ``--frozen``.
    """
    lost = [node for node in folded if modes.get(node, 1)]
    if lost:
        raise ModelError(
            f"PyTorch's exporter folded batch norms that were in training mode into "
            f"{counted(lost, 'layer')}, so they cannot be trained; export with torch.onnx.export(..., "
            "dynamo=True, optimize=False), or use bngrad.torch.training_step, or restore them from data with "
            "bngrad restore, or pass --frozen with the names of the layers (frozen=) to train them as layers "
            "without batch norms"
        )


def refuse_unknown_modes(unknown: Sequence[ir.Node]) -> None:
    """Refuses ``--training auto`` where the file does not record the mode of a batch norm.

    Raises:
        ModelError: There is one.
    """
    if unknown:
        raise ModelError(
            f"--training auto (training=): the file does not record the mode that "
            f"{counted(unknown, 'batch norm')} had in PyTorch, as torch.onnx.export(..., dynamo=True) "
            "does; name the batch norms with --training and --frozen"
        )


def matching(names: Mapping[ir.Node, str], pattern: str) -> frozenset[ir.Node]:
    """Returns the nodes that a pattern matches; one that is a name, such as ``bn[0]``, matches only that name."""
    named = frozenset(node for node, name in names.items() if name == pattern)
    return named or frozenset(node for node, name in names.items() if fnmatchcase(name, pattern))


def _match(names: Mapping[ir.Node, str], pattern: str, mode: int) -> _Choice:
    nodes = matching(names, pattern)
    if not nodes:
        hint = (
            "" if names else "; bngrad restore gives layers that batch norms were folded into new ones, from data"
        )
        raise ModelError(unknown_name(pattern, set(names.values()), "a batch norm") + hint)
    return _Choice(pattern, mode, nodes, is_name=pattern in names.values())


def _is_narrower(choice: _Choice, other: _Choice) -> bool:
    return choice.nodes < other.nodes or (choice.nodes <= other.nodes and choice.is_name and not other.is_name)
