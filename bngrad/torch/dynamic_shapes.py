"""Which dimensions of an example stay symbolic, as users say it: the batch, or `dynamic_shapes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.size_conditions import Condition
    from bngrad.torch.example import Example

BATCH = "N"
"""The name of the size of the batch."""

_FORM = (
    "expected an entry for each tensor of the example, such as {0: 'N', 1: 'T'} or None, in the structure of the "
    "example, in a list, or in a dict by the names of the inputs"
)
_AUTO, _DYNAMIC, _STATIC = torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC, torch.export.Dim.STATIC


class Dynamic(NamedTuple):
    """The symbolic dimensions of an example."""

    axes: list[dict[int, str | None]]
    """Their names, or None to have one made, by their index, for each tensor of the example."""
    limits: list[Condition]
    """What users say of the sizes: those of `torch.export.Dim`."""
    required: set[tuple[int, int]]
    """The tensors and dimensions that PyTorch refuses to fix: those of `Dim.DYNAMIC`."""

    def shapes(self, example: Example) -> Any:  # noqa: ANN401 - of the structure of the arguments
        """What `torch.export.export` takes as dynamic shapes."""
        entries = iter(
            {axis: _DYNAMIC if (index, axis) in self.required else _AUTO for axis in names}
            for index, names in enumerate(self.axes)
        )
        return pytree.tree_map(
            lambda leaf: next(entries) if isinstance(leaf, torch.Tensor) else None, example.arguments
        )


def read_dynamic(example: Example, dynamic_shapes: Any, *, dynamic_batch: bool) -> Dynamic:  # noqa: ANN401
    """Reads which dimensions stay symbolic.

    Args:
        example: The arguments.
        dynamic_shapes: As users give it; None for the size of the batch alone.
        dynamic_batch: Whether it stays symbolic without ``dynamic_shapes``.

    Raises:
        InputError: It does not have the form, or a symbolic dimension has a size below 2, or one name two sizes.
    """
    if dynamic_shapes is None:
        size = example.batch if dynamic_batch else None
        axes: list[dict[int, str | None]] = [
            {0: BATCH} if size is not None and one.ndim and one.shape[0] == size else {} for one in example.flat
        ]
        if size is not None and size < 2:
            raise InputError(
                f"the example has a batch of {size}; expected 2 or more, or dynamic_batch=False to fix the size"
            )
        return Dynamic(axes, [], set())
    if not dynamic_batch:
        raise InputError("dynamic_batch=False is given along with dynamic_shapes, which says all; use one")
    limits: list[Condition] = []
    required = set()
    axes = []
    entries = zip(example.names, example.flat, _entries(example, dynamic_shapes), strict=True)
    for index, (name, tensor, entry) in enumerate(entries):
        axes.append({})
        for axis, given in _axes(name, tensor, entry).items():
            if given is not None and given is not _STATIC and not isinstance(given, int):
                axes[index][axis] = _dimension(name, axis, given, limits)
            if given is _DYNAMIC:
                required.add((index, axis))
    _require_sizes(example, axes)
    return Dynamic(axes, limits, required)


def _entries(example: Example, given: Any) -> list[Any]:  # noqa: ANN401
    """The entry of each tensor."""
    count = len(example.flat)
    if isinstance(given, Mapping) and all(name in example.names for name in given):
        return [given.get(name) for name in example.names]
    if isinstance(given, tuple | list) and len(given) == count and all(map(_is_entry, given)):
        return list(given)
    structures = [(*example.args, *example.targets)] if not example.kwargs else []
    inputs: Any = example.kwargs or (example.args if len(example.args) != 1 else example.args[0])
    structures += [inputs] if not example.targets else [(inputs, *example.targets)]
    for structure in structures:
        found: list[Any] = []
        if _match(structure, given, found):
            return found
    raise InputError(f"dynamic_shapes is {given!r:.200} for the tensors {listed(example.names)}; {_FORM}")


def _is_entry(given: object) -> bool:
    """Whether something can say of one tensor which dimensions are symbolic."""
    if isinstance(given, Mapping):
        return all(isinstance(key, int) for key in given)
    return given is None or (
        isinstance(given, tuple | list) and not any(isinstance(one, Mapping) for one in given)
    )


def _match(value: Any, given: Any, found: list[Any]) -> bool:  # noqa: ANN401
    """Collects the entries of the tensors of a value; says whether the structures agree."""
    if isinstance(value, torch.Tensor):
        found.append(given)
        return _is_entry(given)
    if given is None:
        found += [None for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        return True
    if isinstance(value, Mapping) and isinstance(given, Mapping):
        return all(name in value for name in given) and all(
            _match(one, given.get(name), found) for name, one in value.items()
        )
    if isinstance(value, tuple | list) and isinstance(given, tuple | list) and len(value) == len(given):
        return all(_match(one, entry, found) for one, entry in zip(value, given, strict=True))
    return False


def _axes(name: str, tensor: torch.Tensor, entry: Any) -> dict[int, Any]:  # noqa: ANN401
    """What an entry says of each dimension."""
    pairs: Sequence[tuple[int, Any]] = list(
        entry.items() if isinstance(entry, Mapping) else enumerate(entry or ())
    )
    if not isinstance(entry, Mapping) and entry and len(entry) != tensor.ndim:
        raise InputError(
            f"dynamic_shapes has {len(entry)} dimensions for {name!r}; expected {tensor.ndim}, one for each, or a "
            "dict"
        )
    for axis, _ in pairs:
        if not 0 <= axis < tensor.ndim:
            raise InputError(
                f"dynamic_shapes has dimension {axis} of {name!r}, which has {tensor.ndim}; expected one of them"
            )
    return dict(pairs)


def _dimension(name: str, axis: int, given: Any, limits: list[Condition]) -> str | None:  # noqa: ANN401
    """The name of a dimension, if it has one; adds its limits."""
    if given is _AUTO or given is _DYNAMIC:
        return None
    called = given if isinstance(given, str) else getattr(given, "__name__", "")
    if not called.isidentifier():
        raise InputError(
            f"dynamic_shapes has {given!r} for dimension {axis} of {name!r}; expected a name such as 'T', a "
            "torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, or None for a fixed size"
        )
    for operator, size in (("<=", getattr(given, "min", None)), (">=", getattr(given, "max", None))):
        condition = [operator, size, called]
        if isinstance(size, int) and 1 < size < 2**62 and condition not in limits:
            limits.append(condition)
    return called


def _require_sizes(example: Example, axes: Sequence[Mapping[int, str | None]]) -> None:
    sizes: dict[str, int] = {}
    for name, tensor, names in zip(example.names, example.flat, axes, strict=True):
        for axis, called in names.items():
            size = int(tensor.shape[axis])
            if size < 2:
                raise InputError(
                    f"dimension {axis} of {name!r} is symbolic and has size {size} in the example; expected 2 or "
                    "more"
                )
            if called is not None and sizes.setdefault(called, size) != size:
                raise InputError(
                    f"dimension {axis} of {name!r} has size {size} in the example, and {called!r} is "
                    f"{sizes[called]} elsewhere; expected one size for one name"
                )
