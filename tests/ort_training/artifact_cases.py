"""Models and arguments of `generate_artifacts`, for this package and for `onnxruntime.training`.

This module is imported in the environment of 1.19.2, too, which has neither bngrad nor pytest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CALLS = 3
"""The number of calls of a training model: two into the same buffers, then one after `lazy_reset_grad`."""


@dataclass(frozen=True)
class Case:
    """A model, the arguments of `generate_artifacts`, and the data of its training.

    Its weights are the names in ``requires_grad`` and those in ``values``.
    """

    graph: str
    """In ONNX's text format, without initializers."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each initializer. One with ``var`` in its name is positive."""
    data: Mapping[str, tuple[Any, ...]]
    """The shape of each input of the training model, or for labels the number of classes and the shape."""
    loss: Callable[[Any, Any], Any] = lambda artifacts, _: artifacts.LossType.CrossEntropyLoss
    """Makes the loss, of the modules `artifacts` and `onnxblock`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments."""
    runs: bool = True
    """True if the Module of 1.19.2 can train it."""
    evaluates: bool = True
    """True if that can evaluate it."""

    def model(self) -> onnx.ModelProto:
        """The forward model."""
        random = np.random.default_rng(5)
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {self.graph}')
        for name, shape in self.shapes.items():
            value = random.normal(0, 0.5, shape)
            value = np.abs(value) + 0.5 if "var" in name else value
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
        return model

    def batches(self) -> Iterator[list[np.ndarray]]:
        """The inputs of each call."""
        random = np.random.default_rng(3)
        for _ in range(CALLS):
            yield [
                random.integers(0, what[0], what[1])
                if name.startswith("labels")
                else random.normal(0.3, 1, what).astype(np.float32)
                for name, what in self.data.items()
            ]

    def generate(self, artifacts: Any, onnxblock: Any, folder: str, **options: Any) -> None:
        """Writes the artifacts."""
        options |= {"loss": self.loss(artifacts, onnxblock), "artifact_directory": folder, **self.options}
        artifacts.generate_artifacts(self.model(), **options)


def block(kind: str, **arguments: Any) -> Callable[[Any, Any], Any]:
    """Makes a block of `onnxblock.loss`."""
    return lambda _, onnxblock: getattr(onnxblock.loss, kind)(**arguments)


def loss_type(name: str) -> Callable[[Any, Any], Any]:
    return lambda artifacts, _: artifacts.LossType[name]


def weighted(_, onnxblock):
    """0.7 sum(clip(y, -1, 1)^3) + 0.3 mean(|code / 2|), of shape [1]."""

    class Weighted(onnxblock.Block):
        def __init__(self):  # like the examples of onnxruntime.training, without super().__init__()
            self.clip = onnxblock.blocks.Clip(-1.0, 1.0)
            self.cube = onnxblock.blocks.Pow(3.0)
            self.sum = onnxblock.blocks.ReduceSum(keepdims=False)
            self.mean = onnxblock.blocks.ReduceMean(keepdims=False)
            self.weights = [onnxblock.blocks.Constant(0.7), onnxblock.blocks.Constant(0.3)]
            self.two = onnxblock.blocks.Constant(2.0)

        def build(self, y, code):
            blocks = onnxblock.blocks
            first = blocks.Mul()(self.weights[0](), self.sum(self.cube(self.clip(y))))
            second = blocks.Mul()(self.weights[1](), self.mean(blocks.Abs()(blocks.Div()(code, self.two()))))
            return blocks.Add()(first, second)

    return Weighted()


def two_losses(_, onnxblock):
    """MSE and BCE of two outputs of different rank, each with a target of its own."""

    class TwoLosses(onnxblock.Block):
        def __init__(self):
            super().__init__()
            self.first = onnxblock.loss.MSELoss()
            self.second = onnxblock.loss.BCEWithLogitsLoss()
            self.add = onnxblock.blocks.Add()

        def build(self, y, code):
            return self.add(self.first(y, target_name="target1"), self.second(code, target_name="target2"))

    return TwoLosses()


MLP = """mlp (float[N, 6] x) => (float[N, 3] y) {
    hidden = Gemm<transB = 1>(x, w1, b1)
    active = Relu(hidden)
    y = Gemm<transB = 1>(active, w2, b2)
}"""
MLP_SHAPES = {"w1": (5, 6), "b1": (5,), "w2": (3, 5), "b2": (3,)}
MLP_WEIGHTS = {"requires_grad": [*MLP_SHAPES]}

