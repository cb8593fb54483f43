"""Checks of the weights of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.opset.known_shapes import shape_text

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import ArrayLike

    from bngrad.opset.known_shapes import KnownShape


def require_numbers(what: str, values: ArrayLike | None, rank: int | None = None) -> None:
    """Checks that an option is an array of finite numbers, or None.

    Raises:
        InputError: It is not, or of another rank.
    """
    import numpy as np  # noqa: PLC0415 - slow to import

    if values is None:
        return
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or (rank is not None and array.ndim != rank) or not np.isfinite(array).all():
        expected = "finite numbers" if rank is None else "a vector of finite numbers"
        raise InputError(f"{what} is {array.dtype}{shape_text(array.shape)}; expected {expected}")


def require_classes(weight: ArrayLike, classes: int | str | None) -> None:
    """Checks that there is a weight for each class, if their number is known.

    Raises:
        InputError: There is not.
    """
    import numpy as np  # noqa: PLC0415 - slow to import

    if isinstance(classes, int) and np.size(weight) != classes:
        raise InputError(f"weight has {np.size(weight)} elements; expected {classes}, one for each class")


def require_broadcasting(what: str, values: ArrayLike | None, prediction: ir.Value, shape: KnownShape) -> None:
    """Checks that an array, or None, broadcasts to the shape of a prediction without changing that.

    Raises:
        InputError: It does not.
    """
    import numpy as np  # noqa: PLC0415 - slow to import

    if values is None:
        return
    own = np.shape(values)
    sizes = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or not all(size in (1, other) or not isinstance(other, int) for size, other in sizes):
        raise InputError(
            f"{what} has shape {shape_text(own)}; expected one that broadcasts to {shape_text(shape)}, the "
            f"shape of prediction {prediction.name!r}"
        )
