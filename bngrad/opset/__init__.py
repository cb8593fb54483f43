"""Definitions of the ops: as ONNX functions, as ONNX schemas, and in float64 NumPy."""
