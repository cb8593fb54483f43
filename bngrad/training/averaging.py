"""Averages of the states of a training step that clients trained apart, each with data of its own.

====================== ==========================================================================================
tensor                 of the result
====================== ==========================================================================================
weights                the mean, weighted by the clients' samples
running means          the same
running variances      ``merge``: that of the union, sum w (var + (mean - merged mean)^2) / sum w. ``mean``: the
                       mean of the variances
ranges                 of a quantized step: the least and the largest value of all clients
learned scales         of a quantized step: the mean of the clients that have one, which is not 0
optimizer state        ``average``: the mean. ``reset``: zeros, and the number of updates is 0
counts                 the largest; of the loss scale the smallest
what stays a client's  that of the client that the result is for: with ``local`` or ``keep``
====================== ==========================================================================================
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import unknown_name
from bngrad.opset.known_shapes import shape_text
from bngrad.training.moments import merge_moments, variance
from bngrad.training.state_origin import KEY as ORIGIN
from bngrad.training.state_origin import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.training.batch_norm_options import AverageOptions

    Array = NDArray[Any]
    _Mean = Callable[[Sequence["Client"], str], Array]


class Client(NamedTuple):
    """The state of a client."""

    name: str
    """The name in messages."""
    arrays: Mapping[str, Array]
    document: Mapping[str, Any]
    """The record of the state, see `state_document`."""
    weight: float
    """The weight in the average, such as the number of its samples, or its share in the sum of all."""

    def names(self, *roles: str) -> list[str]:
        """Returns the names of the tensors with some roles."""
        return [name for name, role in self.document["roles"].items() if role in roles]


_OPTIMIZER = ("optimizer",)
_COUNTS = ("step", "skipped")
_ALL = (
    "weight",
    "running_statistic",
    "average",
    *_OPTIMIZER,
    *_COUNTS,
    "micro_step",
    "loss_scale",
    "growth_tracker",
)


def averaged(clients: Sequence[Client], options: AverageOptions, own: Client | None) -> dict[str, Array]:
    """Returns the average of states, in the types of the first.

    Args:
        clients: The clients, at least one.
        options: What is averaged how.
        own: The client whose own tensors stay.

    Raises:
        InputError: The states are of different steps, a tensor is missing or not finite, a variance is negative,
            or gradients are being accumulated; a name is no weight; a state does not record its batch norms, which
            ``merge`` and ``fedbn`` need; or the weights, or an average, are beyond the range of their type.
    """
    total = sum(client.weight for client in clients)
    if total == np.inf:
        raise InputError(f"the weights sum up to {total}; expected a finite number")
    clients = [client._replace(weight=client.weight / total) for client in clients]
    first = clients[0]
    for client in clients:
        _require_sound(client)
        _require_same(client, first)
    own_names = _own_names(first, options)
    rounding = _rounding(first)
    pairs = _pairs(first, options, rounding)
    result = {}
    for name, role in first.document["roles"].items():
        dtype = _wide(first.arrays[name])
        if name in own_names and own is not None:
            value = own.arrays[name]
        elif role in _COUNTS or dtype.kind in "iub":
            value = np.max([client.arrays[name] for client in clients], axis=0)
        elif role in ("loss_scale", "growth_tracker"):
            value = np.min([client.arrays[name] for client in clients], axis=0)
        elif name in rounding:
            value = rounding[name](clients, name)
        elif name in pairs:
            value = _merged_variance(clients, name, pairs[name])
        else:
            value = _mean(clients, name)
        result[name] = _in_type(np.asarray(value), dtype, f"{role.replace('_', ' ')} {name!r}")
    if options.optimizer == "reset":
        reset = first.names(*_OPTIMIZER, *_COUNTS, "growth_tracker")
        result |= {name: np.zeros_like(result[name]) for name in reset}
    return result


def _own_names(first: Client, options: AverageOptions) -> set[str]:
    """Returns the names of the tensors that stay those of a client."""
    weights, names = first.names("weight"), set[str]()
    for pattern in options.local:
        matches = {name for name in weights if name == pattern} or {
            name for name in weights if fnmatchcase(name, pattern)
        }
        if not matches:
            raise InputError(unknown_name(pattern, weights, "a weight"))
        names |= matches
    if options.fedbn:
        for batch_norm in _batch_norms(first):
            names |= {batch_norm[key] for key in ("scale", "bias") if batch_norm.get(key) is not None}
    if options.fedbn or options.statistics == "local":
        names |= set(first.names("running_statistic"))
    averages = _averages(first)
    names |= {averages[name] for name in names & averages.keys()}
    if options.optimizer == "keep":
        names |= {name for name in first.names(*_ALL) if first.document["roles"][name] not in _ALL[:3]}
    return names


def _pairs(first: Client, options: AverageOptions, rounding: Collection[str]) -> dict[str, str]:
    """Returns the running mean of each running variance that is merged."""
    statistics = [name for name in first.names("running_statistic") if name not in rounding]
    if options.statistics != "merge" or options.fedbn or not statistics:
        return {}
    means: dict[str, set[str]] = {}
    for batch_norm in _batch_norms(first, "mean", "var"):
        means.setdefault(batch_norm["var"], set()).add(batch_norm["mean"])
    ambiguous = [var for var, names in means.items() if len(names) > 1]
    if ambiguous:
        raise InputError(
            f"running variance {ambiguous[0]!r} belongs to several running means, so it cannot be merged; give "
            "statistics mean or local"
        )
    pairs, averages = {var: mean for var, (mean,) in means.items()}, _averages(first)
    recorded = {*pairs, *pairs.values()}
    if unknown := [
        name for name in statistics if name not in recorded and first.arrays[name].dtype.kind not in "iub"
    ]:
        raise InputError(
            f"running statistic {unknown[0]!r} is that of no batch norm in the record of {first.name}, and may be "
            "a variance, so it cannot be merged; give statistics mean or local"
        )
    return pairs | {averages[var]: averages[mean] for var, mean in pairs.items() if {var, mean} <= averages.keys()}


def _rounding(first: Client) -> dict[str, _Mean]:
    """Returns how the ranges and learned scales of a quantized step, and their averages, are averaged."""
    recorded = first.document.get("quantization")
    quantization, averages = recorded if isinstance(recorded, dict) else {}, _averages(first)
    result: dict[str, _Mean] = {}
    for key, shape, text, mean in (
        ("ranges", (2,), "2 numbers", _union),
        ("scales", (), "a number", _mean_of_trained),
    ):
        tensors = quantization.get(key)
        names = set(tensors.values()) if isinstance(tensors, dict) else set[str]()
        names |= {average for name, average in averages.items() if name in names}
        if any(first.arrays[name].shape != shape for name in names & first.arrays.keys()):
            raise InputError(f"{first.name} has a {key[:-1]} that is not {text}; expected a state of bngrad")
        result |= dict.fromkeys(names, mean)
    return result


def _averages(first: Client) -> dict[str, str]:
    """Returns the names of the averages of a step with ``ema`` or ``swa``, by what they are of."""
    averages = first.document.get("averages") or {}
    if not isinstance(averages, dict) or not set(averages.values()) <= first.arrays.keys():
        raise InputError(f"{first.name} does not have the averages that it records; expected a state of bngrad")
    return averages


def _batch_norms(first: Client, *keys: str) -> list[dict[str, Any]]:
    """Returns the record of each batch norm whose tensors of some keys are in the state."""
    try:
        batch_norms = [dict(batch_norm) for batch_norm in first.document["batch_norms"]]
        batch_norms = [norm for norm in batch_norms if all(norm[key] is not None for key in keys)]
        pairs = [
            [first.arrays[norm[key]].shape for key in ("mean", "var") if norm[key] is not None]
            for norm in batch_norms
        ]
    except (KeyError, TypeError, ValueError):
        batch_norms, pairs = [], []
    if not batch_norms or any(len(set(shapes)) > 1 for shapes in pairs):
        raise InputError(
            f"{first.name} does not record its batch norms, as a state of this bngrad does; make the step again, "
            "or give statistics mean or local"
        )
    return batch_norms


def _mean(clients: Sequence[Client], name: str) -> Array:
    mean: Array = np.sum([client.arrays[name].astype(np.float64) * client.weight for client in clients], axis=0)
    return mean


def _union(clients: Sequence[Client], name: str) -> Array:
    """Returns the range of all clients."""
    limits = np.stack([client.arrays[name] for client in clients])
    return np.stack([limits[:, 0].min(), limits[:, 1].max()])


def _mean_of_trained(clients: Sequence[Client], name: str) -> Array:
    """Returns the mean over the clients that have trained, where the value is not 0; 0 if none has."""
    trained = [client for client in clients if client.arrays[name] > 0]
    return np.asarray(_mean(trained, name) / sum(client.weight for client in trained) if trained else 0.0)


def _merged_variance(clients: Sequence[Client], var: str, mean: str) -> Array:
    """Returns the variance of the union, by the law of total variance."""
    parts = []
    for client in clients:
        means, variances = (client.arrays[name].astype(np.float64) for name in (mean, var))
        weight = np.full(means.shape, client.weight)
        parts.append(np.stack([weight, means, weight * variances]))
    return variance(merge_moments(parts))


def _in_type(value: Array, dtype: np.dtype[Any], what: str) -> Array:
    with np.errstate(over="ignore"):
        result = value.astype(dtype)
    if not np.isfinite(result).all():
        raise InputError(f"the average of {what} is beyond the range of {dtype}; check that of each client")
    return result


def _wide(array: Array) -> np.dtype[Any]:
    """Returns the type in a state: float for the 16-bit types, in which a client may send its tensors."""
    is_short = array.dtype.itemsize == 2 and array.dtype.kind in "fV"
    return np.dtype(np.float32) if is_short else array.dtype


def _require_sound(client: Client) -> None:
    """Refuses a state that lacks a tensor, is not finite, or is in the middle of an update."""
    roles = client.document["roles"]
    if names := sorted(roles.keys() ^ client.arrays.keys()):
        raise InputError(
            f"{client.name} does not have the tensors that it records: {names[0]!r}; expected the state of a "
            "trainer"
        )
    for name, role in roles.items():
        array = client.arrays[name]
        if array.dtype.kind not in "iub" and not np.isfinite(array.astype(np.float64)).all():
            raise InputError(
                f"{client.name}: {role.replace('_', ' ')} {name!r} is not finite; leave this client out"
            )
        if role == "micro_step" and array.any():
            raise InputError(
                f"{client.name} is in the middle of an update, which several calls make; expected a state after "
                "an update of the weights"
            )
    for batch_norm in client.document.get("batch_norms") or ():
        var = client.arrays.get(str(batch_norm.get("var"))) if isinstance(batch_norm, dict) else None
        if var is not None and (var.astype(np.float64) < 0).any():
            raise InputError(
                f"{client.name}: running variance {batch_norm['var']!r} is negative; leave this client out"
            )


def _require_same(client: Client, first: Client) -> None:
    """Refuses a state of another training step than that of the first client."""
    what = f"{client.name} is the state of another training step than {first.name}"
    if (names := client.document["roles"].keys()) != first.document["roles"].keys():
        other = sorted(names ^ first.document["roles"].keys())
        raise InputError(f"{what}: only one of them has {other[0]!r}")
    for name, array in first.arrays.items():
        if client.arrays[name].shape != array.shape:
            has, was = shape_text(client.arrays[name].shape), shape_text(array.shape)
            raise InputError(f"{what}: {name!r} has shape {has} and {was}")
        if _wide(client.arrays[name]) != _wide(array):
            raise InputError(f"{what}: {name!r} is {client.arrays[name].dtype} and {array.dtype}")
    difference = "; ".join(differences(client.document[ORIGIN], first.document[ORIGIN]))
    if difference:
        raise InputError(f"{what}: {difference}")
