"""Loading models from any supported type, and saving them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from bngrad.errors import InputError, ModelError
from bngrad.graph.nodes import all_nodes
from bngrad.io import external_data
from bngrad.io.domains import tidy_domains
from bngrad.io.external_files import require_external_data
from bngrad.io.limits import require_limits
from bngrad.io.negative_dimensions import clear_negative_dimensions
from bngrad.io.reading import require_file
from bngrad.io.well_formed import require_well_formed
from bngrad.io.writing import destination, replacing

if TYPE_CHECKING:
    from typing import BinaryIO

    from bngrad.io.external_data import ExternalData

AnyModel: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

MAX_PROTOBUF_BYTES = 1_900_000_000
"""Models with more weights than this are written with external data; protobuf's limit is 2 GiB."""

_NO_PATH = "pass the model's path, or load the model with its external data, as onnx.load(path) does"
"""Remedy if a model in memory has external data that is not in the current folder."""


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Reads a model. External data is not loaded until it is needed; negative dimensions become unknown.

    Raises:
        InputError: The file is not as `require_file` expects, cannot be read, or external data is missing.
        ModelError: The file is empty, truncated, or not a valid ONNX model.
    """
    file = Path(path)
    size = require_file(file, "an ONNX model file").st_size
    try:
        if size == 0:
            raise ModelError(f"{file} is empty; expected an ONNX model")
        _refuse_other_format(file)
        model = _from_proto(onnx.load(file, format="protobuf", load_external_data=False))
        # Absolute: if the folder is "", onnx-ir does not check where external data is.
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            ir.external_data.set_base_dir(graph, file.absolute().parent)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except DecodeError as error:
        if "alloc failed" in str(error):
            raise MemoryError from error
        raise ModelError(
            f"{file} is not an ONNX model, or is truncated ({size} bytes): not valid protobuf"
        ) from None
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(f"{file} is not a valid ONNX model: {_reason(error)}") from error
    if not model.ir_version or (not len(model.graph) and not model.graph.outputs):
        raise ModelError(f"{file} is not an ONNX model: it has no graph")
    require_well_formed(model, str(file))
    require_external_data(model, file.parent)
    clear_negative_dimensions(model)
    return tidy_domains(model)


_FORMATS = (
    (
        4,
        b"ORTM",
        "a model in ORT format (.ort), which only ONNX Runtime can read; pass the .onnx file it was made from",
    ),
    (4, b"ODTC", "a checkpoint of onnxruntime.training; pass its training_model.onnx or the forward model"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it with tf2onnx"),
    (0, b"version http", "a Git LFS pointer, not the model; run git lfs pull"),
    (
        0,
        b"PK\x03\x04",
        "a zip archive, as torch.save and numpy.savez write; expected a model (torch.onnx.export writes one)",
    ),
    (0, b"\x1f\x8b", "compressed with gzip; unpack it"),
    (0, b"<", "a model as text; convert it: onnx.save(onnx.parser.parse_model(text), 'model.onnx')"),
    (
        0,
        b"ir_version",
        "a model as protobuf text; convert it: onnx.save(onnx.load(path, format='textproto'), 'model.onnx')",
    ),
)
"""Other file formats: offset and value of their magic bytes, and what the file is and what to do."""


def _refuse_other_format(file: Path) -> None:
    """Raises `ModelError` for a file in another known format."""
    with file.open("rb") as content:
        start = content.read(32)
    for offset, magic, what in _FORMATS:
        if start[offset : offset + len(magic)] == magic:
            raise ModelError(f"{file} is {what}")


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Converts a model, keeping the declared types of inputs that are also declared as outputs."""
    require_limits(proto)
    model = ir.from_proto(proto)
    _refuse_two_versions(model, proto)
    for value, info in zip(model.graph.inputs, proto.graph.input, strict=True):
        value.type = ir.serde.deserialize_type_proto_for_type(info.type)
        value.shape = ir.serde.deserialize_type_proto_for_shape(info.type)
    return model


