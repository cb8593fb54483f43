"""Sessions for data of every type, including bfloat16, which NumPy does not support."""

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
"""The tolerance of the largest error relative to the largest reference value, by the type of an output."""

IMPLEMENTATIONS = ["function", "native", "python"]
"""The implementation ``python`` uses onnxruntime-extensions without 16-bit types; `TypedSession` checks that."""


class TypedSession:
    """A session with an implementation that accepts and returns bfloat16, too.

    If the model has 16-bit types, it asserts that the python implementation rejects it, and runs the functions.
    """

    def __init__(self, model: onnx.ModelProto, implementation: str = "function") -> None:
        if implementation == "python" and _is_in_16_bits(model):
            with pytest.raises(Exception, match=r"tensor\((b?float16)\)|b?float16"):
                _session(model, implementation)
            implementation = "function"
        self._session = _session(model, implementation)

    def __call__(self, feeds):
        names = [value.name for value in self._session.get_outputs()]
        values = {value.name: _ort_value(feeds[value.name]) for value in self._session.get_inputs()}
        results = self._session.run_with_ort_values(names, values)
        return {name: _array(value) for name, value in zip(names, results, strict=True)}


def _session(model, implementation):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    register(options, implementation)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _is_in_16_bits(model):
    """Tests whether any ``bngrad`` node has 16-bit inputs, according to declared or inferred types."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    types |= {tensor.name: tensor.data_type for tensor in inferred.initializer}
    used = {types.get(name) for node in inferred.node if node.domain == "bngrad" for name in node.input}
    return bool(used & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})


def _ort_value(array):
    array = np.asarray(array, order="C")  # np.ascontiguousarray would turn a scalar into a vector
    if array.dtype == DTYPES["bfloat16"]:
        bits = array.view(np.uint16)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _array(value):
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return value.numpy()
    # ONNX Runtime returns no NumPy array of bfloat16, so this reads the buffer.
    shape = value.shape()
    bits = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return np.frombuffer(bits, np.uint16).view(DTYPES["bfloat16"]).reshape(shape).copy()
