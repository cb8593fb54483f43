"""The options of the functions and commands for batch norms before and after training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from bngrad.arguments import require_number
from bngrad.errors import InputError
from bngrad.option_fields import BATCH_NORMS, Options, option

AveragedStatistics = Literal["merge", "mean", "local"]
"""The running statistics of an average: those of the union of the data, means, or a client's own."""

OptimizerState = Literal["average", "reset", "keep"]
"""The optimizer state of an average: the mean, zeros, or a client's own."""


class AverageKeywords(TypedDict, total=False):
    """The fields of `AverageOptions`."""

    statistics: AveragedStatistics
    optimizer: OptimizerState
    fedbn: bool
    local: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class AverageOptions(Options):
    """The options of `bngrad.federated.average`, which describes each."""

    statistics: AveragedStatistics = option(
        "merge",
        "Running statistics: those of the union of the clients' data (merge), means of means and variances "
        "(mean), or those of --own (local).",
        group=BATCH_NORMS,
    )
    fedbn: bool = option(
        False,
        "Keep scales, biases and statistics of all batch norms as --own has them, as in FedBN.",
        group=BATCH_NORMS,
    )
    optimizer: OptimizerState = option(
        "average",
        "Optimizer state: the mean (average), zeros, from which the updates are counted anew (reset), or that of "
        "--own (keep).",
    )
    local: Sequence[str] = option(
        (), "Weight, or pattern, that stays as --own has it (repeatable).", metavar="NAME"
    )

    @property
    def keeps_own(self) -> bool:
        """True if some tensors are those of one client."""
        return self.statistics == "local" or self.optimizer == "keep" or self.fedbn or bool(self.local)


BatchNormMode = Literal["frozen", "training"]
"""The statistics that a batch norm normalizes by: the running ones, or those of the batch."""


class BatchNormKeywords(TypedDict, total=False):
    """The fields of `BatchNormOptions`."""

    batch_norms: Sequence[str] | None
    mode: BatchNormMode | None
    momentum: float | None
    epsilon: float | None
    ghost: int | None
    fold: bool


@dataclass(frozen=True, kw_only=True)
class BatchNormOptions(Options):
    """The options of `bngrad.edit_batch_norms`, which describes each."""

    batch_norms: Sequence[str] | None = option(
        None,
        "Batch norm, or pattern such as `'layer1.*'`, to edit (repeatable).  [default: all]",
        metavar="NAME",
        command_line="--batch-norm",
    )
    mode: BatchNormMode | None = option(
        None,
        "Let `bngrad step` use the running statistics (frozen), or those of the batch (training).",
    )
    momentum: float | None = option(
        None,
        "Weight of the old value in a new running statistic, as in ONNX: 0.9 where PyTorch's momentum is 0.1.",
        metavar="X",
    )
    epsilon: float | None = option(None, "Epsilon; another one changes the function.", metavar="X")
    ghost: int | None = option(
        None, "Samples that get statistics of their own in a training step; 0 for the whole batch.", metavar="N"
    )
    fold: bool = option(
        False, "Fold batch norms into the convolutions and matrix products before or after them, for inference."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        edits = {"mode": self.mode, "momentum": self.momentum, "epsilon": self.epsilon, "ghost": self.ghost}
        if not self.fold and all(value is None for value in edits.values()):
            raise InputError("there is no edit; expected --mode, --momentum, --epsilon, --ghost or --fold")
        for name in ("momentum", "ghost") if self.fold else ():
            if edits[name] is not None:
                raise InputError(
                    f"--fold (fold=) is combined with --{name} ({name}=), which is of training; a folded batch "
                    "norm cannot be trained"
                )
        if self.fold and self.mode == "training":
            raise InputError(
                "--fold (fold=) is combined with --mode training (mode=); expected frozen, or no mode"
            )
        if self.momentum is not None and not 0 <= require_number("momentum", self.momentum) <= 1:
            raise InputError(f"momentum is {self.momentum}; expected a number from 0 to 1")
        if self.ghost is not None and not (type(self.ghost) is int and 0 <= self.ghost < 1 << 31):
            raise InputError(f"ghost is {self.ghost!r}; expected a number of samples, or 0 for the whole batch")


class RestoreKeywords(TypedDict, total=False):
    """The fields of `RestoreOptions`."""

    layers: Sequence[str] | None
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(Options):
    """The options of `bngrad.restore_batch_norms`, which describes each."""

    layers: Sequence[str] | None = option(
        None,
        "Conv, ConvTranspose or Gemm, or pattern such as `'layer1.*'`, that gets a batch norm (repeatable); a "
        "pattern leaves out those that have one.  [default: those that MODEL records as folded]",
        metavar="NAME",
        command_line="--layer",
    )
    epsilon: float = option(1e-5, "Epsilon of the new batch norms.", metavar="X")
