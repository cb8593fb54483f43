"""ResNet-20 (He et al. 2015, section 4.2) for scikit-learn's 8x8 handwritten digits.

The network has a 3x3 stem, three stages of three residual blocks with two 3x3 convolutions each, a global average
pool and a classifier. A batch norm follows every convolution. The paper's widths 16, 32 and 64 are halved because
the images have only 8x8 pixels. The shortcut of a block that changes the shape is a strided 1x1 convolution with a
batch norm. In total there are 21 batch norms and about 69,000 parameters.

``python models/digits_resnet20.py -o models/digits_resnet20.onnx`` writes the network.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if not __package__:  # run as a script: only this folder is on sys.path, but not its parent
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # at the end: an installed bngrad comes first

from models import training
from models.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnx

WIDTHS = (8, 16, 32)
BLOCKS = 3
CLASSES = 10
SIDE = 8


def build(seed: int = 0) -> onnx.ModelProto:
    """Returns the forward pass for training; equal seeds give equal bytes.

    The inputs are ``images`` float [N, 1, 8, 8], ``labels`` int64 [N] and the parameters. The outputs are
    ``loss``, ``logits`` and the new running statistics of every batch norm.
    """
    net = _Network(seed)
    x = net.relu(net.conv_bn(net.images, "stem", (1, WIDTHS[0]), kernel=3), "stem.relu")
    c_in = WIDTHS[0]
    for stage, c_out in enumerate(WIDTHS, start=1):
        for block in range(1, BLOCKS + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = net.residual_block(x, f"stage{stage}.block{block}", (c_in, c_out), stride)
            c_in = c_out
    training.add_loss(net.graph, net.classifier(x, c_in), CLASSES)
    return training.finish(ir.Model(net.graph, ir_version=training.IR_VERSION, producer_name="bngrad"))


def digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Returns the images [1797, 1, 8, 8], normalized to mean 0 and variance 1, and their labels [1797]."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - scikit-learn is optional

    data = load_digits()
    pixels = data.images.reshape(-1, 1, SIDE, SIDE)
    images = (pixels - pixels.mean()) / pixels.std()
    return images.astype(np.float32), data.target.astype(np.int64)


class _Network:
    """A graph under construction; each method appends nodes and returns the output of the last one."""

    def __init__(self, seed: int) -> None:
        shape = ir.Shape([training.BATCH, 1, SIDE, SIDE])
        self.images = ir.Value(name="images", type=training.FLOAT, shape=shape)
        self.graph = ir.Graph(
            [self.images], [], nodes=[], name="digits_resnet20", opset_imports={"": training.OPSET}
        )
        self._values = Parameters(seed)

    def conv_bn(self, x: ir.Value, name: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> ir.Value:
        c_in, c_out = channels
        weight = self._parameter(f"{name}.weight", self._values.weight, [c_out, c_in, kernel, kernel])
        geometry = {
            "kernel_shape": [kernel] * 2,
            "pads": [kernel // 2] * 4,
            "strides": [stride] * 2,
        }
        y = self._node("Conv", [x, weight], f"{name}.conv", geometry)

        statistics = [
            self._parameter(f"{name}.bn.scale", self._values.around_one, [c_out]),
            self._parameter(f"{name}.bn.bias", self._values.around_zero, [c_out]),
            self._parameter(f"{name}.bn.running_mean", self._values.around_zero, [c_out]),
            self._parameter(f"{name}.bn.running_var", self._values.variance, [c_out]),
        ]
        z = self._node("BatchNormalization", [y, *statistics], f"{name}.bn", {"training_mode": 1})
        training.add_running_outputs(self.graph, z)
        return z

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        return self._node("Relu", [x], name)

    def residual_block(self, x: ir.Value, name: str, channels: tuple[int, int], stride: int) -> ir.Value:
        c_in, c_out = channels
        y = self.relu(self.conv_bn(x, f"{name}.1", channels, 3, stride), f"{name}.1.relu")
        y = self.conv_bn(y, f"{name}.2", (c_out, c_out), 3)
        if (c_in, stride) != (c_out, 1):
            x = self.conv_bn(x, f"{name}.shortcut", channels, 1, stride)
        return self.relu(self._node("Add", [y, x], f"{name}.add"), f"{name}.relu")

    def classifier(self, x: ir.Value, features: int) -> ir.Value:
        x = self._node("GlobalAveragePool", [x], "pool")
        x = self._node("Flatten", [x], "flatten", {"axis": 1})
        weight = self._parameter("classifier.weight", self._values.weight, [CLASSES, features])
        bias = self._parameter("classifier.bias", self._values.around_zero, [CLASSES])
        return self._node("Gemm", [x, weight, bias], "classifier", {"transB": 1})

    def _parameter(self, name: str, draw: training.Draw, shape: Sequence[int]) -> ir.Value:
        parameter = ir.Value(name=name)
        training.bind_parameter(self.graph, parameter, draw(name, shape))
        return parameter

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        name: str,
        attributes: Mapping[str, int | list[int]] | None = None,
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, name=name)
        node.outputs[0].name = name
        self.graph.append(node)
        return node.outputs[0]


if __name__ == "__main__":
    parser = training.command_line(__doc__)
    arguments = parser.parse_args()
    training.save(build(arguments.seed), arguments.output)
