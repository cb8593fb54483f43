"""The options of `validate`; see `bngrad.option_fields`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bngrad.option_fields import option
from bngrad.options import Implementation
from bngrad.runtime.device import CPU, Device
from bngrad.training.options import Builder, LossKeywords, LossOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bngrad.io.files import AnyModel

Against = Literal["ort", "reference", "numeric", "torch"]

TOLERANCE = "Tolerance"


class ValidateKeywords(LossKeywords, total=False):
    """The fields of `ValidateOptions`."""

    against: Against
    implementation: Literal[Implementation, "all"]
    device: str
    builder: Builder
    rewritten: "AnyModel | None"
    inputs: "Mapping[str, NDArray[Any]] | None"
    dims: Mapping[str, int] | None
    batch_size: int | None
    seed: int
    rtol: float | None
    atol: float | None


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(LossOptions):
    """The options of `bngrad.validate`, which describes each."""

    against: Against = option(
        "ort",
        "Reference to compare with: ONNX Runtime's gradient builder and kernels (ort); NumPy in float64 and "
        "central differences (reference); only central differences of the loss (numeric); or PyTorch's autograd "
        "in float64 (torch), which needs PyTorch (`pip install 'bngrad[torch]'`). The last three need no oracle "
        "and accept any MODEL that differentiate accepts, torch if PyTorch has its ops.",
    )
    implementation: Literal[Implementation, "all"] = option("all", "Implementation of the ops to validate.")
    device: str = option(
        CPU, "Device that the validated graph runs on: `cpu`, `cuda`, `cuda:1` or `webgpu`.", metavar="DEVICE"
    )
    builder: Builder = option(
        "bngrad",
        "Builder of a forward model's training graph: this package, or ONNX Runtime followed by rewrite.",
    )
    rewritten: "AnyModel | None" = None
    inputs: "Mapping[str, NDArray[Any]] | None" = None
    dims: Mapping[str, int] | None = None
    batch_size: int | None = option(
        None,
        "Size of the first dimension of the inputs, whatever its name, where it is symbolic; a fixed one stays. "
        "--dim and --inputs come first.",
        metavar="N",
        minimum=1,
    )
    seed: int = option(0, "Seed of random values.", minimum=0)
    rtol: float | None = option(
        None,
        "Relative tolerance of the lock-step check, instead of the derived error bounds. Not with --against "
        "numeric and torch, which have no such check.  [default: 0 if --atol is given]",
        group=TOLERANCE,
        minimum=0,
    )
    atol: float | None = option(
        None,
        "Absolute tolerance of the same check.  [default: 0 if --rtol is given]",
        group=TOLERANCE,
        minimum=0,
    )

    def __post_init__(self) -> None:
        Device.of(self.device)
        super().__post_init__()
