"""Differentiation: a forward model and a loss in, a training graph in ONNX Runtime's dialect out.

- `rules`: the gradient of every op, one line each
- `edges`: where gradients can flow
- `builder`: the walk back through a graph
- `forward`: what a forward model needs first
- `targets`: what to differentiate, and by what
- `training_graph`: all of these
- `differentiate`: and what a target needs
"""
