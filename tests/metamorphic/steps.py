"""Training steps: a forward model differentiated and rewritten by this package, on stock ONNX Runtime."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import onnxruntime

import bngrad

SAFETY = 16
"""How much more than moving the inputs by their last bit may rounding inside the model make."""

SEEDS = 4


class Step:
    """A training step of a model.

    Args:
        model: The forward model.
        frozen: Whether its batch norms use their running statistics.
        fuse: Whether a ReLU's gradient becomes part of the batch norm's.
        route: ``stock``: differentiated for stock ONNX Runtime. ``dialect``: into ORT's dialect, and rewritten.
        provider: Which implementation of the ops.
        threads: How many threads work on one op.
        turned: Rows for columns.
    """

    def __init__(
        self, model, *, frozen=False, fuse=True, route="stock", provider="native", threads=1, turned=False
    ):
        forward = model.proto(turned=turned)
        options = {"loss": "loss", "wrt": list(model.wrt), "frozen": ["bn*"] if frozen else []}
        if route == "stock":
            self.proto = bngrad.differentiate(forward, fuse=fuse, **options)
        else:
            self.proto = bngrad.rewrite(bngrad.differentiate(forward, target="ort", **options))
        self.names = [value.name for value in self.proto.graph.output]
        self._session = _session(self.proto, provider, threads)
        self._inputs = {value.name for value in self._session.get_inputs()}

    def __call__(self, feeds):
        given = {name: array for name, array in feeds.items() if name in self._inputs}
        return dict(zip(self.names, self._session.run(self.names, given), strict=True))


def _session(proto, provider, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    bngrad.register(options, provider)
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Run:
    """What a model answers in a mode, and how far its outputs move when its inputs do by their last bit."""

    def __init__(self, model, *, frozen):
        self.model, self.frozen, self.feeds = model, frozen, model.feeds()
        self._steps = {}

    def step(self, **options):
        """The step, or another one with some options; made once."""
        key = tuple(sorted(options.items()))
        if key not in self._steps:
            self._steps[key] = Step(self.model, **{"frozen": self.frozen, **options})
        return self._steps[key]

    @cached_property
    def outputs(self):
        return self.step()(self.feeds)

    @cached_property
    def noise(self):
        """By name of an output: the difference that rounding may make, for each of its elements."""
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
