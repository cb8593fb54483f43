"""Small forward models with a batch norm, for ORT's gradient builder."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

CHANNELS = 3
EXTENTS = (4, 3, 2)


def forward(rank, opset):
    """loss = mean(relu(bn(conv(x)))^2), with its weights as graph inputs; at rank 2 a Gemm is the convolution.

    Until opset 13 a BatchNormalization with one output is all that an exporter wrote; ORT's builder trains it.
    """
    spatial = EXTENTS[: rank - 2]
    data = ",".join(map(str, ("N", 2, *spatial)))
    kernel = ",".join(map(str, (CHANNELS, 2, *(3 for _ in spatial)) if spatial else (2, CHANNELS)))
    pads = f"<pads = [{', '.join('1' for _ in range(2 * len(spatial)))}]>" if spatial else ""
    layer = f"Conv{pads}" if spatial else "Gemm"
    c = f"float[{CHANNELS}]"
    if opset < 14:
        outputs, attributes, more = "n", "", ""
    else:
        outputs, attributes, more = "n, new_mean, new_var", ", training_mode = 1", f", {c} new_mean, {c} new_var"
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[{data}] x, float[{kernel}] w, {c} b, {c} scale, {c} bias, {c} mean, {c} var)
            => (float loss{more}) {{
            [layer] h = {layer}(x, w, b)
            [bn] {outputs} = BatchNormalization<epsilon = 0.001, momentum = 0.8{attributes}>
                (h, scale, bias, mean, var)
            [relu] r = Relu(n)
            [square] s = Mul(r, r)
            [loss] loss = ReduceMean<keepdims = 0>(s)
        }}"""
    )


WRT = ["w", "b", "scale", "bias"]


def training_graph(oracle, rank, opset):
    return ir.to_proto(oracle.build_gradient(forward(rank, opset), "loss", WRT).model)


def feeds(rank, rng, batch=4):
    spatial = EXTENTS[: rank - 2]
    kernel = (CHANNELS, 2, *(3 for _ in spatial)) if spatial else (2, CHANNELS)
    drawn = {"x": (batch, 2, *spatial), "w": kernel, **dict.fromkeys(("b", "scale", "bias", "mean"), (CHANNELS,))}
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in drawn.items()}
    return {**values, "var": rng.uniform(0.5, 2, CHANNELS).astype(np.float32)}