CODE = """autoencoder (float[N, 6] x) => (float[N, 6] y, float[N, 2, 2] code) {
    encoded = MatMul(x, encode)
    flat = Tanh(encoded)
    shape = Constant<value_ints = [0, 2, 2]>()
    code = Reshape(flat, shape)
    decoded = MatMul(flat, decode)
    y = Add(decoded, bias)
}"""
CODE_SHAPES = {"encode": (6, 4), "decode": (4, 6), "bias": (6,)}

CNN = """cnn (float[N, 2, 5, 5] x) => (float[N, 3] y) {
    c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, conv)
    b1 = BatchNormalization<momentum = 0.7>(c, scale1, bias1, mean1, var1)
    r = Relu(b1)
    b2 = BatchNormalization<momentum = 0.6, epsilon = 0.01>(r, scale2, bias2, mean2, var2)
    p = GlobalAveragePool(b2)
    f = Flatten(p)
    y = MatMul(f, fc)
}"""
CNN_SHAPES = {
    "mean1": (4,), "conv": (4, 2, 3, 3), "scale1": (4,), "bias1": (4,), "var1": (4,),
    "scale2": (4,), "bias2": (4,), "mean2": (4,), "var2": (4,), "fc": (4, 3),
}  # fmt: skip
CNN_WEIGHTS = ["conv", "scale1", "bias1", "scale2", "bias2", "fc"]
CNN_STATISTICS = ["mean1", "var1", "mean2", "var2"]
CNN_OPTIONS = {"requires_grad": CNN_WEIGHTS, "frozen_params": CNN_STATISTICS}
TRAINING_CNN = CNN.replace(
    "b1 = BatchNormalization<", "b1, new_mean1, new_var1 = BatchNormalization<training_mode = 1, "
).replace("b2 = BatchNormalization<", "b2, new_mean2, new_var2 = BatchNormalization<training_mode = 1, ")
IMAGES = {"x": (4, 2, 5, 5), "labels": (3, (4,))}

SHARED_STATISTICS = """shared (float[N, 4] x) => (float[N, 3] y) {
    b1 = BatchNormalization<momentum = 0.7>(x, scale1, bias1, mean, var)
    h = MatMul(b1, square)
    b2 = BatchNormalization<momentum = 0.6>(h, scale2, bias2, mean, var)
    y = MatMul(b2, fc)
}"""
SHARED_SHAPES = {
    "scale1": (4,), "bias1": (4,), "mean": (4,), "var": (4,), "square": (4, 4), "scale2": (4,), "bias2": (4,),
    "fc": (4, 3),
}  # fmt: skip

OWN_LOSS = """own (float[N, 6] x) => (float loss, float[N, 3] y) {
    y = MatMul(x, w)
    squares = Mul(y, y)
    loss = ReduceMean<keepdims = 0>(squares)
}"""

LSTM = """lstm (float[3, 4, 6] x) => (float[4, 3] y) {
    h, last_h, last_c = LSTM<hidden_size = 5>(x, w, r, b, , h0, c0)
    axis = Constant<value_ints = [1]>()
    steps = Squeeze(h, axis)
    mean = ReduceMean<axes = [0], keepdims = 0>(steps)
    y = MatMul(mean, fc)
}"""
LSTM_SHAPES = {"w": (1, 20, 6), "r": (1, 20, 5), "b": (1, 40), "h0": (1, 4, 5), "c0": (1, 4, 5), "fc": (5, 3)}
GRU = """gru (float[3, 4, 6] x) => (float[4, 3] y) {
    h, last_h = GRU<hidden_size = 5, linear_before_reset = 1>(x, w, r, b, , h0)
    axis = Constant<value_ints = [1]>()
    steps = Squeeze(h, axis)
    mean = ReduceMean<axes = [0], keepdims = 0>(steps)
    y = MatMul(mean, fc)
}"""
GRU_SHAPES = {"w": (1, 15, 6), "r": (1, 15, 5), "b": (1, 30), "h0": (1, 4, 5), "fc": (5, 3)}
SEQUENCE = {"x": (3, 4, 6), "labels": (3, (4,))}

