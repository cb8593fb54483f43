"""What keeps ONNX Runtime from computing something wrong; each module names the fault."""
