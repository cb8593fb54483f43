"""Training steps: forward models differentiated by bngrad, on stock ONNX Runtime."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import onnxruntime

import bngrad

SAFETY = 16
"""The ratio of the tolerance to the effect of changing every input in its last bit."""

SEEDS = 4


class Step:
    """A training step of a model.

    Args:
        model: The forward model.
        frozen: Whether its batch norms use their running statistics.
        fuse: Whether to fuse the gradients of a ReLU and a batch norm.
        route: ``stock`` differentiates for stock ONNX Runtime; ``dialect`` for ORT's dialect, and then rewrites.
        implementation: The implementation of the ops.
        threads: The number of threads per op.
        transposed: Whether to swap the spatial dimensions.
    """

    def __init__(
        self,
        model,
        *,
        frozen=False,
        fuse=True,
        route="stock",
        implementation="native",
        threads=1,
        transposed=False,
    ):
        forward = model.proto(transposed=transposed)
        options = {"loss": "loss", "wrt": list(model.wrt), "frozen": ["bn*"] if frozen else []}
        if route == "stock":
            self.proto = bngrad.differentiate(forward, fuse=fuse, **options)
        else:
            self.proto = bngrad.rewrite(bngrad.differentiate(forward, target="ort", **options))
        self.names = [value.name for value in self.proto.graph.output]
        self._session = _session(self.proto, implementation, threads)
        self._inputs = {value.name for value in self._session.get_inputs()}

    def __call__(self, feeds):
        inputs = {name: array for name, array in feeds.items() if name in self._inputs}
        return dict(zip(self.names, self._session.run(self.names, inputs), strict=True))


def _session(proto, implementation, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    bngrad.register(options, implementation)
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Run:
    """The outputs of a model in one mode, and the effect of rounding on them."""

    def __init__(self, model, *, frozen):
        self.model, self.frozen, self.feeds = model, frozen, model.feeds()
        self._steps = {}

    def step(self, **options):
        """Returns the step with the given options, made on first use."""
        key = tuple(sorted(options.items()))
        if key not in self._steps:
            self._steps[key] = Step(self.model, **{"frozen": self.frozen, **options})
        return self._steps[key]

    @cached_property
    def outputs(self):
        return self.step()(self.feeds)

    @cached_property
    def noise(self):
        """The difference that rounding may cause in any element of an output, by name."""
        worst = dict.fromkeys(self.outputs, 0.0)
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            moved = {name: _moved(array, rng) for name, array in self.feeds.items()}
            for name, value in self.step()(moved).items():
                worst[name] = max(worst[name], float(np.max(np.abs(value - self.outputs[name]))))
        largest = {name: float(np.max(np.abs(value))) for name, value in self.outputs.items()}
        precision = np.finfo(self.feeds["gain"].dtype).eps
        return {name: SAFETY * (worst[name] + precision * largest[name]) for name in worst}


def _moved(array, rng):
    if array.dtype.kind != "f" or array.ndim == 0:
        return array
    return np.nextafter(array, np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype))
