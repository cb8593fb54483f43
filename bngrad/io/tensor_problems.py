"""Checks that the texts and tensors of a model are valid: UTF-8, and data that match the type and shape."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BITS_PER_BYTE = 8


def invalid_texts(subject: str, texts: Sequence[object]) -> Iterator[str]:
    """Checks that texts are valid UTF-8; protobuf returns others as bytes."""
    for text in texts:
        if text is not None and not isinstance(text, str):
            yield f"{subject} {reprlib.repr(text)}, which is not valid UTF-8"


def data_problems(tensor: ir.TensorProtocol, subject: str) -> Iterator[str]:
    """Checks that the data of a tensor match its type and shape; `external_files` checks external data."""
    yield from invalid_texts(f"{subject} has the name", [tensor.name])
    yield from invalid_texts(f"{subject} has the note", [tensor.doc_string])
    try:
        if any(size < 0 for size in tensor.shape.numpy()):
            yield f"{subject} has a negative dimension"
        elif tensor.dtype == ir.DataType.UNDEFINED:
            yield f"{subject} has no type"
        elif _lacks_data(tensor):
            yield f"{subject} has no data; expected {tensor.size} elements"
        elif (got := _packed_bytes(tensor)) not in (None, tensor.nbytes):
            yield f"{subject} has {got} bytes of data; expected {tensor.nbytes}"
        elif not isinstance(tensor, ir.ExternalTensor):
            tensor.numpy()
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        yield f"{subject} cannot be read: {' '.join(str(error).split())}"


def _lacks_data(tensor: ir.TensorProtocol) -> bool:
    """Tests whether a tensor has elements but no data; onnx-ir would fill it with zeros."""
    if not isinstance(tensor.raw, onnx.TensorProto) or tensor.raw.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return tensor.size > 0 and not any(field.name.endswith("_data") for field, _ in tensor.raw.ListFields())


def _packed_bytes(tensor: ir.TensorProtocol) -> int | None:
    """Returns the bytes of data of a tensor with elements of less than a byte, which onnx-ir does not check."""
    has_no_size = tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    if not isinstance(tensor.raw, onnx.TensorProto) or has_no_size or tensor.dtype.bitwidth >= _BITS_PER_BYTE:
        return None
    return len(tensor.raw.raw_data) or len(tensor.raw.int32_data)
