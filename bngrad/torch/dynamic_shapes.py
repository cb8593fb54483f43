"""The dimensions of an example that stay symbolic: the batch, or those of the option `dynamic_shapes`."""

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
    """Their names, by their index, for each tensor of the example; None for a generated name."""
    limits: list[Condition]
    """The limits of the sizes that users state with `torch.export.Dim`."""
    required: set[tuple[int, int]]
    """The tensors and dimensions that PyTorch refuses to fix: those of `Dim.DYNAMIC`."""

    def shapes(self, example: Example) -> Any:  # noqa: ANN401 - of the structure of the arguments
        """The dynamic shapes for `torch.export.export`."""
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
        dynamic_shapes: The user's argument; None for only the size of the batch.
        dynamic_batch: Whether that size stays symbolic without ``dynamic_shapes``.

    Raises:
        InputError: The argument does not have the form, a symbolic dimension has a size below 2, or dimensions of
            one name have different sizes.
    """
    if dynamic_shapes is None:
        size = example.batch if dynamic_batch else None
        axes: list[dict[int, str | None]] = [
            {0: BATCH} if tensor.shape[:1] == (size,) else {} for tensor in example.flat
        ]
        if size is not None and size < 2:
            raise InputError(
                f"the example has a batch of {size}; expected 2 or more, or dynamic_batch=False to fix the size"
            )
        return Dynamic(axes, [], set())
    if not dynamic_batch:
        raise InputError("dynamic_batch=False and dynamic_shapes are both given; use one")
    limits: list[Condition] = []
    required = set()
    axes = []
    entries = zip(example.names, example.flat, _entries(example, dynamic_shapes), strict=True)
    for index, (name, tensor, entry) in enumerate(entries):
        axes.append({})
        for axis, setting in _axes(name, tensor, entry).items():
            if setting is not None and setting is not _STATIC and not isinstance(setting, int):
                axes[index][axis] = _dimension(name, axis, setting, limits)
            if setting is _DYNAMIC:
                required.add((index, axis))
    _require_sizes(example, axes)
    return Dynamic(axes, limits, required)


def _entries(example: Example, shapes: Any) -> list[Any]:  # noqa: ANN401
    """The entry of each tensor."""
    count = len(example.flat)
    if isinstance(shapes, Mapping) and all(name in example.names for name in shapes):
        return [shapes.get(name) for name in example.names]
    if isinstance(shapes, tuple | list) and len(shapes) == count and all(map(_is_entry, shapes)):
        return list(shapes)
    structures = [(*example.args, *example.targets)] if not example.kwargs else []
    inputs: Any = example.kwargs or (example.args if len(example.args) != 1 else example.args[0])
    structures += [inputs] if not example.targets else [(inputs, *example.targets)]
    for structure in structures:
        entries: list[Any] = []
        if _match(structure, shapes, entries):
            return entries
    raise InputError(f"dynamic_shapes is {shapes!r:.200} for the tensors {listed(example.names)}; {_FORM}")


def _is_entry(entry: object) -> bool:
    """Returns whether an object has the form of the entry of one tensor."""
    if isinstance(entry, Mapping):
        return all(isinstance(key, int) for key in entry)
    return entry is None or (
        isinstance(entry, tuple | list) and not any(isinstance(item, Mapping) for item in entry)
    )


def _match(value: Any, shapes: Any, entries: list[Any]) -> bool:  # noqa: ANN401
    """Collects the entries of the tensors of a value; returns whether the structures agree."""
    if isinstance(value, torch.Tensor):
        entries.append(shapes)
        return _is_entry(shapes)
    if shapes is None:
        entries += [None for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        return True
    if isinstance(value, Mapping) and isinstance(shapes, Mapping):
        return all(name in value for name in shapes) and all(
            _match(element, shapes.get(name), entries) for name, element in value.items()
        )
    if isinstance(value, tuple | list) and isinstance(shapes, tuple | list) and len(value) == len(shapes):
        return all(_match(element, entry, entries) for element, entry in zip(value, shapes, strict=True))
    return False


def _axes(name: str, tensor: torch.Tensor, entry: Any) -> dict[int, Any]:  # noqa: ANN401
    """The settings of dimensions in an entry, by their index."""
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


def _dimension(name: str, axis: int, setting: Any, limits: list[Condition]) -> str | None:  # noqa: ANN401
    """The name of a dimension, if it has one; adds its limits."""
    if setting is _AUTO or setting is _DYNAMIC:
        return None
    called = setting if isinstance(setting, str) else getattr(setting, "__name__", "")
    if not called.isidentifier():
        raise InputError(
            f"dynamic_shapes has {setting!r} for dimension {axis} of {name!r}; expected a name such as 'T', a "
            "torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, or None for a fixed size"
        )
    for operator, size in (("<=", getattr(setting, "min", None)), (">=", getattr(setting, "max", None))):
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
