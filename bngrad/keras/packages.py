"""Imports Keras, TensorFlow and tf2onnx, which only this package needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bngrad.errors import InputError


def import_keras() -> Any:  # noqa: ANN401 - Keras has no types
    """Returns the module ``keras``.

    Raises:
        InputError: It is not installed, or is not Keras 3.
    """
    keras = _import("keras")
    if not hasattr(keras, "StatelessScope"):
        raise InputError(f"keras is version {keras.__version__}; expected Keras 3")
    return keras


def import_exporter() -> tuple[Any, Any, Any]:
    """Returns the modules ``keras``, ``tensorflow`` and ``tf2onnx``.

    Raises:
        InputError: One is not installed, or Keras runs on another backend.
    """
    keras = import_keras()
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"Keras runs on the backend {keras.backend.backend()!r}; expected 'tensorflow': save the model with "
            "model.save, and load it in a process with KERAS_BACKEND=tensorflow"
        )
    return keras, _import("tensorflow"), _import("tf2onnx")


def _import(name: str) -> Any:  # noqa: ANN401
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{name} cannot be imported ({error}); install it with: pip install 'bngrad[keras]'"
        ) from error