MLP_DATA = {"x": (8, 6), "target": (8, 3)}

CASES = {
    "cross_entropy": Case(MLP, MLP_SHAPES, {"x": (8, 6), "labels": (3, (8,))}, options=MLP_WEIGHTS),
    "mse": Case(MLP, MLP_SHAPES, MLP_DATA, loss_type("MSELoss"), MLP_WEIGHTS),
    "l1": Case(MLP, MLP_SHAPES, MLP_DATA, loss_type("L1Loss"), MLP_WEIGHTS),
    "bce": Case(MLP, MLP_SHAPES, MLP_DATA, loss_type("BCEWithLogitsLoss"), MLP_WEIGHTS),
    "bce with weights": Case(
        MLP,
        MLP_SHAPES,
        MLP_DATA,
        block(
            "BCEWithLogitsLoss",
            weight=np.array([0.5, 1, 2], np.float32),
            pos_weight=np.array([3, 1, 0.25], np.float32),
        ),
        MLP_WEIGHTS,
    ),
    "sums": Case(MLP, MLP_SHAPES, MLP_DATA, block("MSELoss", reduction="sum"), MLP_WEIGHTS),
    "ignored label": Case(
        MLP,
        MLP_SHAPES,
        {"x": (8, 6), "labels": (3, (8,))},
        block("CrossEntropyLoss", ignore_index=1, reduction="sum"),
        MLP_WEIGHTS,
    ),
    "frozen weights": Case(
        MLP,
        MLP_SHAPES,
        {"x": (8, 6), "labels": (3, (8,))},
        options={"requires_grad": ["w2", "b2"], "frozen_params": ["b1", "w1"]},
    ),
    "constant weights": Case(MLP, MLP_SHAPES, MLP_DATA, loss_type("MSELoss"), {"requires_grad": ["b2", "w1"]}),
    "weighted": Case(CODE, CODE_SHAPES, {"x": (8, 6)}, weighted, {"requires_grad": [*CODE_SHAPES]}),
    "two losses": Case(
        CODE,
        CODE_SHAPES,
        {"x": (8, 6), "target1": (8, 6), "target2": (8, 2, 2)},
        two_losses,
        {"requires_grad": [*CODE_SHAPES]},
    ),
    "loss inputs": Case(
        CODE,
        CODE_SHAPES,
        {"x": (8, 6)},
        loss_type("MSELoss"),
        {"requires_grad": [*CODE_SHAPES], "loss_input_names": ["y", "x"], "additional_output_names": ["code"]},
    ),
    "own loss": Case(OWN_LOSS, {"w": (6, 3)}, {"x": (8, 6)}, lambda *_: None, {"requires_grad": ["w"]}),
    "batch norm": Case(
        CNN, CNN_SHAPES, IMAGES, options=CNN_OPTIONS | {"additional_output_names": ["y"], "prefix": "p_"}
    ),
    "batch norm in training form": Case(TRAINING_CNN, CNN_SHAPES, IMAGES, options=CNN_OPTIONS, evaluates=False),
    "constant statistics": Case(
        CNN, CNN_SHAPES, IMAGES, options={"requires_grad": CNN_WEIGHTS, "frozen_params": ["mean1", "var1"]}
    ),
    "shared statistics": Case(
        SHARED_STATISTICS,
        SHARED_SHAPES,
        {"x": (8, 4), "labels": (3, (8,))},
        options={
            "requires_grad": ["scale1", "bias1", "square", "scale2", "bias2", "fc"],
            "frozen_params": ["mean", "var"],
        },
    ),
    "lstm": Case(LSTM, LSTM_SHAPES, SEQUENCE, options={"requires_grad": ["w", "r", "b", "fc"]}),
    "gru": Case(GRU, GRU_SHAPES, SEQUENCE, options={"requires_grad": ["w", "r", "b", "fc"]}),
    "an input": Case(MLP, MLP_SHAPES, MLP_DATA, loss_type("MSELoss"), {"requires_grad": ["w1", "x"]}, runs=False),
    "no gradient": Case(MLP, MLP_SHAPES, MLP_DATA, loss_type("MSELoss"), runs=False),
    "frozen only": Case(CNN, CNN_SHAPES, IMAGES, options={"frozen_params": ["conv", "mean1"]}, runs=False),
}
