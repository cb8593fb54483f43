"""The options of the functions that take a module; see `bngrad.option_fields`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from bngrad.options import Memory
from bngrad.training.options import UpdateKeywords, UpdateOptions


class ExportKeywords(TypedDict, total=False):
    """The fields of `ExportOptions`."""

    dynamic_batch: bool
    dynamic_shapes: Any
    input_names: Sequence[str] | None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of an export; `bngrad.torch.export` describes them."""

    dynamic_batch: bool = True
    dynamic_shapes: Any = None
    input_names: "Sequence[str] | None" = None  # a string, which is not checked: `read_example` does


class CheckedKeywords(ExportKeywords, total=False):
    """The fields of `CheckedOptions`."""

    check: bool


@dataclass(frozen=True, kw_only=True)
class CheckedOptions(ExportOptions):
    """The options of `bngrad.torch.export`."""

    check: bool = True


class GraphKeywords(CheckedKeywords, total=False):
    """The fields of `GraphOptions`."""

    defaults: bool
    functions: bool
    sync: bool


@dataclass(frozen=True, kw_only=True)
class GraphOptions(CheckedOptions):
    """The options of `bngrad.torch.differentiate`."""

    defaults: bool = True
    functions: bool = True
    sync: bool = False


class StepKeywords(CheckedKeywords, UpdateKeywords, total=False):
    """The fields of `StepOptions`."""

    conv_grad: bool
    channels_last: bool
    memory: Memory
    functions: bool
    sync: bool


@dataclass(frozen=True, kw_only=True)
class StepOptions(UpdateOptions, CheckedOptions):
    """The options of `bngrad.torch.training_step` besides the optimizer."""

    conv_grad: bool = False
    channels_last: bool = False
    memory: Memory = "full"
    functions: bool = True
    sync: bool = False
