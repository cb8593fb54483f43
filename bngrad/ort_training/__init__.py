"""The Python API of `onnxruntime.training` 1.19, on stock ONNX Runtime."""
