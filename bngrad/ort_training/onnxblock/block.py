"""The base class of blocks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from bngrad.io import files
from bngrad.ort_training.errors import OrtTrainingError, as_ort_training_error
from bngrad.ort_training.onnxblock import _graph_utils, model_accessor
from bngrad.passes.check import check

if TYPE_CHECKING:
    import onnx


class Block(ABC):
    """A part of a model, which a subclass appends in its method `build`.

    `build` gets the names of values, changes ``self.base``, and returns the name of its output, or a tuple of
    names. Calling a block builds it on the model of `onnxblock.base` or `onnxblock.empty_base`, and checks the
    model.

    Args:
        temp_file_name: For compatibility with `onnxruntime.training`; no file is written.

    Raises:
        OrtTrainingError: The file name is absolute.
    """

    base: onnx.ModelProto
    """The model, while the block is called."""

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if os.path.isabs(temp_file_name):  # noqa: PTH117 - a string
            raise OrtTrainingError(f"temp_file_name is {temp_file_name!r}; expected a relative path")

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a subclass defines them
        """Appends the block to ``self.base``, and returns the names of its outputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as build
        """Builds the block, and checks the model.

        Raises:
            OrtTrainingError: There is no base model, or the result does not pass onnx's checker.
        """
        self.base = model_accessor.current().model
        output = self.build(*args, **kwargs)
        with as_ort_training_error():
            model = files.as_ir(self.base)
            check(model, model)
        return output

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Returns the model with the types and shapes of its values."""
        return _graph_utils.to_proto(_graph_utils.typed(model_accessor.current().model))
