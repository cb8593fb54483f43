"""Input arrays from a file."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray


def load_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Reads an .npz file of arrays by input name.

    Raises:
        InputError: There is no such file, or it is no .npz of plain arrays.
    """
    try:
        # No pickle: a file of numbers must not be able to run anything.
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected an .npz file of arrays by input name") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        what = " ".join(str(error).split())
        raise InputError(f"{path} is not an .npz file of plain arrays, or is damaged: {what}") from None
    except (ValueError, AttributeError, EOFError, TypeError):
        # NumPy's own text advises to allow pickles.
        raise InputError(f"{path} is not an .npz file of plain arrays; make one with numpy.savez") from None
