"""Reading arrays from a file."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray


def load_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Reads arrays by name from an .npz file.

    Raises:
        InputError: The file does not exist, or is not an .npz file of plain arrays.
    """
    try:
        # No pickle: loading an untrusted file must not run code.
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected an .npz file of arrays by input name") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not an .npz file of plain arrays, or is damaged: {reason}") from None
    except (ValueError, AttributeError, EOFError, TypeError):
        # Without NumPy's message, which suggests allowing pickles.
        raise InputError(f"{path} is not an .npz file of plain arrays; create it with numpy.savez") from None
