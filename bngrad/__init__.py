"""Batch-normalization training for ONNX Runtime."""
