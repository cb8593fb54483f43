"""The forms that ConvGrad is lowered to, on stock ONNX Runtime, beside the training build's own ConvGrad.

    python tests/bench/bench_conv_grad.py [OPTION ...] [NETWORK | C,H,M,K,STRIDE,GROUP ...]

For each distinct convolution of the networks (or one of C channels, H x H elements, M outputs and a K x K kernel,
with padding of K / 2): the time of every form of dX and of dW, where * is the one that the lowering takes, and
the times of ConvGrad for dX, dW and both. The batch is symbolic in the models. Sessions run one at a time, in
turns. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, shape_inference

from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.oracle import ensure
from bngrad.passes.lower import LOWERINGS, data_gradient, depthwise, weight_gradient
from bngrad.passes.lower.convolution_operands import ConvolutionOperands
from bngrad.passes.lower.geometry import windows_of
from bngrad.passes.lower.lower_training import LowerTrainingPass
from models import light

if TYPE_CHECKING:
    from bngrad.passes.lower.site import Site

WORKER = Path(__file__).with_name("conv_worker.py")
DATA_FORMS = [data_gradient.conv, data_gradient.product, data_gradient.conv_transpose]
WEIGHT_FORMS = [
    *(weight_gradient.product_by_image, weight_gradient.product),
    *(weight_gradient.over_gradient, weight_gradient.over_data),
    *(depthwise.of_images, depthwise.of_rows, depthwise.of_kernel_elements),
]


class Convolution(NamedTuple):
    """The attributes and shapes of a Conv, for one image."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    group: int

    def __str__(self):
        (c, h, *_), (m, _, k, *_) = self.x, self.w
        group = f" g{self.group}" if self.group > 1 else ""
        return f"{c}x{h} -> {m}, {k}x{k} s{self.strides[0]}{group}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=list(light.BATCH_NORMS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each column in each round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Bench(options) as bench:
        print(f"{options.threads} threads, batch {options.batch}; ms, the least")
        for what in options.what:
            convolutions = of_network(what) if what in light.BATCH_NORMS else Counter([of_numbers(what)])
            totals = Counter()
            for convolution, number in convolutions.items():
                totals.update({name: number * ms for name, ms in bench.row(convolution, number).items()})
            lowered = totals["dX"] + totals["dW"]
            print(f"{what}: {lowered:.0f} ms, ConvGrad {totals['ConvGrad']:.0f} ms", flush=True)


