"""The data of a Keras model: from structures of arrays to inputs of a graph, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DataInputs:
    """The inputs of a graph for the data of an example ``(x, y)``.

    Args:
        keras: The module.
        example: See `bngrad.keras.export`.
        dynamic_batch: Whether the first dimension of each is unknown.

    Raises:
        InputError: The example is not a pair, or holds something other than arrays.
    """

    def __init__(self, keras: Any, example: Sequence[Any], *, dynamic_batch: bool) -> None:  # noqa: ANN401
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise InputError(f"example is a {type(example).__name__}; expected a pair (x, y), as for model.fit")
        self._keras = keras
        self.dynamic_batch = dynamic_batch
        self._example = tuple(example)
        arrays = {**self.named("x", example[0]), **self.named("y", example[1])}
        self.names = list(arrays)
        self.x_names = list(self.named("x", example[0]))
        self._arrays = arrays
        self.specs: list[tuple[list[int | None], str]] = []
        """The shape and type of each; floats are of Keras's default type, as in `model.fit`."""
        for name, array in arrays.items():
            converted = np.asarray(array)
            if converted.dtype.kind not in "fiub" or not converted.ndim:
                raise InputError(
                    f"{name} of the example is {converted.dtype} with shape {list(converted.shape)}; expected an "
                    "array of numbers with a batch dimension"
                )
            dtype = keras.config.floatx() if converted.dtype.kind == "f" else converted.dtype.name
            self.specs.append(([None if dynamic_batch else converted.shape[0], *converted.shape[1:]], dtype))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the example by name, with the types of the inputs."""
        return {
            name: np.asarray(self._arrays[name], dtype)
            for name, (_, dtype) in zip(self.names, self.specs, strict=True)
        }

    def named(self, prefix: str, structure: Any) -> dict[str, Any]:  # noqa: ANN401
        """Names the leaves of a structure: the prefix, and the keys or numbers on the way to each."""
        if isinstance(structure, Mapping):
            items = list(structure.items())
        elif isinstance(structure, tuple | list) and not all(isinstance(item, int | float) for item in structure):
            items = list(enumerate(structure))
        else:
            return {prefix: structure}
        return {name: leaf for key, item in items for name, leaf in self.named(f"{prefix}_{key}", item).items()}

    def structured(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Returns x and y built from tensors in the order of `names`."""
        left = dict(zip(self.names, tensors, strict=True))
        return self._fill("x", self._example[0], left), self._fill("y", self._example[1], left)

    def _fill(self, prefix: str, structure: Any, tensors: Mapping[str, Any]) -> Any:  # noqa: ANN401
        if isinstance(structure, Mapping):
            return {key: self._fill(f"{prefix}_{key}", item, tensors) for key, item in structure.items()}
        if prefix in tensors:
            return tensors[prefix]
        return [self._fill(f"{prefix}_{key}", item, tensors) for key, item in enumerate(structure)]
