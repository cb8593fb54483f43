"""The errors of this package, which are also what `onnxruntime.training` raises."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bngrad.errors import BngradError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


class OrtTrainingError(InputError, RuntimeError):
    """A RuntimeError of `onnxruntime.training`: a bad file, argument or order of calls."""


class OrtTrainingLookupError(InputError, LookupError):
    """A LookupError of `onnxruntime.training`: an unknown name."""


class OrtTrainingTypeError(InputError, TypeError):
    """A TypeError of `onnxruntime.training`: a value of a wrong type."""


class OrtTrainingAttributeError(InputError, AttributeError):
    """An AttributeError of `onnxruntime.training`: an input that is not an OrtValue."""


@contextlib.contextmanager
def as_ort_training_error(what: str = "") -> Iterator[None]:
    """Turns other errors of bngrad and of ONNX Runtime into `OrtTrainingError`.

    Args:
        what: The beginning of the message.
    """
    try:
        yield
    except (OrtTrainingError, OrtTrainingLookupError, OrtTrainingTypeError, OrtTrainingAttributeError):
        raise
    except Exception as error:
        of_ort = type(error).__module__.startswith("onnxruntime") or isinstance(error, RuntimeError)
        if not of_ort and not isinstance(error, BngradError):
            raise
        raise OrtTrainingError(f"{what}{' '.join(str(error).split())}") from error
