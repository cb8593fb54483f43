"""The update of all weights of a ResNet-50, as models of ONNX Runtime and as NumPy in place."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.passes.embed_functions import EmbedFunctionsPass

COEFFICIENTS = np.array([1, 0, 1 - 1e-3 * 1e-2, 0.1, 0.999, 0.001, 1e-2, 0.1, 1e-8])
"""Of AdamUpdate; a step of AdamW with a learning rate of 0.001 and a weight decay of 0.01."""

STATE = {"adamw": "wmv", "sgd": "wm"}
"""The names of what an optimizer updates: the weights first."""


def shapes() -> list[tuple[int, ...]]:
    """The shapes of the 161 weights of a ResNet-50: 25.6 million elements."""
    parameters: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, channels, 1, 1))
            for shape in convolutions:
                parameters += [shape, shape[:1], shape[:1]]
            channels = 4 * width
    return [*parameters, (1000, channels), (1000,)]


def update_model(optimizer: str, form: str) -> ir.Model:
    """A model that updates all weights: inputs w0, g0, m0, v0, ...; outputs w0_new, m0_new, v0_new, ...

    Args:
        optimizer: A key of `STATE`.
        form: ``standard``: ops of ONNX, without the gradient's factor and the L2 penalty; ``function``: AdamUpdate
            with its definition; ``native``: only AdamUpdate.
    """
    coefficients = ir.val("coefficients", ir.DataType.DOUBLE, [len(COEFFICIENTS)])
    graph = ir.Graph([coefficients], [], nodes=[], opset_imports={"": 18, "bngrad": 1}, name="update")
    model = ir.Model(graph, ir_version=9)
    make = NodesAtEnd(graph, Names(model), "update")
    numbers = make.cast(coefficients, ir.DataType.FLOAT)
    factors: dict[int, list[ir.Value]] = {}
    for index, shape in enumerate(shapes()):
        arrays = {n: ir.val(f"{n}{index}", ir.DataType.FLOAT, shape) for n in f"g{STATE[optimizer]}"}
        graph.inputs.extend(arrays.values())
        if form == "standard":
            rank = len(shape)
            if rank not in factors:  # of the rank of the weight: ONNX Runtime takes 50 times as long for scalars
                index_shape = [1] * rank
                factors[rank] = [
                    make.op("Gather", numbers, make.int64(np.full(index_shape, k)), axis=0)
                    for k in range(len(COEFFICIENTS))
                ]
            results = _STANDARD[optimizer](make, factors[rank], **arrays)
        else:
            results = make.bngrad("AdamUpdate", *(arrays[name] for name in "wgmv"), coefficients)
        for name, value in zip(STATE[optimizer], results, strict=True):
            output = make.name(value, f"{name}{index}_new")
            output.type, output.shape = arrays["w"].type, arrays["w"].shape
            graph.outputs.append(output)
    EmbedFunctionsPass(form == "function")(model)
    return model


def _adamw(make, factors, *, w, g, m, v):
    _, _, decay, rest1, beta2, rest2, step_size, root, eps = factors
    m = make.op("Add", m, make.op("Mul", make.op("Sub", g, m), rest1))
    v = make.op("Add", make.op("Mul", v, beta2), make.op("Mul", make.op("Mul", g, g), rest2))
    quotient = make.op("Div", m, make.op("Add", make.op("Div", make.op("Sqrt", v), root), eps))
    return [make.op("Sub", make.op("Mul", w, decay), make.op("Mul", quotient, step_size)), m, v]


def _sgd(make, factors, *, w, g, m):
    momentum, rate = factors[2], factors[3]
    m = make.op("Add", make.op("Mul", m, momentum), g)
    return [make.op("Sub", w, make.op("Mul", m, rate)), m]


_STANDARD = {"adamw": _adamw, "sgd": _sgd}


def update_in_place(optimizer, scratch, w, g, m, v=None) -> None:
    """The same in NumPy, without a new array; ``scratch`` has the size of the largest weight."""
    decay, rest1, beta2, rest2, step_size, root, eps = map(np.float32, COEFFICIENTS[2:])
    t = scratch[: math.prod(w.shape)].reshape(w.shape)
    if optimizer == "sgd":
        m *= decay
        m += g
        np.multiply(m, rest1, out=t)
        w -= t
        return
    np.subtract(g, m, out=t)
    t *= rest1
    m += t
    np.multiply(g, g, out=t)
    t *= rest2
    v *= beta2
    v += t
    np.sqrt(v, out=t)
    t /= root
    t += eps
    np.divide(m, t, out=t)
    t *= step_size
    w *= decay
    w -= t
