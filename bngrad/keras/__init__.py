"""From a Keras 3 model to a training step, and back. It needs the extra ``bngrad[keras]``.

`training_step` exports a model with its loss, and builds the training step; a `bngrad.Trainer` runs it.
`load_into` writes the trained weights and moving statistics into the model. `export` and `differentiate` build the
forward model and the training graph. Weights have the names of Keras: `variable.path`.

The model has to run on the TensorFlow backend; `load_into` takes a model on any.
"""

from __future__ import annotations

from bngrad.keras.load import load_into
from bngrad.keras.train import differentiate, export, training_step

__all__ = ["differentiate", "export", "load_into", "training_step"]
