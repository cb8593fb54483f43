"""The error of this package."""

from __future__ import annotations

from bngrad.errors import InputError


class OrtTrainingError(InputError, RuntimeError):
    """What `onnxruntime.training` raises as a RuntimeError: a bad file, argument or order of calls."""
