"""Differentiation: a forward model and a loss in, a training graph in ONNX Runtime's dialect out.

- `rules`: the gradient of each op; `rule` and `backward` are what a rule is and what it works with
- `edges`: where gradients can flow
- `walk`: from the loss back to what it is differentiated with respect to
- `loss_and_wrt`, `weights`: the loss, and what to differentiate with respect to
- `prepare_forward`: what a forward model needs first, with `batch_norm_modes`, `running_statistics` and
  `separate_statistics`
- `training_graph`: all of these
"""
