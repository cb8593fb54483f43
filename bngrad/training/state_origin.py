"""The training step that wrote a state: a state of another model or optimizer is refused, with the difference.

The graph counts, and not only the names and shapes of the state: a model with Tanh instead of Relu has the same
weights, and Adam and AdamW keep the same moments.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard

from bngrad.errors import InputError
from bngrad.training.step_info import AVERAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.training.step_info import StepInfo

KEY = "step"
"""Of the metadata of a state file."""


class StateDict(dict[str, "NDArray[Any]"]):
    """A state in memory that records its training step.

    Args:
        arrays: The state, in the named layout.
        document: The result of `state_document`.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], document: Mapping[str, Any]) -> None:
        super().__init__(arrays)
        self.document = dict(document)

    @property
    def origin(self) -> object:
        """The record of the training step, see `origin_of`."""
        return self.document.get(KEY)


def state_document(info: StepInfo) -> dict[str, Any]:
    """Returns what a state records beside its tensors; anything that JSON can hold."""
    return {
        "model": info.model,
        "roles": {name: entry.role for name, entry in info.state.items()},
        "averages": info.averages,
        "batch_norms": [dict(vars(batch_norm)) for batch_norm in info.batch_norms],
        "quantization": None if info.quantization is None else dict(vars(info.quantization)),
        KEY: origin_of(info),
    }


def origin_of(info: StepInfo) -> dict[str, Any]:
    """The record of a training step in a state that it wrote; anything that JSON can hold."""
    origin = {
        "optimizer": dict(info.optimizer),
        "accumulate": info.accumulate,
        "clip_norm": info.clip_norm,
        **{name: getattr(info, name) for name in AVERAGES},
        "synchronized": info.synchronized,
        "fingerprint": None if info.fingerprint is None else vars(info.fingerprint),
    }
    return dict(json.loads(json.dumps(origin)))  # as it is read from a file


def is_record(origin: object) -> TypeGuard[dict[str, Any]]:
    """Returns whether a value of JSON is the record of a training step."""
    return isinstance(origin, dict) and isinstance(origin.get("optimizer"), dict)


def check_origin(what: object, origin: object, info: StepInfo, *, anyway: bool) -> list[str]:
    """Checks that a state belongs to a training step.

    Args:
        what: The file of the state, or a name for the state.
        origin: The state's record of the step that wrote it; None if it has none.
        info: The metadata of the step that is to continue with it.
        anyway: Whether to name another step instead of refusing it.

    Returns:
        A line for each unchecked property, and with ``anyway`` for each difference.

    Raises:
        InputError: The state is of another step.
    """
    if not is_record(origin):
        line = "the names, types and shapes of the state are checked, but neither the model nor the optimizer"
        return [f"{what} does not record which training step wrote it: {line}"]
    if difference := "; ".join(differences(origin, origin_of(info))):
        line = f"{what} is the state of another training step: {difference}"
        if anyway:
            return [line]
        raise InputError(
            f"{line}; continue with the step that wrote it, or give --resume-anyway (anyway=True in Python)"
        )
    if info.fingerprint is not None and isinstance(origin.get("fingerprint"), dict):
        return []
    whose = "the training step" if info.fingerprint is None else f"the training step that wrote {what}"
    return [f"{whose} has no fingerprint of its graph, so whether {what} is of this model is not checked"]


def differences(origin: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the known differences between the step that wrote a state and another one, by their records."""
    lines = []
    if origin["optimizer"] != now["optimizer"]:
        first, second = _optimizers(origin["optimizer"], now["optimizer"])
        lines.append(f"it was made with {first}, the step has {second}")
    lines += [
        f"it was made with {name} {origin.get(name)}, the step has {now.get(name)}"
        for name in ("accumulate", "clip_norm", *AVERAGES)
        if origin.get(name) != now.get(name)
    ]
    was, has = origin.get("fingerprint"), now.get("fingerprint")
    if not isinstance(was, dict) or not isinstance(has, dict):
        return lines
    if was.get("forward") != has.get("forward"):
        lines.append("its model or loss has other operations, attributes or constants than that of the step")
    # The graph of another optimizer is another one, and the step of one rank of several has further nodes.
    elif (
        not lines
        and was.get("graph") != has.get("graph")
        and origin.get("synchronized") == now.get("synchronized")
    ):
        lines.append(
            "it was trained in another way: other parameter groups, another precision, other batch norms in "
            "training mode, other ops (--memory, --fuse, --conv-grad, --channels-last, --group-updates), or other "
            "attributes that only training has, such as the ratio of a Dropout"
        )
    return lines


def _optimizers(was: Mapping[str, Any], has: Mapping[str, Any]) -> tuple[str, str]:
    """The names of two optimizers with the hyperparameters that differ."""
    differ = [key for key in {**was, **has} if was.get(key) != has.get(key)]
    return _text(was, differ), _text(has, differ)


def _text(optimizer: Mapping[str, Any], keys: list[str]) -> str:
    shown = ", ".join(f"{key} {optimizer[key]}" for key in keys if key in optimizer and key != "name")
    return f"{optimizer.get('name')} ({shown})" if shown else str(optimizer.get("name"))