def of_network(name: str) -> Counter[Convolution]:
    """The convolutions of a light network, and how many there are of each."""
    model = shape_inference.infer_shapes(light.prepare(name))
    values = [*model.graph.value_info, *model.graph.input, *model.graph.output]
    shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in values}
    shapes |= {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    convs = []
    for node in model.graph.node:
        if node.op_type == "Conv":
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            x, w, y = (tuple(shapes[name]) for name in (node.input[0], node.input[1], node.output[0]))
            strides, pads = attributes.get("strides", [1, 1]), attributes.get("pads", [0] * 4)
            convs.append(Convolution(x[1:], w, y[1:], tuple(strides), tuple(pads), attributes.get("group", 1)))
    return Counter(convs)


def of_numbers(text: str) -> Convolution:
    c, h, m, k, stride, group = map(int, text.split(","))
    out = (h + 2 * (k // 2) - k) // stride + 1
    return Convolution((c, h, h), (m, c // group, k, k), (m, out, out), (stride, stride), (k // 2,) * 4, group)


class Bench:
    """Two processes that time models: one with stock ONNX Runtime, one with the training build."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        pythons = {"stock": sys.executable, "training": str(ensure().python)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._workers = {name: subprocess.Popen([python, WORKER], **pipes) for name, python in pythons.items()}
        return self

    def __exit__(self, *_):
        for worker in self._workers.values():
            worker.stdin.close()
            worker.wait()
        self._folder.cleanup()

    def row(self, convolution: Convolution, number: int) -> dict[str, float]:
        """Prints the times of one convolution, and returns those of what the lowering takes and of ConvGrad."""
        columns, taken = {}, {}
        for output, forms, choose in (
            ("dX", DATA_FORMS, data_gradient.data_gradient),
            ("dW", WEIGHT_FORMS, weight_gradient.weight_gradient),
        ):
            chosen = lowered(convolution, output, choose)
            for form in forms:
                model = lowered(convolution, output, form) if applies(form, convolution) else None
                if model is not None:
                    name = f"{output} {form.__name__}"
                    columns[name] = ("stock", model)
                    if nodes(model) == nodes(chosen):
                        taken[output] = name
        columns |= {
            f"ConvGrad {what}": ("training", conv_grad(convolution, what)) for what in ("dX", "dW", "dX dW")
        }
        times = self._measure(convolution, columns)
        cells = [f"{name}{'*' * (name in taken.values())} {ms:.2f}" for name, ms in times.items()]
        print(f"{number:2} of {convolution!s:30} " + ", ".join(cells), flush=True)
        return {"dX": times[taken["dX"]], "dW": times[taken["dW"]], "ConvGrad": times["ConvGrad dX dW"]}

    def _measure(
        self, convolution: Convolution, columns: dict[str, tuple[str, onnx.ModelProto]]
    ) -> dict[str, float]:
        batch = self._options.batch
        shapes = {"dY": [batch, *convolution.y], "X": [batch, *convolution.x], "W": list(convolution.w)}
        times: dict[str, list[float]] = {name: [] for name in columns}
        for _ in range(self._options.rounds):
            for name, (where, model) in columns.items():
                path = Path(self._folder.name) / f"{name}.onnx"
                path.write_bytes(model.SerializeToString())
                job = {"model": str(path), "shapes": shapes}
                job |= {"threads": self._options.threads, "seconds": self._options.seconds}
                worker = self._workers[where]
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()
                times[name].append(float(worker.stdout.readline()))
        return {name: min(trials) for name, trials in times.items()}


def applies(form, convolution: Convolution) -> bool:
    """Tests whether a form is for a convolution; the lowering knows from its windows."""
    one_element, dense = all(k == 1 for k in convolution.w[2:]), all(s == 1 for s in convolution.strides)
    apart = convolution.w[1] == 1 < convolution.group
    return {
        "conv": dense,
        "conv_transpose": True,
        "over_data": not one_element,
        "over_gradient": not one_element and dense,
        "product": one_element and convolution.group == 1 and (dense or form is weight_gradient.product),
        "product_by_image": one_element,
        "of_images": apart and convolution.x[1] <= 10,
        "of_rows": apart and not one_element,
        "of_kernel_elements": apart and not one_element,
    }[form.__name__]


def lowered(convolution: Convolution, output: str, form) -> onnx.ModelProto:
    """A model of one form."""

    def rewrite(site: Site) -> list[ir.Value | None]:
        dY, x, w = site.node.inputs
        operands = ConvolutionOperands(
            site, windows_of(site, x, dY, convolution.w[2:]), x, dY, w, convolution.group
        )
        return [form(operands) if name == output else None for name in ("dX", "dW")]

    model = ir.from_proto(conv_grad(convolution, output))
    op = MICROSOFT, "ConvGrad"
    with patch.dict(LOWERINGS, {op: replace(LOWERINGS[op], rewrite=rewrite)}):
        return ir.to_proto(LowerTrainingPass()(model).model)


def nodes(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def conv_grad(convolution: Convolution, outputs: str) -> onnx.ModelProto:
    shapes = {"dY": ("N", *convolution.y), "X": ("N", *convolution.x), "W": convolution.w}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name[1]])
        for name in ("dX", "dW")
        if name in outputs
    ]
    names = [name if name in outputs else "" for name in ("dX", "dW")]
    attributes = {"strides": convolution.strides, "pads": convolution.pads, "group": convolution.group}
    attributes |= {"kernel_shape": convolution.w[2:], "dilations": (1, 1)}
    node = helper.make_node("ConvGrad", list(shapes), names, name="grad", domain="com.microsoft", **attributes)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "bench", inputs, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


if __name__ == "__main__":
    main()
