"""The samples that a training step is trained on: arrays of rows for its data inputs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.io.arrays import load_array, load_arrays
from bngrad.training.data_inputs import require_all, require_known, require_shape, require_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.training.step_info import DataInput

    Array = NDArray[Any]

_COMPARED = 64 << 20
"""The most bytes of an array in a fingerprint; of larger ones it has some rows."""

_SPLIT = 0
"""The number of the permutation that chooses validation samples; those of epochs begin at 1."""


class Dataset:
    """Arrays for the data inputs of a step, or some rows of them.

    An input whose first dimension is symbolic takes rows of its array, and any other input the whole array. If
    there is no such input, the first dimension of all inputs must be the same number, the batch size.

    Args:
        arrays: An array for each input.
        inputs: The data inputs.
        rows: The indices of the rows that belong to the dataset; by default all.

    Raises:
        InputError: An array is missing, superfluous or of another type or shape, or the arrays have different
            numbers of rows.
    """

    def __init__(
        self, arrays: Mapping[str, Array], inputs: Mapping[str, DataInput], rows: Array | None = None
    ) -> None:
        require_all(arrays, inputs)
        sampled, self.batch_size = _sampled(inputs)
        self._arrays = {}
        for name, spec in inputs.items():
            array = arrays[name]
            if array.dtype != spec.dtype:
                array = require_type(name, array, spec)
            if spec.shape is not None:
                require_shape(name, array.shape, (None, *spec.shape[1:]) if name in sampled else spec.shape)
            self._arrays[name] = array
        self._inputs, self._sampled = inputs, sampled
        counts = {name: len(self._arrays[name]) for name in sampled}
        if len(set(counts.values())) > 1:
            text = ", ".join(f"{name!r} {count}" for name, count in counts.items())
            raise InputError(f"the arrays have different numbers of rows: {text}; expected a row for each sample")
        self._rows = np.arange(next(iter(counts.values()))) if rows is None else rows

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self._rows)

    def batches(
        self,
        size: int,
        order: Array | None = None,
        *,
        start: int = 0,
        every: int = 1,
        part: int = 0,
        parts: int = 1,
        drop_last: bool = False,
    ) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yields batches: the number of samples, and the data by input name.

        Args:
            size: The number of samples of a batch.
            order: A permutation of the samples; by default their own order.
            start: The number of the first batch to yield.
            every: The distance of the numbers of the batches to yield.
            part: The number of the part of each batch whose data to yield, from 0.
            parts: The number of parts of a batch. They are consecutive samples, as equal in number as possible.
            drop_last: Whether to leave out a last batch with fewer samples.
        """
        rows = self._rows if order is None else self._rows[order]
        for batch in range(start, self.count(size, drop_last=drop_last), every):
            taken = rows[batch * size : (batch + 1) * size]
            count = len(taken)
            yield count, self._take(taken[part * count // parts : (part + 1) * count // parts])

    def count(self, size: int, *, drop_last: bool) -> int:
        """Returns the number of batches."""
        return len(self) // size if drop_last else -(-len(self) // size)

    def fingerprint(self) -> str:
        """Returns a hash of the data, to compare those of two ranks; large arrays count with some rows."""
        digest = hashlib.sha256()
        for name, array in self._arrays.items():
            some = array[self._compared_rows(array)] if name in self._sampled else array
            digest.update(f"{name} {some.dtype} {some.shape} {len(self)}".encode() + some.tobytes())
        return digest.hexdigest()[:16]

    def _compared_rows(self, array: Array) -> Array:
        most = max(_COMPARED // max(array.nbytes // max(len(array), 1), 1), 2)
        return self._rows[np.linspace(0, len(self) - 1, min(len(self), most), dtype=np.int64)]

    def split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """Returns a dataset without a random fraction of the samples, and that of these samples.

        Raises:
            InputError: One of the two would have no samples.
        """
        taken = round(fraction * len(self))
        if not 0 < taken < len(self):
            raise InputError(
                f"a validation split of {fraction} takes {taken} of {len(self)} samples; expected at least one "
                "and not all"
            )
        order = permutation(len(self), seed, _SPLIT)
        parts = (np.sort(self._rows[order[taken:]]), np.sort(self._rows[order[:taken]]))
        first, second = (Dataset(self._arrays, self._inputs, rows) for rows in parts)
        return first, second

    def _take(self, rows: Array) -> dict[str, Array]:
        return {name: array[rows] if name in self._sampled else array for name, array in self._arrays.items()}


def permutation(count: int, seed: int, epoch: int) -> Array:
    """Returns the order of the samples in an epoch, which depends only on the arguments."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def load_data(
    sources: Sequence[str],
    inputs: Mapping[str, DataInput],
    *,
    optional: Collection[str] = (),
    unused: list[str] | None = None,
) -> dict[str, Array]:
    """Reads arrays for the data inputs of a step.

    Args:
        sources: Each an .npz file with arrays by input name, a folder with a file ``<input>.npy`` for each array,
            or ``<input>=FILE.npy``.
        inputs: The data inputs.
        optional: The inputs that may have no array.
        unused: A list that gets the names of arrays that are no data inputs; None to refuse these.

    Raises:
        InputError: A file cannot be read, an array is there twice or missing, or there is no such input.
    """
    arrays: dict[str, Array] = {}
    for source in sources:
        for name, array in _load(source, inputs).items():
            if name in arrays:
                raise InputError(f"{source} has {name!r}, which an earlier --data has, too; give it once")
            arrays[name] = array
    if unused is not None:
        unused += [name for name in arrays if name not in inputs]
        arrays = {name: array for name, array in arrays.items() if name in inputs}
    require_all(arrays, [name for name in inputs if name in arrays or name not in optional])
    return arrays


def data_files(source: str) -> list[Path]:
    """The files that `load_data` reads for a source."""
    _, equals, file = source.partition("=")
    path = Path(source)
    if equals and not path.exists():
        return [Path(file)]
    return sorted(path.glob("*.npy")) if path.is_dir() else [path]


def _load(source: str, inputs: Mapping[str, DataInput]) -> dict[str, Array]:
    name, equals, file = source.partition("=")
    path = Path(source)
    if equals and not path.exists():
        require_known(name, inputs)
        return {name: load_array(file)}
    if path.is_dir():
        arrays = {file.stem: load_array(file) for file in sorted(path.glob("*.npy"))}
        if not arrays:
            raise InputError(f"folder {source} has no .npy file; expected one for {listed(inputs)}")
        return arrays
    if path.suffix == ".npy":
        raise InputError(f"{source} is a single array; write NAME={source} with one of {listed(inputs, 'or')}")
    return load_arrays(path)


def _sampled(inputs: Mapping[str, DataInput]) -> tuple[list[str], int | None]:
    """The inputs that take rows, and the batch size if the model fixes it."""
    # An input of unknown rank takes rows, a scalar does not.
    firsts = {name: spec.shape[0] if spec.shape else None for name, spec in inputs.items() if spec.shape != ()}
    symbolic = [name for name, size in firsts.items() if not isinstance(size, int)]
    if symbolic:
        return symbolic, None
    if len(set(firsts.values())) != 1:
        sizes = ", ".join(f"{name!r} {size}" for name, size in firsts.items()) or "none"
        raise InputError(
            f"no data input has a symbolic first dimension, and their sizes are not one batch size: {sizes}"
        )
    return list(firsts), int(next(iter(firsts.values())) or 0)
