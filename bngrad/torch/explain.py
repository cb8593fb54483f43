"""`explain`: everything that keeps a module from being exported and trained, at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bngrad.autodiff.size_conditions import condition_text
from bngrad.errors import BngradError, UnsupportedNodeError
from bngrad.option_fields import takes_keywords
from bngrad.torch.options import ExportOptions
from bngrad.torch.source import check_source, read_source
from bngrad.training.differentiate import differentiate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Unpack

    import torch

    from bngrad.torch.options import ExportKeywords
    from bngrad.torch.source import ExportResult

    Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Explanation:
    """The reasons why a module cannot be trained, and the warnings and conditions of its training step."""

    blockers: list[str]
    """The reasons why it is refused, one a line; empty if `training_step` accepts it."""
    warnings: list[str]
    """The warnings of the export."""
    sizes: list[str]
    """The conditions on the sizes of the step's data, such as ``N > 6``."""

    @property
    def passed(self) -> bool:
        """True if `training_step` accepts the module."""
        return not self.blockers

    def __str__(self) -> str:
        """All as text."""
        lines = [f"refused: {blocker}" for blocker in self.blockers] or ["nothing is refused"]
        lines += [f"warning: {warning}" for warning in self.warnings]
        lines += [f"sizes: {condition}" for condition in self.sizes]
        return "\n".join(lines)


@takes_keywords(ExportOptions)
def explain(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    **options: Unpack[ExportKeywords],
) -> Explanation:
    """Lists all reasons why a module cannot be trained, where `training_step` raises the first.

    These are hooks, functions with gradients of their own, code that `torch.export` cannot trace, ops that cannot
    be written as ONNX, ops without a gradient rule, and a step that is not PyTorch's. Later stages run after an
    error, too, unless PyTorch cannot run or trace the module. The module, its buffers and the random state are not
    changed.

    Args:
        module: See `export`, also for its options, except ``check``.
        loss_fn: See `export`.
        example: See `export`.
    """
    blockers: list[BngradError] = []
    source: ExportResult | None = None
    try:
        source = read_source(module, loss_fn, example, ExportOptions(**options), blockers=blockers)
    except BngradError as error:
        blockers.append(error)
    if source is None:
        return Explanation(_lines(blockers), [], [])
    blockers += _of_the_graph(source, alone=not blockers)
    info = source.exported.info
    conditions = (*info.size_conditions, *info.training_size_conditions)
    return Explanation(_lines(blockers), source.exported.warnings, list(map(condition_text, conditions)))


def _of_the_graph(source: ExportResult, *, alone: bool) -> list[BngradError]:
    """The errors of an exported model; unless it is ``alone``, earlier errors may be the reason for some."""
    try:
        differentiate(source.exported.model, defaults=False)
        if alone:
            check_source(source)
    except UnsupportedNodeError as error:
        return [UnsupportedNodeError(line) for line in error.lines] or [error]
    except BngradError as error:
        return [error] if alone else []
    return []


def _lines(errors: Sequence[BngradError]) -> list[str]:
    """The messages, each once, without the function by which PyTorch calls the hook of a module."""
    lines = list(dict.fromkeys(map(str, errors)))
    hooked = any("has a backward hook" in line for line in lines)
    return [line for line in lines if not (hooked and "BackwardHookFunction" in line)]
