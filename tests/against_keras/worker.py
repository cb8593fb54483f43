"""Trains the models of `keras_networks.py` by Keras and by bngrad.keras: `worker.py RESULTS`, an empty .json file.

RESULTS gets, for each model, what `compare` returns; for each refusal, the error; and what dropouts do.
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import onnx

import bngrad
import bngrad.keras
import gradient_sources
import keras_networks

RATE = 0.05
STEPS = 3
rng = np.random.default_rng(11)
X = rng.standard_normal((16, 8, 8, 1)).astype(np.float32)
Y = rng.integers(0, 10, 16)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compare(name):
    """Losses, and the largest error of each variable relative to max(1, |variable|), after `STEPS` of SGD."""
    keras.utils.set_random_seed(3)
    entry = keras_networks.NETWORKS[name]()
    model, loss, x, y = entry if isinstance(entry, tuple) else (entry, CROSS_ENTROPY, X, Y)
    before = {variable.path: variable.numpy() for variable in model.variables}
    step = bngrad.keras.training_step(model, loss, (x, y))
    data = feeds(x, "x") | feeds(y, "y")
    unchanged = all(np.array_equal(before[v.path], v.numpy()) for v in model.variables)
    trainer = bngrad.Trainer(step, learning_rate=RATE)
    if loss is not None:
        model.compile(optimizer=keras.optimizers.SGD(RATE), loss=loss)
    losses = [(trainer.step(**data), float(np.ravel(model.train_on_batch(x, y))[0])) for _ in range(STEPS)]
    state = {path: trainer.state_dict()[path] for path in trainer.info.names("weight", "running_statistic")}
    after = {variable.path: variable.numpy() for variable in model.variables}
    errors = {
        path: float(np.abs(a - after[path]).max() / max(1, np.abs(after[path]).max())) for path, a in state.items()
    }
    moved = [path for path, value in after.items() if not np.array_equal(before[path], value)]
    bngrad.keras.load_into(model, trainer)
    inference = bngrad.session(step.finalize(trainer.state_dict()))
    outputs = inference.run(None, {value.name: data[value.name] for value in inference.get_inputs()})
    predicted = keras.tree.flatten(model.predict(x, verbose=0))
    forward = bngrad.keras.export(model, loss, (x, y), check=False)
    return {
        "unchanged": unchanged,
        "losses": losses,
        "errors": errors,
        "moved": moved,
        "inference": max(float(np.abs(a - b).max()) for a, b in zip(outputs, predicted, strict=True)),
        "batch_norms": [
            sum(attribute.i for attribute in node.attribute if attribute.name == "training_mode")
            for node in forward.graph.node
            if node.op_type == "BatchNormalization"
        ],
        "inputs": [value.name for value in forward.graph.input],
        "outputs": [value.name for value in forward.graph.output],
    }


def feeds(structure, prefix):
    if isinstance(structure, dict):
        return {f"{prefix}_{key}": value for key, value in structure.items()}
    if isinstance(structure, list):
        return {f"{prefix}_{key}": value for key, value in enumerate(structure)}
    return {prefix: structure}


def refusal(name):
    try:
        keras_networks.REFUSED[name](X, Y)
    except bngrad.BngradError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def dropped(layer, shape):
    """The result of a dropout of ones in two steps, where no gradient is needed, and in inference."""
    inputs = keras.Input(shape)
    x = layer(keras.layers.Rescaling(1.0)(inputs))
    model = keras.Model(inputs, [x, keras.layers.Dense(1)(x)])
    ones = np.ones((64, *shape), np.float32)
    step = bngrad.keras.training_step(
        model, lambda _, y_pred: keras.ops.mean(y_pred[1]), (ones, ones), outputs=["y_pred_0"]
    )
    trainer = bngrad.Trainer(step, learning_rate=0.0)
    data = dict.fromkeys(trainer.info.data, ones)
    losses = [trainer.step(**data) for _ in range(2)]
    left = trainer.outputs["y_pred_0"]
    planes = left.reshape(64, -1, shape[-1])
    return {
        "zeros": float((left == 0).mean()),
        "mean": float(left.mean()),
        "planes": bool((planes == planes[:, :1]).all()),
        "differs": losses[0] != losses[1],
        "inference": float(np.abs(trainer.evaluate(**data)["y_pred_0"] - 1).max()),
    }


def main(path):
    onnx.checker.check_model(bngrad.keras.export(keras_networks.NETWORKS["cnn"](), CROSS_ENTROPY, (X, Y)))
    results = {
        "networks": {name: compare(name) for name in keras_networks.NETWORKS},
        "refused": {name: refusal(name) for name in keras_networks.REFUSED},
        "sources": gradient_sources.found(),
        "dropouts": {
            "Dropout": dropped(keras.layers.Dropout(0.25), (32, 32, 4)),
            "SpatialDropout2D": dropped(keras.layers.SpatialDropout2D(0.25), (4, 4, 64)),
            "noise_shape": dropped(keras.layers.Dropout(0.25, noise_shape=(None, 1, 64)), (16, 64)),
        },
    }
    pathlib.Path(path).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
