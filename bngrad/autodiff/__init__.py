"""Differentiation: a forward model and a loss in, a training graph in ONNX Runtime's dialect out.

- `rules`: the gradient of each op; `rule` defines rules, and `backward` the node that a rule works on
- `edges`: the inputs that gradients can flow to
- `walk`: the backward pass, from the loss to the values that it is differentiated with respect to
- `loss_and_wrt`, `weights`: the selection of the loss and of these values
- `prepare_forward`: the preparation of a forward model, with `batch_norm_modes`, `running_statistics`,
  `separate_statistics` and `body_statistics`
- `training_graph`: all of these steps
"""
