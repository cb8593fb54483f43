"""The model that blocks build, and the context managers that choose it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx

from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.ort_training.errors import OrtTrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIN_IR_VERSION = 8
"""That of ONNX 1.10 and ONNX Runtime 1.9."""

_INITIALIZERS_ARE_NO_INPUTS = 4
"""Since this IR version initializers, such as the constants of blocks, need not be inputs."""

_OPSET = 18
"""The opset of a model that is built from nothing: every ONNX Runtime since 1.14 has it."""


class ModelAccessor:
    """Holds the model that blocks build.

    Args:
        model: The model.
        model_path: The file that it is from.
    """

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self.model = model
        self._path = model_path

    @property
    def path(self) -> str:
        """The file that the model is from.

        Raises:
            OrtTrainingError: It is from none.
        """
        if self._path is None:
            raise OrtTrainingError("the model has no path; pass model_path to onnxblock.base")
        return self._path

    @property
    def has_path(self) -> bool:
        """True if the model is from a file."""
        return self._path is not None


_accessor: ModelAccessor | None = None
_library: os.PathLike[str] | str | None = None


def current() -> ModelAccessor:
    """Returns the accessor of the innermost context.

    Raises:
        OrtTrainingError: There is none.
    """
    if _accessor is None:
        raise OrtTrainingError(
            "there is no model to build on; call blocks within `with onnxblock.base(model)` or "
            "`with onnxblock.empty_base()`"
        )
    return _accessor


def has_library() -> bool:
    """Tests whether there is a library of custom ops."""
    return _library is not None


@contextmanager
def base(model: onnx.ModelProto, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Has blocks build on a copy of a model.

    Args:
        model: The model; it is not changed.
        model_path: The file that it is from.

    Yields:
        The accessor of the copy.

    Raises:
        OrtTrainingError: It is not a model, or there is a base already.
    """
    if not isinstance(model, onnx.ModelProto):
        raise OrtTrainingError(
            f"the base model is {type(model).__name__}; expected an onnx.ModelProto, or use onnxblock.empty_base"
        )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, _INITIALIZERS_ARE_NO_INPUTS)
    with _registered(ModelAccessor(copy, model_path)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Has blocks build a model from nothing.

    Args:
        opset_version: Its opset; by default one that every supported ONNX Runtime has.

    Yields:
        The accessor of the model.

    Raises:
        OrtTrainingError: There is a base already.
    """
    imports = [onnx.helper.make_opsetid(MICROSOFT, 1), onnx.helper.make_opsetid("", opset_version or _OPSET)]
    version = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    graph = onnx.helper.make_graph([], "graph", [], [])
    model = onnx.helper.make_model(
        graph, opset_imports=imports, ir_version=max(_MIN_IR_VERSION, version), producer_name="bngrad"
    )
    with _registered(ModelAccessor(model)) as accessor:
        yield accessor


@contextmanager
def custom_op_library(custom_op_library_path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Names a library of custom ops that the model uses.

    The gradient builder of this package needs no kernels, so the library is not loaded. A custom op has no
    gradient: the loss must not depend on a trainable parameter through one.

    Raises:
        OrtTrainingError: The file does not exist, or there is a library already.
    """
    global _library  # noqa: PLW0603 - the context of the process, as in 1.19.2
    if _library is not None:
        raise OrtTrainingError(f"there is a custom-op library already: {os.fspath(_library)}; expected one")
    if not os.path.exists(custom_op_library_path):  # noqa: PTH110 - the path may be bytes
        raise OrtTrainingError(f"custom-op library {os.fspath(custom_op_library_path)} does not exist")
    _library = custom_op_library_path
    try:
        yield custom_op_library_path
    finally:
        _library = None


@contextmanager
def _registered(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    global _accessor  # noqa: PLW0603 - the context of the process, as in 1.19.2
    if _accessor is not None:
        raise OrtTrainingError("there is a base model already; leave its context before beginning another")
    _accessor = accessor
    try:
        yield accessor
    finally:
        _accessor = None
