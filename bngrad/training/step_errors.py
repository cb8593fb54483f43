"""The errors of a failed training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError, TrainingError
from bngrad.graph.name_messages import listed
from bngrad.training.data_inputs import not_finite
from bngrad.training.loss_scaling import SMALLEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def refused(error: Exception) -> InputError:
    """Converts an error of ONNX Runtime, which refuses the data."""
    reason = " ".join(str(error).split())
    return InputError(f"ONNX Runtime refuses the data: {reason}")


def require_finite_state(state: Mapping[str, NDArray[Any]], result: str) -> None:
    """Refuses to write a state with an infinity or a NaN.

    Args:
        state: The tensors by name.
        result: The name of the result that is not written then.

    Raises:
        TrainingError: The state is not finite.
    """
    if names := not_finite(state):
        raise TrainingError(
            f"the state is not finite ({listed(names, most=3)}), so {result} is not written; load an earlier "
            "state, and lower the learning rate or clip the gradients"
        )


def require_useful_scale(scale: float, call: int) -> None:
    """Refuses a scale of the loss that was halved until no gradient can be infinite because of it.

    Args:
        scale: The scale, which all ranks share.
        call: The number of the call.

    Raises:
        TrainingError: The scale is below `SMALLEST`.
    """
    if scale < SMALLEST:
        error = TrainingError(
            f"the gradients are not finite up to call {call}, with scales of the loss down to {scale:g}; the "
            "state is unchanged: use precision mixed-bfloat16 or model, or remove what has an infinite gradient"
        )
        error.on_all_ranks = True
        raise error


def not_finite_message(
    what: str, data: list[list[str]], state: list[str], rate: float, *, in_float16: bool = False
) -> str:
    """Returns the reason why a loss is not finite.

    Args:
        what: The loss, and its call.
        data: The data inputs that are not finite, on each rank.
        state: The tensors of the state that are not finite.
        rate: The learning rate.
        in_float16: Whether a part of the step is in float16, whose largest number is 65504.
    """
    if any(data):
        rank = next(index for index, names in enumerate(data) if names)
        where = f" of rank {rank}" if len(data) > 1 else ""
        return f"{what}: the data {listed(data[rank])}{where} are not finite; the state is unchanged"
    if state:
        return (
            f"{what}: the state is not finite since an earlier call ({listed(state, most=3)}); load an "
            "earlier state, and lower the learning rate"
        )
    wider = ", or use precision mixed-bfloat16, which has the range of float32" if in_float16 else ""
    return (
        f"{what}, with finite data and weights; the state is unchanged: lower the learning rate ({rate:g}), "
        f"or clip the gradients{wider}"
    )
