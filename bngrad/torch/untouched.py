"""Runs a module without changing it: its tensors, its attributes, its modes and the random state."""

from __future__ import annotations

import random
from collections import deque
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOLDERS = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (list, deque, dict, set)
_PLAIN = (int, float, bool, str)


class Changes(NamedTuple):
    """The changes to anything but tensors."""

    random: list[str]
    """The libraries whose random numbers were drawn."""
    attributes: list[str]
    """The attributes of modules that are numbers or texts."""


@contextmanager
def untouched(module: torch.nn.Module) -> Iterator[Changes]:
    """Restores a module when the block ends, also by an error.

    Attributes of the module and its submodules get their objects back, and lists, dicts and sets among them their
    elements; the values of tensors are not copied, so the block must not write to them. The yielded object lists
    afterwards the changes that a graph cannot have, because they are not of tensors.
    """
    saved = [
        (submodule, dict(vars(submodule)), {name: dict(vars(submodule)[name]) for name in _HOLDERS})
        for submodule in module.modules()
    ]
    containers = [
        (value, copy(value))
        for _, attributes, _ in saved
        for value in attributes.values()
        if isinstance(value, _CONTAINERS)
    ]
    changes = Changes([], [])
    of_python, of_numpy = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002 - modules use it
    with torch.random.fork_rng(devices=[]):
        try:
            yield changes
        finally:
            if random.getstate() != of_python:
                changes.random.append("Python")
            if str(np.random.get_state(legacy=False)) != str(of_numpy):  # noqa: NPY002
                changes.random.append("NumPy")
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
            for submodule, attributes, _ in saved:
                now = vars(submodule)
                plain = [name for name, value in attributes.items() if type(value) in _PLAIN and name in now]
                changes.attributes.extend(
                    name
                    for name in plain
                    if name != "training" and now[name] is not attributes[name] and now[name] != attributes[name]
                )
            for submodule, attributes, held in saved:
                vars(submodule).clear()
                vars(submodule).update(attributes)
                for name in _HOLDERS:
                    vars(submodule)[name].clear()
                    vars(submodule)[name].update(held[name])
            for value, elements in containers:
                value.clear()
                (value.extend if isinstance(value, list | deque) else value.update)(elements)
