"""Models in and out: whatever kind a caller has, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from bngrad.errors import InputError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

AnyModel: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

MAX_PROTOBUF_BYTES = 1_900_000_000
"""A model with more weights than this is written with external data; protobuf ends at 2 GiB."""


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Reads a model; tensors in external data stay in their file until they are needed.

    Raises:
        InputError: There is no such file, it cannot be read, or it is a directory.
        ModelError: It is empty, truncated, or not an ONNX model.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if file.is_dir():
            raise InputError(f"{file} is a directory; expected an ONNX model file")
        if size == 0:
            raise ModelError(f"{file} is empty; expected an ONNX model")
        model = ir.load(file, format="protobuf")
    except FileNotFoundError:
        raise InputError(f"{file} does not exist; expected an ONNX model file") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except DecodeError:
        raise ModelError(
            f"{file} is not an ONNX model, or is truncated ({size} bytes): not valid protobuf"
        ) from None
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(f"{file} is not an ONNX model that can be read: {_reason(error)}") from error
    if not model.ir_version or (not len(model.graph) and not model.graph.outputs):
        raise ModelError(f"{file} is not an ONNX model: it has no graph")
    _require_produced(model, str(file))
    return model


def as_ir(model: AnyModel) -> ir.Model:
    """Returns a model of any kind as an `onnx_ir.Model`.

    Raises:
        InputError: A path cannot be read, or the argument is no model.
        ModelError: A file is not an ONNX model.
    """
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        try:
            converted = ir.from_proto(model)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise ModelError(f"the model cannot be read: {_reason(error)}") from error
        _require_produced(converted, "the model")
        return converted
    if isinstance(model, str | os.PathLike):
        return load(model)
    raise InputError(f"a model is a path, an onnx.ModelProto or an onnx_ir.Model, not {type(model).__name__}")


def _reason(error: BaseException) -> str:
    """The first cause, in one line; what onnx-ir wraps it in has whole graphs in its text."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())


def _require_produced(model: ir.Model, what: str) -> None:
    """Refuses a graph in which a node or an output reads a value that nothing before it makes.

    Raises:
        ModelError: There is such a value.
    """
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        visited = set()
        for node in ir.traversal.RecursiveGraphIterator(graph):
            for value in node.inputs:
                if value is not None and not _is_given(value) and value.producer() not in visited:
                    reader = f"{node.op_type} node {node.name!r}"
                    raise ModelError(
                        f"{what} is not valid: {reader} reads {value.name!r}, which nothing made before"
                    )
            visited.add(node)
        for value in graph.outputs:
            if not _is_given(value) and value.producer() is None:
                raise ModelError(f"{what} is not valid: nothing makes its output {value.name!r}")


def _is_given(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_initializer()


def check_output(output: str | os.PathLike[str], source: str | os.PathLike[str] | None = None) -> Path:
    """Returns the output path, before any work is done for it.

    Args:
        output: Where a file is to be written.
        source: The input file, which must not be overwritten.

    Raises:
        InputError: The path is a directory, its folder does not exist or cannot be written, or it is the input.
    """
    path = Path(output)
    if path.is_dir():
        raise InputError(f"output {path} is a directory; name a file")
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise InputError(f"output {path} is the input; name another file")
    if not path.parent.is_dir():
        raise InputError(f"output folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"output folder {path.parent} is not writable")
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary file beside ``path`` to write, and renames it to ``path`` if nothing was raised.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes a private file; what a user asked for has the rights of any new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def save(model: ir.Model, path: Path) -> None:
    """Writes a model, whole or not at all; weights beyond protobuf's limit go to ``<path>.data``.

    Raises:
        InputError: The file cannot be written, or the model's external data cannot be read.
    """
    tensors = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    if sum(tensor.nbytes for tensor in tensors) < MAX_PROTOBUF_BYTES:
        # A tensor in external data names a file beside the input; the output stands for itself.
        try:
            ir.external_data.load_to_model(model)
        except (OSError, ValueError) as error:
            raise InputError(f"the model's external data cannot be read: {_reason(error)}") from None
        with replacing(path) as temporary:
            temporary.write_bytes(ir.to_proto(model).SerializeToString())
        return
    data = path.with_name(path.name + ".data")
    for tensor in tensors:
        if isinstance(tensor, ir.ExternalTensor) and data.exists() and data.samefile(tensor.path):
            raise InputError(
                f"output {path} needs the file {data}, which has the input's weights; name another file"
            )
    try:
        # onnx-ir renames the data into place itself; the model that points at it comes after.
        with replacing(path) as temporary:
            ir.save(model, temporary, format="protobuf", external_data=data.name)
    except OSError as error:
        raise InputError(f"{data} cannot be written: {error.strerror}") from None
