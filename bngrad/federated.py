"""Federated averaging of the states of a training step, that is right about batch norms.

`average` takes the states that clients trained from one training step, each with data of its own, and returns the
state of the next round.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Unpack

from bngrad.arguments import require_number
from bngrad.errors import InputError
from bngrad.io.writing import check_output
from bngrad.option_fields import takes_keywords
from bngrad.training.averaging import Client, averaged
from bngrad.training.batch_norm_options import AverageKeywords, AverageOptions
from bngrad.training.state_origin import StateDict
from bngrad.training.step_files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["average"]


@takes_keywords(AverageOptions)
def average(
    states: Sequence[str | os.PathLike[str] | StateDict],
    weights: Sequence[float] | None = None,
    *,
    own: int | None = None,
    path: str | os.PathLike[str] | None = None,
    **options: Unpack[AverageKeywords],
) -> StateDict:
    """Returns the average of the states of a training step that clients trained apart.

    All is computed in double, and returned in the types of the state. A client may send tensors in float16 or
    bfloat16. `Trainer.load_state_dict` takes the result.

    Args:
        states: The states of the clients: files that `Trainer.save` or ``bngrad train`` wrote, or what
            `Trainer.state_dict` returns.
        weights: The number of samples of each client, or other weights above 0. By default those that the files
            record, as `Trainer.save(path, samples=...)` and ``bngrad train`` do.
        own: The index of the client that the result is for, if some of its tensors stay.
        path: A file to write the result to, too.
        statistics: ``merge``: the running statistics of the union of the data, exactly, for biased variances
            weighted by samples. ``mean``: the means of the means and of the variances, which leave out how the
            means differ. ``local``: those of ``own``.
        optimizer: ``average``: the mean of the optimizer state; the number of updates is the largest. ``reset``:
            zeros, and the number of updates is 0. ``keep``: that of ``own``.
        fedbn: Whether the scales, biases and statistics of all batch norms stay those of ``own``, as in FedBN.
        local: Names of weights, or patterns, that stay those of ``own``.

    Raises:
        InputError: There is no state; a file cannot be read or written, or is not a state; the states are of
            different training steps; a tensor or an average is not finite, or a running variance is negative; a
            state is in the middle of an update; ``path`` is one of the states; weights are missing or not above 0;
            ``own`` is missing, superfluous or no index.
    """
    chosen = AverageOptions(**options)
    clients = _clients(states, weights)
    if chosen.keeps_own != (own is not None):
        what = "some tensors stay those of a client" if chosen.keeps_own else "no tensor stays that of a client"
        expected = "name the client with --own (own=)" if chosen.keeps_own else "leave out --own (own=)"
        raise InputError(f"{what}; {expected}")
    if own is not None and not 0 <= own < len(clients):
        raise InputError(f"own is {own}; expected the index of a client, 0 to {len(clients) - 1}")
    if path is not None:
        path = check_output(path)
        for state in states:
            check_output(path, state if isinstance(state, str | os.PathLike) else None)
    result = averaged(clients, chosen, None if own is None else clients[own])
    shares = [client.weight for client in clients]
    document = {**clients[0].document, "notes": {"samples": sum(shares), "weights": shares}}
    if path is not None:
        write_document(path, result, document)
    return StateDict(result, document)


def _clients(
    states: Sequence[str | os.PathLike[str] | StateDict], weights: Sequence[float] | None
) -> list[Client]:
    if isinstance(states, str | os.PathLike) or not states:
        raise InputError(f"states is {states!r}; expected a sequence of one or more states")
    if weights is not None and len(weights) != len(states):
        raise InputError(
            f"there are {len(weights)} weights for {len(states)} states; expected one for each: --weights N,N,... "
            "(weights=)"
        )
    clients = []
    arrays: Mapping[str, NDArray[Any]]
    for index, state in enumerate(states):
        if isinstance(state, StateDict):
            name, arrays, document = f"state {index}", state, state.document
        elif isinstance(state, str | os.PathLike):
            name = os.fspath(state)
            arrays, document = read_document(state)
        else:
            raise InputError(f"state {index} has type {type(state).__name__}; expected a file or a state_dict()")
        weight = _recorded_samples(document) if weights is None else weights[index]
        if weight is None:
            raise InputError(
                f"{name} does not record its number of samples; give --weights (weights=), or save it with "
                "Trainer.save(path, samples=...)"
            )
        number = require_number(f"the weight of {name}", weight)
        if not 0 < number < math.inf:
            raise InputError(f"the weight of {name} is {number:g}; expected a finite number above 0")
        clients.append(Client(name, arrays, document, number))
    return clients


def _recorded_samples(document: Any) -> Any:  # noqa: ANN401 - anything that JSON has
    """Returns the number of samples in the notes of a state, or among the options of a checkpoint."""
    notes = document.get("notes")
    for record in (notes, notes.get("options") if isinstance(notes, dict) else None):
        if isinstance(record, dict) and "samples" in record:
            return record["samples"]
    return None
