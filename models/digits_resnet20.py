"""ResNet-20 (He et al. 2015, section 4.2) for scikit-learn's 8x8 handwritten digits.

A 3x3 stem, three stages of three residual blocks of two 3x3 convolutions, a global average pool and a
classifier; every convolution is followed by a batch norm. The paper's widths 16/32/64 are halved (8x8 images of
one channel ask for less), and a block that changes the shape has a 1x1 convolution and a batch norm on its
shortcut: 21 batch norms, about 68,000 parameters.

``python models/digits_resnet20.py -o models/digits_resnet20.onnx`` writes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import onnx_ir.tape

if not __package__:  # run as a file, which puts this folder on the path and not the one above
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import training
from models.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import onnx

WIDTHS = (8, 16, 32)
BLOCKS = 3
CLASSES = 10


class Network:
    """A graph under construction; each method appends one layer and returns its output."""

    def __init__(self, seed: int) -> None:
        self.images = ir.Value(
            name="images", type=training.FLOAT, shape=ir.Shape([training.BATCH, 1, 8, 8])
        )
        self.graph = ir.Graph(
            [self.images], [], nodes=[], name="digits_resnet20", opset_imports={"": training.OPSET}
        )
        self._parameters = Parameters(seed)
        self._tape = ir.tape.Tape(self.graph)

    def conv_bn(self, x: ir.Value, name: str, channels: tuple[int, int], kernel: int, stride: int) -> ir.Value:
        """Convolution without a bias, then batch norm; channels are (in, out)."""
        c_in, c_out = channels
        weight = self._add(f"{name}.weight", Parameters.weight, [c_out, c_in, kernel, kernel])
        y = self._tape.op(
            "Conv",
            [x, weight],
            {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2},
            name=name,
        )
        bn = f"{name}.bn"
        statistics = [
            self._add(f"{bn}.scale", Parameters.around_one, [c_out]),
            self._add(f"{bn}.bias", Parameters.around_zero, [c_out]),
            self._add(f"{bn}.running_mean", Parameters.around_zero, [c_out]),
            self._add(f"{bn}.running_var", Parameters.variance, [c_out]),
        ]
        z = self._tape.op("BatchNormalization", [y, *statistics], {"training_mode": 1}, name=bn)
        node = z.producer()
        assert node is not None
        training.add_running_outputs(self.graph, node)
        return z

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        """Rectifier."""
        return self._tape.op("Relu", [x], name=f"{name}.relu")

    def block(self, x: ir.Value, name: str, channels: tuple[int, int], stride: int) -> ir.Value:
        """Basic residual block; the shortcut is projected when the shape changes."""
        c_in, c_out = channels
        y = self.relu(self.conv_bn(x, f"{name}.conv1", channels, 3, stride), f"{name}.conv1")
        y = self.conv_bn(y, f"{name}.conv2", (c_out, c_out), 3, 1)
        shortcut = x if (c_in, stride) == (c_out, 1) else self.conv_bn(x, f"{name}.shortcut", channels, 1, stride)
        return self.relu(self._tape.op("Add", [y, shortcut], name=f"{name}.add"), name)

    def classifier(self, x: ir.Value, features: int) -> ir.Value:
        """Global average pool and a fully connected layer."""
        x = self._tape.op("GlobalAveragePool", [x], name="pool")
        x = self._tape.op("Flatten", [x], {"axis": 1}, name="flatten")
        weight = self._add("classifier.weight", Parameters.weight, [CLASSES, features])
        bias = self._add("classifier.bias", Parameters.around_zero, [CLASSES])
        return self._tape.op("Gemm", [x, weight, bias], {"transB": 1}, name="classifier")
