"""ConvChannelsLast on a device against float64: types, forms, TF32, and the same bits in two runs.

``python check_conv_channels_last.py DEVICE``. On the CPU the function of the op runs in its place.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx_ir as ir

import bngrad
from bngrad.graph.conv_channels_last import conv_channels_last
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.runtime.ort_values import run_on_values, to_ort_value
from bngrad.validation.training_ops.convolution import conv
from check_conv_grad import FORMS, LARGE_FLOAT, TF32, TYPES
from results import check, report


def model_of(x, w, attributes, kind):
    """The op with its function, between Casts of the inputs to the type, and of the output to float or double."""
    wide = ir.DataType.DOUBLE if kind == "double" else ir.DataType.FLOAT
    inputs = [
        ir.Value(name=name, type=ir.TensorType(wide), shape=ir.Shape([*shape[:1], *shape[2:], shape[1]]))
        for name, shape in (("X", x), ("W", w))
    ]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 22}, name="conv_channels_last")
    model, rank = ir.Model(graph, ir_version=10), len(w) - 2
    emit = NodesAtEnd(graph, Names(model), "the")
    typed = []
    for value in inputs:
        typed.append(emit.op("Cast", value, to=TYPES[kind][1]))
        typed[-1].type, typed[-1].shape = ir.TensorType(ir.DataType(TYPES[kind][1])), value.shape
    defaults = {"dilations": [1] * rank, "group": 1, "kernel_shape": list(w[2:]), "strides": [1] * rank}
    y = conv_channels_last(emit, model, *typed, **defaults | {"pads": [0, 0] * rank} | attributes)
    result = emit.op("Cast", y, to=int(wide))
    result.type, result.shape = ir.TensorType(wide), y.shape
    graph.outputs.append(result)
    return model


def run(form, kind, device, *, tf32=False):
    """Compares one form, and returns the largest error over its bound."""
    x, w, attributes = FORMS[form]
    dtype, _, bound = TYPES[kind]
    if kind == "float":
        bound = TF32 if tf32 else LARGE_FLOAT if form == "large" else bound
    rng = np.random.default_rng(0)
    wide = np.float64 if kind == "double" else np.float32
    arrays = {name: rng.standard_normal(shape).astype(dtype).astype(wide) for name, shape in (("X", x), ("W", w))}
    model = model_of(x, w, attributes, kind)
    session = bngrad.session(model, device=device, tf32=tf32)
    values = {name: to_ort_value(np.moveaxis(array, 1, -1).copy()) for name, array in arrays.items()}
    (first,), (second,) = (run_on_values(session, values).values() for _ in range(2))
    assert first.tobytes() == second.tobytes(), "the bits of two runs differ"
    exact = np.moveaxis(conv(*(array.astype(np.float64) for array in arrays.values()), **attributes), 1, -1)
    assert first.shape == exact.shape, f"the shape is {first.shape}"
    error = np.max(np.abs(first - exact), initial=0)
    limit = bound * np.max(np.abs(exact), initial=0)
    assert error <= limit, f"error {error:.3g}, bound {limit:.3g}"
    return error / limit if limit else 0.0


def main(device, quick):
    for kind in TYPES if device != "cpu" else ["float"]:  # whose functions have no kernels of other types there
        for form in FORMS:
            if (quick and kind != "float") or (form == "large" and (quick or kind == "double")):
                continue
            with check(f"conv-channels-last {form} {kind}") as notes:
                worst = run(form, kind, device)
                notes.append(f"{worst:.2f} of its bound")
                report("ops", op="conv-channels-last", type=kind, worst=worst, edge=form)
    if device != "cpu":
        with check("conv-channels-last TF32") as notes:
            error = TF32 * run("3x3", "float", device, tf32=True)
            assert error > 10 * TYPES["float"][2], f"error {error:.3g} is that of float"
            notes.append(f"error {error:.3g}")


if __name__ == "__main__":
    main(sys.argv[1], quick="--quick" in sys.argv)
