"""Sessions of every provider for data of every type, which NumPy alone cannot hand over."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from bngrad.runtime.session import register

DTYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
TOLERANCES = {"float": 1e-6, "double": 1e-14, "float16": 5e-4, "bfloat16": 4e-3}
"""The accuracy to reach: the largest error over the largest reference value, by the type of an output."""

PROVIDERS = ["function", "native", "python"]
"""onnxruntime-extensions, which ``python`` goes through, carries no 16-bit types; `TypedSession` checks that."""


class TypedSession:
    """A model in a session of a provider; it takes and gives bfloat16 too.

    A model in 16 bits is refused by the python provider; that is asserted, and the functions run instead.
    """

    def __init__(self, model: onnx.ModelProto, provider: str = "function") -> None:
        if provider == "python" and _is_in_16_bits(model):
            with pytest.raises(Exception, match=r"tensor\((b?float16)\)|b?float16"):
                _session(model, provider)
            provider = "function"
        self._session = _session(model, provider)

    def __call__(self, feeds):
        names = [value.name for value in self._session.get_outputs()]
        given = {value.name: _ort_value(feeds[value.name]) for value in self._session.get_inputs()}
        results = self._session.run_with_ort_values(names, given)
        return {name: _array(value) for name, value in zip(names, results, strict=True)}


def _session(model, provider):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    register(options, provider)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _is_in_16_bits(model):
    """Whether any of our nodes has data or parameters in 16 bits; the types are those of inputs, or inferred."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    types |= {tensor.name: tensor.data_type for tensor in inferred.initializer}
    used = {types.get(name) for node in inferred.node if node.domain == "bngrad" for name in node.input}
    return bool(used & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


def _ort_value(array):
    array = np.asarray(array, order="C")  # np.ascontiguousarray makes a scalar a vector
    if array.dtype == DTYPES["bfloat16"]:
        bits = array.view(np.uint16)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _array(value):
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return value.numpy()
    # NumPy has no bfloat16, so ONNX Runtime hands out no array: the bits are read where they are.
    shape = value.shape()
    bits = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return np.frombuffer(bits, np.uint16).view(DTYPES["bfloat16"]).reshape(shape).copy()
