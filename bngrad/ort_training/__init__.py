"""The Python API of `onnxruntime.training` 1.19, on stock ONNX Runtime."""

from bngrad.ort_training import api, artifacts, onnxblock

__all__ = ["api", "artifacts", "onnxblock"]
