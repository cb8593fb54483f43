"""The options of `differentiate` and of `training_step`; see `bngrad.options`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from bngrad.errors import InputError
from bngrad.option_fields import BATCH_NORMS, OUTPUT, Options, option, values_of
from bngrad.options import ForwardKeywords, ForwardOptions, GraphKeywords, GraphOptions, Quantize

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bngrad.training.loss_functions import LossFunction
    from bngrad.training.optimizers import Optimizer, ParameterGroup

Builder = Literal["bngrad", "ort"]
"""The gradient builder: the rules of this package, or ONNX Runtime's own."""

DifferentiationTarget = Literal["stock", "training", "ort"]
"""Where a training graph runs.

``stock``: any ONNX Runtime. ``training``: a training build, with the batch norms as ops of ``bngrad``. ``ort``: a
consumer of ORT's dialect, without ops of ``bngrad``.
"""

Layout = Literal["named", "flat"]
"""The form of a step's state: an input for each tensor, or one vector."""

Precision = Literal["model", "mixed", "mixed-bfloat16"]
"""The types that a step computes in: those of the model, or float16 or bfloat16 where that is safe."""

OPTIMIZER, PRECISION = "Optimizer", "Mixed precision"


class LossKeywords(ForwardKeywords, total=False):
    """The fields of `LossOptions`."""

    loss_fn: "str | LossFunction | None"
    prediction: str | None


@dataclass(frozen=True, kw_only=True)
class LossOptions(ForwardOptions):
    """The options to differentiate a forward model that may have no loss."""

    loss_fn: "str | LossFunction | None" = None  # its options are in `bngrad.cli.loss_options`
    prediction: str | None = None

    def require_one_loss(self) -> None:
        """Refuses options that contradict each other about the loss.

        Raises:
            InputError: A loss and a loss function are given, or a prediction without a loss function.
        """
        if self.loss is not None and self.loss_fn is not None:
            raise InputError(
                f"loss {self.loss!r} is named, and a loss function is to be appended; expected either --loss "
                "(loss=) or --loss-fn (loss_fn=)"
            )
        if self.prediction is not None and self.loss_fn is None:
            raise InputError(
                f"prediction {self.prediction!r} is named without a loss function; add --loss-fn (loss_fn=), or "
                "name the model's own loss with --loss (loss=)"
            )


class TrainingKeywords(LossKeywords, GraphKeywords, total=False):
    """The fields of `TrainingOptions`."""

    sync: bool


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(GraphOptions, LossOptions):
    """The options of both `differentiate` and `training_step`."""

    sync: bool = option(
        False,
        "Build the graph for one rank of a [distributed run](../guides/distributed.md): batch norms in "
        "training mode use the statistics of the whole batch, and the loss and the gradients are those of the "
        "whole batch on every rank.",
        group=BATCH_NORMS,
    )


class DifferentiateKeywords(TrainingKeywords, total=False):
    """The fields of `DifferentiateOptions`."""

    builder: Builder
    target: DifferentiationTarget
    defaults: bool


@dataclass(frozen=True, kw_only=True)
class DifferentiateOptions(TrainingOptions):
    """The options of `bngrad.differentiate`, which describes each."""

    builder: Builder = option(
        "bngrad",
        "Gradient builder: the rules of this package (bngrad), or that of ONNX Runtime's training build, in the "
        "environment of [oracle](#bngrad-oracle) (ort).",
    )
    target: DifferentiationTarget = option(
        "stock",
        "[Runtime](training-graph.md#targets) for the result: any ONNX Runtime (stock); a training build with "
        "bngrad's batch norms (training); or only a training build (ort).",
        group=OUTPUT,
    )
    defaults: bool = option(
        True,
        "Keep the values of weights and running statistics as defaults of their inputs. "
        "[Languages other than Python](training-graph.md#defaults) need --no-defaults, and feed the values.",
        group=OUTPUT,
    )


