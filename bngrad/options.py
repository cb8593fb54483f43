"""The options by which graphs are rewritten and forward models differentiated.

`bngrad.training.options` and `bngrad.validation.options` have those of their rooms.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypedDict, get_args

from bngrad.arguments import is_count
from bngrad.errors import InputError
from bngrad.option_fields import BATCH_NORMS, OUTPUT, Options, option

Target = Literal["stock", "training"]
"""The system that runs a rewritten model: any ONNX Runtime, or a training build of it."""

Implementation = Literal["native", "python", "function"]
"""An implementation of the ops; see `bngrad.runtime.session`."""

RunningVariance = Literal["biased", "unbiased"]
"""The variance of a batch of M elements that updates the running variance.

``biased``: the mean of the squared deviations, ONNX's rule. ``unbiased``: that times M / max(M - 1, 1), the rule
of PyTorch, TensorFlow and MIOpen.
"""

SharedStatistics = Literal["separate", "chain"]
"""The separation of batch norms in training mode that read the same running statistic.

``separate``: each gets its own. ``chain``: they share one, which each updates in turn, as in PyTorch where a
module is called several times. By default, those that PyTorch's exporter records as calls of one module share one,
and others get their own.
"""

KeptValues = Literal["full", "lean"]
"""The forward values kept for the backward pass: all that it reads, or what takes long to compute."""

Memory = KeptValues | int | str
"""The forward values kept for the backward pass; or as many as fit into a number of bytes, such as ``"2GB"``."""

Quantize = Literal["int8", "uint8"]
"""The type of quantized activations; weights are int8."""

AUTO = "auto"
"""As ``training``: a model that does not record the mode of a batch norm is refused."""


_SIZE = re.compile(r"([0-9]{1,99}(?:\.[0-9]{1,99})?) ?([KMGT]?i?B|)")
"""A number and a unit; Python converts no text of thousands of digits."""

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{i}B": (1024 if i else 1000) ** power for power, letter in enumerate("KMGT", 1) for i in ("", "i")
}


def require_memory(memory: object) -> "KeptValues | int":
    """Returns a value of `Memory`, with a number of bytes as an int.

    Raises:
        InputError: It is something else, or not above 0.
    """
    if isinstance(memory, str) and memory in get_args(KeptValues):
        return memory  # type: ignore[return-value]
    match = _SIZE.fullmatch(memory) if isinstance(memory, str) else None
    exact = Fraction(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else None
    size = memory if exact is None or exact.denominator > 1 else exact.numerator
    if not is_count(size, 1):
        raise InputError(
            f"memory is {memory!r}; expected full, lean, or a number of bytes above 0, such as 700MiB or 2GB"
        )
    return size  # type: ignore[return-value]


class GraphKeywords(TypedDict, total=False):
    """The fields of `GraphOptions`."""

    functions: bool
    fuse: bool
    conv_grad: bool
    channels_last: bool
    memory: Memory


@dataclass(frozen=True, kw_only=True)
class GraphOptions(Options):
    """Options that decide the ops and nodes of a training graph."""

    functions: bool = option(
        True,
        "Embed the definitions of the `bngrad` ops, so that the result also runs without the native library.",
        group=OUTPUT,
    )
    fuse: bool = option(True, "Fuse the gradient of a ReLU with that of the batch norm before it.", group=OUTPUT)
    conv_grad: bool = option(
        False,
        "Write the gradients of each Conv as an op, [ConvGrad](ops.md#convgrad), for systems that have a kernel "
        "of it. The result needs ONNX Runtime 1.27.",
        group=OUTPUT,
    )
    channels_last: bool = option(
        False,
        "Lay out the data of convolutions and batch norms with [channels last](../guides/gpu.md#channels-last), "
        "for NVIDIA GPUs; implies --conv-grad.",
        group=OUTPUT,
    )
    memory: Memory = option(
        "full",
        "Keep all values that the backward pass reads (full); or compute batch norms and activations "
        "[again](../guides/training.md#less-memory) instead (lean); or only as many as it takes to run in BYTES, "
        "such as 700MiB or 2GB.",
        group=OUTPUT,
        metavar="full|lean|BYTES",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", require_memory(self.memory))
        super().__post_init__()


class RewriteKeywords(GraphKeywords, total=False):
    """The fields of `RewriteOptions`."""

    target: Target
    recognize: bool
    sync: bool


@dataclass(frozen=True, kw_only=True)
class RewriteOptions(GraphOptions):
    """The options of `bngrad.rewrite`."""

    target: Target = option(
        "stock",
        "Runtime for the result: any ONNX Runtime (stock); or a training build, for which only batch norms are "
        "rewritten (training).",
    )
    recognize: bool = option(
        True,
        "Replace batch norms [in primitives](dialects/primitives.md), such as Sub, Mul and ReduceMean, forward "
        "and backward.",
    )
    sync: bool = option(
        False,
        "Use the statistics of the whole batch of a [distributed run](../guides/distributed.md) in training "
        "batch norms. The loss and the gradients stay those of one rank.",
    )


class ForwardKeywords(TypedDict, total=False):
    """The fields of `ForwardOptions`."""

    loss: str | None
    wrt: Sequence[str] | None
    stop_gradient: Sequence[str]
    straight_through: bool
    frozen: Sequence[str]
    training: Sequence[str] | Literal["auto"]
    running_variance: RunningVariance | None
    shared_statistics: SharedStatistics | None


@dataclass(frozen=True, kw_only=True)
class ForwardOptions(Options):
    """Options of the differentiation of a forward model; `bngrad.differentiate` describes them."""

    loss: str | None = option(
        None, "Float scalar to differentiate.  [default: the only one of MODEL]", metavar="NAME"
    )
    wrt: Sequence[str] | None = option(
        None,
        "Input or initializer to differentiate with respect to (repeatable).  [default: all weights]",
        metavar="NAME",
    )
    stop_gradient: Sequence[str] = option(
        (),
        "Input, initializer or computed value that no gradient flows through (repeatable).",
        metavar="NAME",
    )
    straight_through: bool = option(
        True,
        "Give QuantizeLinear before DequantizeLinear [the gradient of the "
        "identity](../explanation/gradients.md#roundings) within the range of the integers, not 0.",
    )
    frozen: Sequence[str] = option(
        (),
        "Batch norm, or pattern such as `'layer1.*'`, that uses its running statistics (repeatable).",
        group=BATCH_NORMS,
        metavar="NAME",
    )
    training: Sequence[str] | Literal["auto"] = option(
        (),
        "Batch norm, or pattern, that uses the statistics of the batch (repeatable). If --frozen matches too, "
        "the more specific one wins. Batch norms that neither matches follow MODEL, and "
        "[PyTorch's mode](../guides/pytorch.md#you-have-only-a-file) where MODEL records it. `auto` refuses a "
        "MODEL that does not record it for a batch norm in inference mode.",
        group=BATCH_NORMS,
        metavar="NAME",
    )
    running_variance: RunningVariance | None = option(
        None,
        "Batch variance that updates [the running variance](training-graph.md#the-running-variance): biased, as "
        "in ONNX, or unbiased, M / (M - 1) times as large, as in PyTorch and TensorFlow.  [default: unbiased if "
        "MODEL is from PyTorch, else biased]",
        group=BATCH_NORMS,
        called="running variance",
    )
    shared_statistics: SharedStatistics | None = option(
        None,
        "How batch norms that read the same running statistic update it: each its own copy (separate), or one "
        "statistic in sequence (chain).  [default: chain for calls of one PyTorch module that MODEL records, else "
        "separate]",
        group=BATCH_NORMS,
    )

    def __post_init__(self) -> None:
        if self.training == AUTO:
            object.__setattr__(self, "training", [AUTO])
        super().__post_init__()

    @property
    def unbiased(self) -> bool:
        """True if running variances are updated with the unbiased variance of the batch."""
        return self.running_variance == "unbiased"
