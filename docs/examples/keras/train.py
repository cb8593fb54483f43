"""Trains a Keras model on the digits of scikit-learn with ONNX Runtime, and goes back to Keras.

Needs bngrad[keras] and scikit-learn. Run: KERAS_BACKEND=tensorflow python train.py
"""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import bngrad
import bngrad.keras

keras.utils.set_random_seed(0)
digits = load_digits()
x = (digits.images[..., None] / 16).astype(np.float32)
y = digits.target.astype(np.int64)
train, test = slice(0, 1440), slice(1440, None)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.SeparableConv2D(32, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

step = bngrad.keras.training_step(model, loss, (x[:32], y[:32]), optimizer="adam")
trainer = bngrad.Trainer(step, learning_rate=0.01)
rng = np.random.default_rng(0)
for epoch in range(8):
    batches = rng.permutation(1440).reshape(-1, 32)
    losses = [trainer.step(x=x[batch], y=y[batch]) for batch in batches]
    print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")  # noqa: T201

bngrad.keras.load_into(model, trainer)
model.compile(loss=loss, metrics=["accuracy"])
test_loss, accuracy = model.evaluate(x[test], y[test], batch_size=357, verbose=0)
ours = float(trainer.evaluate(x=x[test], y=y[test])["loss"])
print(f"accuracy {accuracy:.3f}, test loss {test_loss:.6f}, by ONNX Runtime {ours:.6f}")  # noqa: T201
