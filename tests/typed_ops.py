"""Models with one ``bngrad`` op in any combination of types, and a comparison with the reference."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from bngrad.opset.functions import DOMAIN, VERSION
from bngrad.opset.quantities import QUANTITIES
from bngrad.opset.schemas import signature
from bngrad.passes.embed_functions import EmbedFunctionsPass
from op_models import expected, op_feeds
from ort_values import DTYPES, TOLERANCES

TYPE_NAMES = {
    f"{t}-{t1}-{t2}": (t, t1, t2)
    for t in DTYPES
    for t1 in dict.fromkeys((t, "float"))
    for t2 in dict.fromkeys((t, "float"))
}
"""All combinations of T, T1 and T2 that the ops support."""


def type_of(name, types):
    """Returns the type of an input or output of an op by its name."""
    return dict(zip(("T", "T1", "T2"), types, strict=True))[QUANTITIES[name].type_constraint]


def typed_model(op, types, opset=17, **attributes):
    """Returns a model with one op and its functions, for data of every rank and any axes."""
    inputs, outputs, _ = signature(op)
    elements = {
        n: helper.np_dtype_to_tensor_dtype(DTYPES[type_of(n, types)]) for n in inputs + outputs if n != "axes"
    }
    elements["axes"] = onnx.TensorProto.INT64
    values = {n: helper.make_tensor_value_info(n, elements[n], ["k"] if n == "axes" else None) for n in elements}
    node = helper.make_node(op, inputs, outputs, name="bn", domain=DOMAIN, **attributes)
    graph = helper.make_graph([node], "typed", [values[n] for n in inputs], [values[n] for n in outputs])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, VERSION)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    EmbedFunctionsPass()(model)
    return ir.to_proto(model)


def typed_feeds(op, types, shape, axes, rng, *, mean=0.0):
    """Draws inputs of about 1 for an op; ``mean`` is added to X and its mean."""
    feeds = op_feeds(op, shape, axes, rng, np.float64)
    for name in {"X", "mean"} & feeds.keys():
        feeds[name] += mean
    return {n: a if n == "axes" else a.astype(DTYPES[type_of(n, types)]) for n, a in feeds.items()}


def assert_accurate(op, types, got, feeds, attributes, tolerance=None):
    """Compares outputs with the float64 reference on the same rounded inputs."""
    exact = {name: array if name == "axes" else array.astype(np.float64) for name, array in feeds.items()}
    for name, want in expected(op, exact, attributes).items():
        kind = type_of(name, types)
        assert got[name].dtype == DTYPES[kind], name
        assert got[name].shape == want.shape, name
        # A float output of 16-bit data is computed in float.
        bound = max(TOLERANCES[kind], tolerance or 0)
        error = np.max(np.abs(got[name].astype(np.float64) - want), initial=0)
        assert error <= bound * np.max(np.abs(want), initial=0), f"{name} of axes {feeds['axes']}: {error}"
