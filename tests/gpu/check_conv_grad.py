"""ConvGrad on a device against float64: types, forms, layouts, omitted outputs, and the same bits in two runs.

``python check_conv_grad.py DEVICE``. On the CPU the function of the op runs in its place.
"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

import bngrad
from bngrad.passes.lower.conv_grad_op import to_channels_last
from bngrad.runtime.ort_values import run_on_values, to_ort_value
from bngrad.validation.training_ops._windows import slide
from bngrad.validation.training_ops.convolution import conv_grad
from results import check, report

TYPES = {
    "float": (np.dtype(np.float32), TensorProto.FLOAT, 2e-5),
    "double": (np.dtype(np.float64), TensorProto.DOUBLE, 1e-13),
    "float16": (np.dtype(np.float16), TensorProto.FLOAT16, 2e-3),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16, 1.6e-2),
}
"""The types, with the largest error relative to the largest value."""
LARGE_FLOAT = 1e-4
"""That of the large form in float: cuDNN takes Winograd's algorithm, whose transforms are less exact."""
TF32 = 5e-3
"""That of products in TF32, whose factors have 11 bits."""
LAYOUTS = ("channels first", "channels last")
INPUTS, OUTPUTS = ("dY", "X", "W"), ("dX", "dW", "dB")
FORMS = {
    "3x3": ((4, 16, 14, 14), (32, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    "1x1": ((4, 64, 7, 7), (32, 64, 1, 1), {}),
    "1x1, stride": ((4, 16, 15, 14), (24, 16, 1, 1), {"strides": [2, 2]}),
    "7x7, stride": ((2, 3, 64, 64), (64, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "columns unread": ((2, 8, 13, 14), (8, 8, 3, 3), {"strides": [3, 4]}),
    "dilation": ((2, 8, 16, 15), (16, 8, 3, 3), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    "group": ((2, 32, 9, 8), (64, 8, 3, 3), {"pads": [1, 1, 1, 1], "group": 4}),
    "depthwise": ((4, 32, 14, 14), (32, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 32}),
    "depthwise, stride": ((4, 32, 15, 14), (64, 1, 5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2], "group": 32}),
    "pads differ": ((4, 16, 12, 13), (16, 16, 3, 3), {"pads": [0, 1, 1, 2], "strides": [2, 2]}),
    "pads larger than the kernel": ((2, 4, 5, 6), (8, 4, 2, 2), {"pads": [3, 2, 3, 2]}),
    "odd channels": ((3, 5, 9, 7), (7, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one output": ((2, 8, 5, 5), (4, 8, 5, 5), {}),
    "1-d": ((4, 8, 33), (16, 8, 5), {"pads": [2, 2], "strides": [2]}),
    "1-d, pads differ": ((4, 8, 33), (16, 4, 4), {"pads": [1, 2], "group": 2}),
    "3-d": ((2, 4, 6, 8, 7), (8, 4, 3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1], "strides": [1, 2, 1]}),
    "3-d, pads differ": ((2, 4, 6, 8, 7), (8, 4, 2, 3, 3), {"pads": [0, 1, 1, 1, 1, 0]}),
    "empty batch": ((0, 4, 8, 8), (8, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "large": ((64, 64, 56, 56), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
}
FEWER_OUTPUTS = [("dX",), ("", "dW"), ("", "", "dB"), ("dX", "", "dB")]


def model_of(x, w, attributes, outputs, element_type):
    """The op with its function, between Casts of the inputs to the type, and of the outputs to float or double."""
    rank = len(w) - 2
    wide = TensorProto.DOUBLE if element_type == TensorProto.DOUBLE else TensorProto.FLOAT
    shapes = {"dY": [None] * len(x), "X": [None, *x[1:]], "W": list(w)}
    names = [name for name in outputs if name]
    node = helper.make_node(
        "ConvGrad",
        [f"{name}_T" for name in INPUTS],
        [f"{name}_T" if name else "" for name in outputs],
        "the_node",
        domain="com.microsoft",
        **{
            "kernel_shape": w[2:],
            "pads": [0, 0] * rank,
            "strides": [1] * rank,
            "dilations": [1] * rank,
            "group": 1,
        }
        | attributes,
    )
    nodes = [helper.make_node("Cast", [name], [f"{name}_T"], to=element_type) for name in INPUTS]
    nodes = [*nodes, node, *(helper.make_node("Cast", [f"{name}_T"], [name], to=wide) for name in names)]
    graph = helper.make_graph(
        nodes,
        "conv_grad",
        [helper.make_tensor_value_info(name, wide, shapes[name]) for name in INPUTS],
        [helper.make_tensor_value_info(name, wide, None) for name in names],
        value_info=[helper.make_tensor_value_info(f"{name}_T", element_type, shapes[name]) for name in INPUTS],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    result = bngrad.rewrite(ir.from_proto(model), conv_grad=True)
    assert any(node.op_type == "ConvGrad" and node.domain == "bngrad" for node in result.graph)
    return result


def in_layout(array, layout):
    """An array, of which the channels are the second dimension."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if layout == LAYOUTS[1] and array.ndim > 1 else array


def with_channels_last(model):
    """The model, for arrays of that layout."""
    to_channels_last([node for node in model.graph if node.domain == "bngrad"], model)
    for value in (*model.graph.inputs, *(value for node in model.graph for value in node.outputs)):
        if value.shape is not None and len(value.shape) > 1:
            value.shape = ir.Shape([value.shape[0], *value.shape[2:], value.shape[1]])
    return model


def run(form, kind, device, outputs=OUTPUTS, *, tf32=False):
    """Compares one form in both layouts, and returns the largest error over its bound."""
    x, w, attributes = FORMS[form]
    dtype, element_type, bound = TYPES[kind]
    if kind == "float":
        bound = TF32 if tf32 else LARGE_FLOAT if form == "large" else bound
    geometry = {name: value for name, value in attributes.items() if name != "group"}
    shapes = {"dY": (x[0], w[0], *slide(x[2:], w[2:], **geometry).out), "X": x, "W": w}
    rng = np.random.default_rng(0)
    wide = np.float64 if kind == "double" else np.float32
    feeds = {name: rng.standard_normal(shape).astype(dtype).astype(wide) for name, shape in shapes.items()}
    exact = {name: array.astype(np.float64) for name, array in feeds.items()}
    expected = dict(zip(OUTPUTS, conv_grad(**exact, **attributes), strict=True))
    errors = []
    for layout in LAYOUTS:
        model = model_of(x, w, attributes, outputs, element_type)
        session = bngrad.session(
            with_channels_last(model) if layout == LAYOUTS[1] else model, device=device, tf32=tf32
        )
        values = {name: to_ort_value(in_layout(array, layout)) for name, array in feeds.items()}
        first, second = run_on_values(session, values), run_on_values(session, values)
        for name, array in first.items():
            assert array.tobytes() == second[name].tobytes(), f"{layout}: {name} of two runs differs"
            exact_result = in_layout(expected[name], layout)
            assert array.shape == exact_result.shape, f"{layout}: {name} has shape {array.shape}"
            error = np.max(np.abs(array - exact_result), initial=0)
            limit = bound * np.max(np.abs(exact_result), initial=0)
            assert error <= limit, f"{layout}: {name}: error {error:.3g}, bound {limit:.3g}"
            errors.append(error / limit if limit else 0)
    return max(errors)


def check_tf32(device):
    """Checks that a session's option is that of cuDNN: the error of dX is that of TF32 if it is set.

    That of dW may be the error of float: a deterministic algorithm may not round its factors.
    """
    for outputs in (("dX",), ("", "dW")):
        with check(f"conv-grad TF32 {'-'.join(outputs)}") as notes:
            error = TF32 * run("3x3", "float", device, outputs, tf32=True)
            assert error > 10 * TYPES["float"][2] or outputs != ("dX",), f"error {error:.3g} is that of float"
            notes.append(f"error {error:.3g}")


def main(device, quick):
    for kind in TYPES if device != "cpu" else ["float"]:  # whose functions have no kernels of other types there
        for form in FORMS:
            if (quick and kind != "float") or (form == "large" and (quick or kind == "double")):
                continue
            with check(f"conv-grad {form} {kind}") as notes:
                worst = run(form, kind, device)
                notes.append(f"{worst:.2f} of its bound")
                report("ops", op="conv-grad", type=kind, worst=worst, edge=form)
    for form in ("3x3", "pads differ"):
        for outputs in FEWER_OUTPUTS:
            with check(f"conv-grad {form} {'-'.join(outputs)}") as notes:
                notes.append(f"{run(form, 'float', device, outputs):.2f} of its bound")
    if device != "cpu":
        check_tf32(device)


if __name__ == "__main__":
    main(sys.argv[1], quick="--quick" in sys.argv)
