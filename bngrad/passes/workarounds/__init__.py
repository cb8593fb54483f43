"""Workarounds for bugs of ONNX Runtime; each module names the bug."""
