"""The ops: as functions, as ONNX schemas, and in float64 NumPy."""