class UpdateKeywords(TypedDict, total=False):
    """The fields of `UpdateOptions`."""

    layout: Layout
    groups: "Sequence[ParameterGroup]"
    clip_norm: float | None
    accumulate: int
    ema: float | None
    swa: int | None
    swa_every: int | None
    freeze_statistics: int | None
    group_updates: bool
    precision: Precision
    init_scale: float | None
    growth_interval: int | None
    outputs: Sequence[str]
    defaults: bool


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(Options):
    """The options for the updates of the weights, and for the inputs and outputs of a step."""

    groups: "Sequence[ParameterGroup]" = ()
    clip_norm: float | None = option(
        None, "Scale gradients to a global norm of at most X.", group=OPTIMIZER, metavar="X"
    )
    accumulate: int = option(
        1,
        "Update the weights in every N-th call, with the mean gradient of N calls.",
        group=OPTIMIZER,
        metavar="N",
        minimum=1,
    )
    ema: float | None = option(
        None,
        "Keep [moving averages](../guides/averaged-weights.md) of weights and running statistics, as 0.999, which "
        "evaluation and the inference model use.",
        group=OPTIMIZER,
        metavar="DECAY",
    )
    swa: int | None = option(
        None,
        "Keep [equal averages](../guides/averaged-weights.md) of weights and running statistics from update N "
        "on, in place of moving ones.",
        group=OPTIMIZER,
        metavar="N",
        minimum=1,
    )
    swa_every: int | None = option(
        None,
        "Average every N-th update, for --swa.  [default: 1]",
        group=OPTIMIZER,
        metavar="N",
        minimum=1,
    )
    freeze_statistics: int | None = option(
        None,
        "Let batch norms use their running statistics after N updates; these stay then.",
        group=BATCH_NORMS,
        metavar="N",
        minimum=0,
    )
    group_updates: bool = option(
        False,
        "Write the updates of weights with equal options as one op, such as "
        "[SgdGroupUpdate](ops.md#sgdgroupupdate), for systems that have a kernel of it. The result needs "
        "ONNX Runtime 1.27.",
        group=OPTIMIZER,
    )
    precision: Precision = option(
        "model",
        "Types to compute in: those of MODEL (model), or 16 bits [where that is safe]"
        "(../guides/mixed-precision.md), in float16 with loss scaling (mixed) or in bfloat16 (mixed-bfloat16). "
        "The state stays in the types of MODEL.",
        group=PRECISION,
    )
    init_scale: float | None = option(
        None, "First scale of the loss, for `mixed`.  [default: 65536]", group=PRECISION, metavar="X"
    )
    growth_interval: int | None = option(
        None,
        "Double the scale after N calls with finite gradients, for `mixed`.  [default: 2000]",
        group=PRECISION,
        metavar="N",
        minimum=1,
    )
    layout: Layout = option(
        "named",
        "State as an input and an output for each tensor (named), or as one vector (flat).",
        group=OUTPUT,
    )
    defaults: bool = option(
        False,
        "Give the inputs of the state the initial values as defaults, which only Python and C support.",
        group=OUTPUT,
        command_line="--with-defaults",
    )
    outputs: Sequence[str] = option(
        (),
        "Further output: an output of MODEL, or a gradient NAME_grad (repeatable).",
        group=OUTPUT,
        metavar="NAME",
        command_line="--fetch",
    )


class StepKeywords(UpdateKeywords, TrainingKeywords, total=False):
    """The fields of `StepOptions`."""

    optimizer: "str | Optimizer"
    values: "Mapping[str, NDArray[np.generic]] | None"
    batch_statistics: bool
    quantize: Quantize | None
    symmetric: bool
    learned_scales: bool
    freeze_ranges: int | None


@dataclass(frozen=True, kw_only=True)
class StepOptions(UpdateOptions, TrainingOptions):
    """The options of `bngrad.training_step`, which describes each."""

    optimizer: "str | Optimizer" = "sgd"
    values: "Mapping[str, NDArray[np.generic]] | None" = None
    batch_statistics: bool = option(
        False,
        "Keep batch norms [in primitives](dialects/primitives.md#limits), which use the statistics of the batch "
        "in inference, too. Without this option, MODEL is refused if an output depends on one.",
        group=BATCH_NORMS,
    )

    quantize: Quantize | None = option(
        None,
        "[Quantization-aware training](../guides/quantization.md): round weights to int8 and activations to this "
        "type where the inference model does, with batch norms folded; finalize writes that model.",
        group=PRECISION,
    )
    symmetric: bool = option(
        False, "Put the zero point of quantized activations in the middle of the integers.", group=PRECISION
    )
    learned_scales: bool = option(
        False,
        "Train the [scales of quantized activations](../guides/quantization.md#learned-scales) (LSQ), for "
        "--quantize.",
        group=PRECISION,
    )
    freeze_ranges: int | None = option(
        None,
        "Let the ranges of quantized activations follow the data in the first N updates only, for --quantize; "
        "with --learned-scales, the scales are trained from then on, and N is 0 by default.",
        group=PRECISION,
        metavar="N",
        minimum=0,
    )

    def forward(self, **changes: Any) -> DifferentiateOptions:  # noqa: ANN401 - of the types of the fields
        """Returns the options of `differentiate` among these, with changes."""
        return DifferentiateOptions(**(values_of(TrainingOptions, self) | changes))
