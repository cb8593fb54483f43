"""Helpers of the tests of the import passes: a foreign node as a model, rewritten, run by each implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx_ir.passes.common import CheckerPass, ShapeInferencePass

from bngrad.opset import ort_dialect, schemas  # noqa: F401 - both register schemas
from bngrad.passes.embed_functions import EmbedFunctionsPass
from ort_values import TypedSession

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def node_model(
    op_type: str,
    inputs: Mapping[str, np.ndarray | None],
    outputs: Sequence[str],
    *,
    domain: str = "",
    opset: int = 17,
    constants: Sequence[str] = (),
    **attributes: object,
) -> ir.Model:
    """A model of one foreign node; its inputs are graph inputs, but for those in ``constants``.

    Args:
        op_type: The node's.
        inputs: Arrays by name, in the node's order; None leaves that input out.
        outputs: Names in the node's order; "" leaves one out.
        domain: The node's.
        opset: Of the default domain.
        constants: Inputs that are initializers.
        attributes: The node's.
    """
    names = ["" if array is None else name for name, array in inputs.items()]
    node = helper.make_node(op_type, names, list(outputs), name="foreign", domain=domain, **attributes)
    arrays = {name: array for name, array in inputs.items() if array is not None}
    graph = helper.make_graph(
        [node],
        "dialect",
        [_value_info(name, array) for name, array in arrays.items() if name not in constants],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [onnx.numpy_helper.from_array(arrays[name], name) for name in constants],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def rewritten(model: ir.Model, import_pass: ir.passes.InPlacePass) -> ir.Model:
    """The result of the pipeline with one import pass: typed, checked, with its functions."""
    model = model.clone()
    ShapeInferencePass(check_type=False, strict_mode=False)(model)
    import_pass(model)
    EmbedFunctionsPass()(model)
    ShapeInferencePass(check_type=False, strict_mode=False)(model)
    CheckerPass(full_check=True)(model)
    return model


def run(
    model: ir.Model, feeds: Mapping[str, np.ndarray], implementation: str = "function"
) -> dict[str, np.ndarray]:
    """The outputs of a model by name; feeds that are no graph inputs are left out."""
    return TypedSession(ir.to_proto(model), implementation)(feeds)


def worst_error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest absolute error over the largest absolute reference value."""
    assert got.shape == np.shape(want)
    if got.size == 0:
        return 0.0
    largest = float(np.max(np.abs(want)))
    return float(np.max(np.abs(got.astype(np.float64) - want))) / (largest or 1.0)


def _value_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
