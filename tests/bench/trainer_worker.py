"""Runs one training step at a time in one of several ways, for `bench_trainer.py`; see `step_worker.serve`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import bngrad
from models import digits_resnet20
from step_worker import serve

RATE, MOMENTUM = np.float32(1e-4), np.float32(0.9)
TINY = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,4] x, float[N,2] t) => (float loss) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
    y = MatMul (x, w)
    d = Sub (y, t)
    q = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (q)
}"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["trainer", "bare", "loop", "numpy"])
    parser.add_argument("--layout", choices=["named", "flat"], default="named")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", help="images and labels that N is the size of; by default the digits ResNet-20")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    model, data = random_images(options.model, options.batch) if options.model else digits()
    serve(make(options.way, options.layout, model, data, options.threads))


def make(way, layout, model, data, threads):
    """A step in one of the ways."""
    if way == "numpy":
        return gradients_and_numpy(model, data, threads)
    step = bngrad.training_step(model, optimizer=bngrad.SGD(momentum=float(MOMENTUM)), layout=layout)
    return {"trainer": trained, "bare": bound, "loop": loop}[way](step, data, threads)


def tiny():
    rng = np.random.default_rng(0)
    shapes = {"x": (8, 4), "t": (8, 2)}
    return onnx.parser.parse_model(TINY), {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def digits():
    images, labels = digits_resnet20.digits()
    return onnx.load(Path(digits_resnet20.__file__).with_name("digits_resnet20.onnx")), {
        "images": images[:64],
        "labels": labels[:64],
    }


def random_images(path, batch):
    """A network of `models/light.py`, and a batch for it."""
    model = onnx.load(path)
    parameters = {tensor.name for tensor in model.graph.initializer}
    images, labels = (value for value in model.graph.input if value.name not in parameters)
    rng = np.random.default_rng(0)
    shape = [batch, *(size.dim_value for size in images.type.tensor_type.shape.dim[1:])]
    return model, {
        images.name: rng.standard_normal(shape).astype(np.float32),
        labels.name: rng.integers(0, 1000, batch),
    }


def trained(step, data, threads):
    """`bngrad.Trainer`."""
    return stepping(bngrad.Trainer(step, learning_rate=float(RATE), threads=threads), data)


def bound(step, data, threads):
    """The session of a Trainer."""
    return bare(bngrad.Trainer(step, learning_rate=float(RATE), threads=threads), data)


def stepping(trainer, data):
    return lambda: trainer.step(**data)


def bare(trainer, data):
    """The trainer's session with everything bound, on its two sets of buffers in turn."""
    for _ in range(2):
        trainer.step(**data)
    session = trainer._session

    def call() -> None:
        session._session.run_with_iobinding(session.bindings[trainer._calls % 2])
        trainer._calls += 1

    return call


def loop(step, data, threads):
    """A loop that feeds and fetches arrays."""
    info, session = step.info, bngrad.session(step.model, threads=threads)
    if info.flat:
        state, new = {info.flat.input: info.flatten(step.state)}, [info.flat.output]
    else:
        state, new = dict(step.state), [str(entry.new) for entry in info.state.values()]
    rate = {info.learning_rate: np.array(RATE)}

    def call() -> None:
        _, *values = session.run([info.loss, *new], {**data, **rate, **state})
        state.update(zip(state, values, strict=True))

    return call


def gradients_and_numpy(model, data, threads):
    """The training graph of `differentiate`, and the update in NumPy, in place."""
    graph = bngrad.read_training_graph(bngrad.differentiate(model))
    session = bngrad.session(graph.model, threads=threads)
    defaults = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.model.graph.initializer}
    state = {name: np.array(defaults[name]) for name in (*graph.gradients, *graph.running_statistics)}
    momentum = {name: np.zeros_like(state[name]) for name in graph.gradients}
    fetches = [graph.loss, *graph.gradients.values(), *graph.running_statistics.values()]

    def call() -> None:
        results = dict(zip(fetches, session.run(fetches, data | state), strict=True))
        for name, gradient in graph.gradients.items():
            momentum[name] *= MOMENTUM
            momentum[name] += results[gradient]
            state[name] -= RATE * momentum[name]
        state.update({name: results[new] for name, new in graph.running_statistics.items()})

    return call


if __name__ == "__main__":
    main()
