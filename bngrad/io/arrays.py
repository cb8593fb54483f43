"""Reading arrays from files of NumPy. Pickles are refused: loading an untrusted file must not run code."""

from __future__ import annotations

import contextlib
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.io.reading import require_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Reads arrays by name from an .npz file.

    Raises:
        InputError: The file is not as `require_file` expects, or is not an .npz file of plain arrays.
    """
    require_file(path, "an .npz file of arrays by input name")
    # NumPy leaves a file open if it opened it and it is not an archive.
    with (
        _refusing(path, "an .npz file of plain arrays", "savez"),
        Path(path).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        twice = [name for name, count in Counter(archive.files).items() if count > 1]
        if twice:
            raise InputError(f"{path} has two arrays called {twice[0]!r}; expected one of each name")
        return {name: _plain(archive[name]) for name in archive.files}


def load_array(path: str | os.PathLike[str]) -> Array:
    """Returns the array of an .npy file, which stays on disk until it is used.

    Raises:
        InputError: The file is not as `require_file` expects, or is not an .npy file of a plain array.
    """
    require_file(path, "an .npy file")
    with _refusing(path, "an .npy file of a plain array", "save"):
        return np.lib.format.open_memmap(path, mode="r")


def _plain(loaded: Any) -> Array:  # noqa: ANN401 - whatever NumPy finds in a file
    """Returns the loaded object if it is an array, and not the bytes of a member that is not one.

    Raises:
        TypeError: It is not an array.
    """
    if isinstance(loaded, np.ndarray):
        return loaded
    raise TypeError


@contextlib.contextmanager
def _refusing(path: str | os.PathLike[str], what: str, maker: str) -> Iterator[None]:
    """Turns what NumPy raises into errors of one line; its warnings, of old headers, say nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (InputError, MemoryError):
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not {what}, or is damaged: {reason}") from None
    except Exception:  # noqa: BLE001 - what NumPy, zipfile and the decoders raise for a damaged file
        # Without NumPy's message, which suggests allowing pickles.
        raise InputError(f"{path} is not {what}; create it with numpy.{maker}") from None
