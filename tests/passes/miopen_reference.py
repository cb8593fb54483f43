"""MIOpen's batch norm in float64, in its own terms, and the models of its nodes that the tests run.

Statistics are of x seen as (N, C, S): over N and S in the spatial mode, only over N per activation.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dialects import node_model, rewritten, run, worst_error
from ort_values import DTYPES, TOLERANCES

SHAPES = {"NCHW": (4, 3, 2, 5), "NCDHW": (3, 2, 2, 3, 2), "NHWC": (4, 2, 5, 3), "NDHWC": (3, 2, 3, 2, 2)}
MODES = ("spatial", "per_activation")
FORMS = ("full", "flat", "descriptor")
"""The shapes of parameters, see `parameter_shape`."""


def ncs(array, layout):
    """An array of x's shape as (N, C, S) in float64."""
    array = np.asarray(array, np.float64)
    if layout.endswith("C"):
        array = np.moveaxis(array, -1, 1)
    return array.reshape(*array.shape[:2], -1)


def of_ncs(array, x_shape, layout):
    """The inverse of `ncs`."""
    if not layout.endswith("C"):
        return array.reshape(x_shape)
    return np.moveaxis(array.reshape(x_shape[0], x_shape[-1], *x_shape[1:-1]), 1, -1)


def over(mode):
    return (0, 2) if mode == "spatial" else (0,)


def parameter(array, layout, mode):
    """A parameter of any of its shapes as something that broadcasts with (N, C, S)."""
    array = np.asarray(array, np.float64)
    if mode == "spatial":
        return array.reshape(1, -1, 1)
    if layout.endswith("C"):
        return np.moveaxis(array.reshape(-1, array.shape[-1]), 1, 0)[np.newaxis]
    channels = array.shape[-3 if len(layout) == 4 else -4]
    return array.reshape(1, channels, -1)


def of_parameter(array, shape, layout, mode):
    """The inverse of `parameter`."""
    if mode == "spatial" or not layout.endswith("C"):
        return array.reshape(shape)
    return np.moveaxis(array.reshape(array.shape[-2:]), 0, 1).reshape(shape)


def batch_statistics(x, layout, mode):
    """Mean and biased variance."""
    x = ncs(x, layout)
    mean = x.mean(axis=over(mode), keepdims=True)
    return mean, np.square(x - mean).mean(axis=over(mode), keepdims=True)


def backward(x, dy, scale, mean, inv, layout, mode):
    """dx, dscale and dbias from N dy - dbias - xhat dscale, as MIOpen's host reference has it."""
    x3, dy3 = ncs(x, layout), ncs(dy, layout)
    s, m, i = (parameter(p, layout, mode) for p in (scale, mean, inv))
    n = x3.size // (x3.shape[1] * (1 if mode == "spatial" else x3.shape[2]))
    xhat = (x3 - m) * i
    dbias = dy3.sum(axis=over(mode), keepdims=True)
    dscale = (dy3 * xhat).sum(axis=over(mode), keepdims=True)
    dx = i / n * (n * s * dy3 - s * dbias - xhat * s * dscale)
    shape = np.shape(scale)
    return (
        of_ncs(dx, np.shape(x), layout),
        of_parameter(dscale, shape, layout, mode),
        of_parameter(dbias, shape, layout, mode),
    )


def parameter_shape(layout, mode, form):
    """``flat``: the kept dimensions of x; ``full``: as many as x has; ``descriptor``: MIOpen's own 1C11."""
    shape = SHAPES[layout]
    channels = shape[-1] if layout.endswith("C") else shape[1]
    if mode == "per_activation":
        return shape[1:] if form == "flat" else (1, *shape[1:])
    ones = [1] * len(shape)
    ones[-1 if form == "full" and layout.endswith("C") else 1] = channels
    return (channels,) if form == "flat" else tuple(ones)


def tensors(rng, layout, mode, types, form="full"):
    """Tensors of these types of x, dy, scale and statistics; mean and inv are not those of x."""
    shape, small = SHAPES[layout], parameter_shape(layout, mode, form)
    of_x, of_dy, of_scale, of_saved = (DTYPES[t] for t in types)
    return {
        "x": (rng.standard_normal(shape) * 2 + 1).astype(of_x),
        "dy": rng.standard_normal(shape).astype(of_dy),
        "scale": rng.uniform(0.5, 2, small).astype(of_scale),
        "bias": rng.standard_normal(small).astype(of_scale),
        "mean": rng.standard_normal(small).astype(of_saved),
        "inv": rng.uniform(0.2, 1.5, small).astype(of_saved),
    }


def check(got, want, dtypes):
    """Every output has its type, and differs by no more than that type's tolerance."""
    for name, value in want.items():
        assert got[name].dtype == DTYPES[dtypes[name]], name
        assert worst_error(got[name], value) <= TOLERANCES[dtypes[name]], name


def run_node(op_type, import_pass, inputs, outputs, implementation="function", **attributes):
    """A model of one node, rewritten and run."""
    model = node_model(op_type, inputs, outputs, domain="miopen", **attributes)
    feeds = {name: array for name, array in inputs.items() if array is not None}
    return run(rewritten(model, import_pass), feeds, implementation)


def content(model):
    return ir.to_proto(model).SerializeToString(deterministic=True)
