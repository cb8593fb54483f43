"""Reading arrays from files of NumPy. Pickles are refused: loading an untrusted file must not run code."""

from __future__ import annotations

import contextlib
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Reads arrays by name from an .npz file.

    Raises:
        InputError: The file does not exist, or is not an .npz file of plain arrays.
    """
    expected = "an .npz file of arrays by input name"
    refusing = _refusing(path, expected, "an .npz file of plain arrays", "savez")
    with refusing, np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def load_array(path: str | os.PathLike[str]) -> Array:
    """Returns the array of an .npy file, which stays on disk until it is used.

    Raises:
        InputError: The file does not exist, or is not an .npy file of a plain array.
    """
    with _refusing(path, "an .npy file", "an .npy file of a plain array", "save"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            array.close()
            raise TypeError
        return array


@contextlib.contextmanager
def _refusing(path: str | os.PathLike[str], expected: str, what: str, maker: str) -> Iterator[None]:
    """Turns what NumPy raises into errors of one line."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected {expected}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not {what}, or is damaged: {reason}") from None
    except (ValueError, AttributeError, EOFError, TypeError):
        # Without NumPy's message, which suggests allowing pickles.
        raise InputError(f"{path} is not {what}; create it with numpy.{maker}") from None