def _refuse_two_versions(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Raises `ValueError` if a domain that nodes use is imported in two versions."""
    versions: dict[str, set[int]] = {}
    for entry in proto.opset_import:
        versions.setdefault(entry.domain, set()).add(entry.version)
    twice = {domain for domain, numbers in versions.items() if len(numbers) > 1}
    for domain in twice and {node.domain for node in all_nodes(model)} & twice:
        pair = " and ".join(map(str, sorted(versions[domain])))
        raise ValueError(f"it imports {domain or 'ai.onnx'} in two versions, {pair}; expected one")


def as_ir(model: AnyModel) -> ir.Model:
    """Returns a model of any supported type as an `onnx_ir.Model`.

    Raises:
        InputError: The file cannot be read, or the argument has an unsupported type.
        ModelError: The model is invalid.
    """
    if isinstance(model, ir.Model):
        return tidy_domains(model)
    if isinstance(model, onnx.ModelProto):
        try:
            converted = _from_proto(model)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise ModelError(f"the model cannot be read: {_reason(error)}") from error
        require_well_formed(converted, "the model")
        require_external_data(converted, Path(), missing=_NO_PATH)
        clear_negative_dimensions(converted)
        return tidy_domains(converted)
    if isinstance(model, str | os.PathLike):
        return load(model)
    raise InputError(
        f"model has type {type(model).__name__}; expected a path, an onnx.ModelProto or an onnx_ir.Model"
    )


def in_memory(model: ir.Model) -> ir.Model:
    """Returns a model without external data: the model itself if it has none, else a copy with all data loaded.

    Raises:
        InputError: The external data cannot be read.
    """
    try:
        return external_data.in_memory(model)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Returns a model as an `onnx.ModelProto` that holds all its weights.

    Raises:
        InputError: The external data cannot be read.
        ModelError: The weights exceed protobuf's limit.
    """
    tensors = [value.const_value for value in external_data.initializers(model)]
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if size > MAX_PROTOBUF_BYTES:
        raise ModelError(
            f"the model has {size / 1e9:.1f} GB of weights, more than an onnx.ModelProto can hold; "
            "pass onnx_ir.load(path) to get an onnx_ir.Model, or use the command line"
        )
    return ir.to_proto(in_memory(model))


def _reason(error: BaseException) -> str:
    """Returns the root cause in one line; onnx-ir wraps it in exceptions whose text may contain whole graphs."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())


def save(model: ir.Model, path: Path, weights: ExternalData | None = None) -> None:
    """Writes a model atomically: ``path`` holds either the old model and its weights, or the new ones.

    Args:
        model: The model. Its tensors are replaced by the written or loaded ones.
        path: The file to write.
        weights: ``copied``: to ``<path>.data``. ``shared``: external data stays in its files. By default, the
            weights go into the model file if protobuf's limit allows, else they are copied. Data that the model
            that is replaced refers to stay, because other models may share them.

    Raises:
        InputError: A file cannot be written, or external data cannot be read or shared.
        ModelError: The content of the model file exceeds protobuf's limit.
    """
    path, output = destination(path), path
    created: list[Path] = []
    try:
        moved = _arrange(model, path, weights)
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None
    if os.path.realpath(output.parent) != os.path.realpath(path.parent) and (
        moved or any(map(external_data.is_external, external_data.initializers(model)))
    ):
        raise InputError(
            f"output {output} is a link to {path}, and its weights are external data, which must be beside the "
            f"model; write to {path}"
        )
    try:
        try:
            with replacing(path) as temporary:
                if moved:
                    with external_data.create(path, created) as file:
                        _write_data(moved, file, created[-1])
                    external_data.reuse(moved, created[-1], path)
                temporary.write_bytes(_serialized(model))
        finally:
            external_data.tidy(path, created)
    finally:  # once more, in case Ctrl-C interrupted the first call
        external_data.tidy(path, created)


def _arrange(model: ir.Model, path: Path, weights: ExternalData | None) -> list[ir.Value]:
    """Loads or shares the tensors that do not go to a data file; returns the initializers that do."""
    external_data.load_attributes(model)
    if weights == "shared":
        external_data.share(model, path.parent)
        values = [v for v in external_data.initializers(model) if not external_data.is_external(v)]
    else:
        values = external_data.initializers(model)
    size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
    if weights != "copied" and size < MAX_PROTOBUF_BYTES:
        external_data.load(values)
        return []
    moved = [value for value in values if external_data.is_movable(value)]
    external_data.load([value for value in values if not external_data.is_movable(value)])
    external_data.require_whole(moved)
    return moved


def _write_data(values: list[ir.Value], file: BinaryIO, data: Path) -> None:
    try:
        external_data.write(values, file, data)
    except ValueError as error:
        raise _unreadable(error) from None
    except OSError as error:
        raise InputError(f"{data} cannot be written: {error.strerror or error}") from None


def _serialized(model: ir.Model) -> bytes:
    try:
        content: bytes = ir.to_proto(model).SerializeToString()
    except (ValueError, EncodeError) as error:
        raise ModelError(f"the model does not fit in one file of 2 GB: {error}") from None
    return content


def _unreadable(error: Exception) -> InputError:
    return InputError(f"the model's external data cannot be read: {_reason(error)}")
