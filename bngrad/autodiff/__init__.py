"""Differentiation: a forward model and a loss in, a training graph in ONNX Runtime's dialect out.

- `rules`: the gradient of each op; `rule` and `backward` are what a rule is and what it works with
- `edges`: where gradients can flow
- `walk`: from the loss back to what it is differentiated with respect to
- `selection`, `weights`: the loss, and what to differentiate with respect to
- `prepare`: what a forward model needs first
- `training_graph`: all of these
"""
