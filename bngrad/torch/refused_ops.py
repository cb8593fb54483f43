"""Refuses ops of a forward pass that a training step cannot have, by the names that users know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from bngrad.errors import BngradError, UnsupportedNodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DRAW = (
    "the module draws from {}, which ONNX has no op for; draw outside of the module, and pass the numbers as an "
    "input"
)

_REFUSED = {
    "poisson": _DRAW.format("torch.poisson"),
    "binomial": _DRAW.format("torch.binomial"),
    "_standard_gamma": _DRAW.format("a Gamma, Chi2, StudentT or Beta distribution"),
    "_sample_dirichlet": _DRAW.format("a Dirichlet or Beta distribution"),
    "random_": "the module calls Tensor.random_, which ONNX has no op for; write torch.randint(low, high, shape)",
    "embedding_renorm_": (
        "the module has an embedding with max_norm, which changes the weight in the forward pass; leave max_norm "
        "out, and scale the rows that are read: rows * (max_norm / rows.norm(dim=-1, keepdim=True)).clamp(max=1)"
    ),
    "_pack_padded_sequence": (
        "the module packs sequences (pack_padded_sequence), which ONNX does not have; run the recurrent layer on "
        "the padded tensor, and mask its outputs after the end of each sequence"
    ),
}
"""The reason to refuse each op, by its name in PyTorch's dispatcher."""


class RefusedOps(TorchDispatchMode):
    """While it is active, ops that a training step cannot have are refused.

    Args:
        errors: Receives the errors, by their text; None to raise the first.

    Raises:
        UnsupportedNodeError: Such an op is called, and ``errors`` is None.
    """

    def __init__(self, errors: dict[str, BngradError] | None = None) -> None:
        super().__init__()
        self._errors = errors

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls an op."""
        name = getattr(func, "_opname", "")
        if name in _REFUSED:
            error = UnsupportedNodeError(_REFUSED[name])
            if self._errors is None:
                raise error
            self._errors.setdefault(str(error), error)
            if name == "embedding_renorm_":
                return args[0]  # unchanged, so that the weight is not reported again
        return func(*args, **kwargs or {})
