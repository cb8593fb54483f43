"""Runs a module without changing it: its tensors, its attributes, its modes and the random state."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOLDERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def untouched(module: torch.nn.Module) -> Iterator[None]:
    """Restores a module when the block ends, also by an error.

    Attributes of the module and its submodules get their objects back; the values of tensors are not copied, so
    the block must not write to them.
    """
    saved = [
        (one, dict(vars(one)), {name: dict(vars(one)[name]) for name in _HOLDERS}) for one in module.modules()
    ]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for one, attributes, held in saved:
                vars(one).clear()
                vars(one).update(attributes)
                for name in _HOLDERS:
                    vars(one)[name].clear()
                    vars(one)[name].update(held[name])
