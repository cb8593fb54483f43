"""Reading and building onnx-ir graphs: no pass and no gradient rule."""
