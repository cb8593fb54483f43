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
    from bngrad.torch.source import Source

    Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Explanation:
    """What keeps a module from being trained, and what holds for it otherwise."""

    blockers: list[str]
    """Why it is refused, a line each; empty if `training_step` takes it."""
    warnings: list[str]
    """What is probably not intended."""
    sizes: list[str]
    """What the sizes of the step's data have to fulfil, such as ``N > 6``."""

    @property
    def passed(self) -> bool:
        """Whether nothing keeps the module from being trained."""
        return not self.blockers

    def __str__(self) -> str:
        """All as text."""
        lines = [f"refused: {one}" for one in self.blockers] or ["nothing is refused"]
        lines += [f"warning: {one}" for one in self.warnings]
        lines += [f"sizes: {one}" for one in self.sizes]
        return "\n".join(lines)


@takes_keywords(ExportOptions)
def explain(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    **options: Unpack[ExportKeywords],
) -> Explanation:
    """Lists everything that keeps a module from being trained, where `training_step` raises the first.

    These are hooks, functions with gradients of their own, what `torch.export` cannot trace, ops that cannot be
    written as ONNX, ops without a gradient rule, and a step that is not PyTorch's. A later stage is tried in spite
    of what an earlier one found; where PyTorch cannot run or trace the module, nothing follows. The module, its
    buffers and the random state are not changed.

    Args:
        module: See `export`; so are its options, but for ``check``.
        loss_fn: See `export`.
        example: See `export`.
    """
    blockers: list[BngradError] = []
    source: Source | None = None
    try:
        source = read_source(module, loss_fn, example, ExportOptions(**options), blockers=blockers)
    except BngradError as error:
        blockers.append(error)
    if source is None:
        return Explanation(_lines(blockers), [], [])
    blockers += _of_the_graph(source, alone=not blockers)
    info = source.exported.info
    conditions = (*info.size_conditions, *info.training_size_conditions)
    return Explanation(_lines(blockers), source.exported.warnings, [condition_text(one) for one in conditions])


def _of_the_graph(source: Source, *, alone: bool) -> list[BngradError]:
    """What keeps an exported model from being trained; other errors may be the reason if it is not alone."""
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
    """Each message once. PyTorch calls the hook of a module by a function, which is no error besides."""
    lines = list(dict.fromkeys(map(str, errors)))
    hooked = any("has a backward hook" in line for line in lines)
    return [line for line in lines if not (hooked and "BackwardHookFunction" in line)]
