"""Checks of ONNX Runtime's optimizer and kernels on the lowered graph of a case.

- `between_transposes`: its optimizer moves transposes of the inputs through the nodes of the gradient;
- `with_an_empty_batch`: its kernels get arrays without elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from autodiff.gradient_cases import forward, inputs_of, lowered, written
from autodiff.gradient_checks import compare, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodiff.gradient_cases import Dims
    from autodiff.gradient_checks import Arrays, CheckedCase

Level = ort.GraphOptimizationLevel
ORT_ERRORS = (RuntimeException, Fail, InvalidArgument)
NOT_BETWEEN_TRANSPOSES = ("Pad", "Resize")
"""Ops whose forward models the optimizer may break; then it breaks their gradients, too."""
NOT_EMPTY = (
    *("Attention", "BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization"),
    *("Gather", "Pad", "Reshape", "Resize", "SoftmaxCrossEntropyLoss"),
)
"""Ops that ONNX Runtime may not run with an empty batch."""


def between_transposes(checked: CheckedCase, dims: Dims) -> None:
    """Checks only the gradients, so that nothing else reads the transposed values."""
    case = checked.case
    feeds, exact = checked.sample(dims)
    weights = [f"{name}_weight" for name in case.outputs]
    arrays = {**{name: feeds[name] for name in (*case.wrt, *weights)}, **exact}
    ranks = {name: array.ndim for name, array in arrays.items() if array.ndim > 1}
    feeds = {**feeds, **{_outside(name): arrays[name].transpose(_back(rank)) for name, rank in ranks.items()}}
    names = {_outside(name) if name in ranks else name: name for name in exact}
    try:
        results = _run(_gradients_alone(_between_transposes(lowered(case), ranks), names), feeds, names)
    except ORT_ERRORS:
        if any(op in case.body for op in NOT_BETWEEN_TRANSPOSES):
            with pytest.raises(ORT_ERRORS):
                _run(_between_transposes(forward(case), ranks), feeds, ["loss"])
            return
        raise
    compare(
        {
            name: array.transpose(_forth(array.ndim)) if name in ranks else array
            for name, array in zip(names.values(), results.values(), strict=True)
        },
        exact,
        case.float_limit,
    )


def with_an_empty_batch(checked: CheckedCase, dims: Dims) -> None:
    """Where ONNX Runtime runs the forward model with an empty batch, a loss of 0 has no gradient."""
    case = checked.case
    feeds = inputs_of(case, {**dims, "N": 0}, np.random.default_rng(0))
    try:
        outputs = _run(written(case), feeds, case.outputs, Level.ORT_ENABLE_BASIC)
    except ORT_ERRORS:
        assert any(op in case.body for op in NOT_EMPTY), "ONNX Runtime does not run the forward model"
        return
    feeds |= {f"{name}_weight": np.ones_like(y) for name, y in outputs.items()}
    names = ["loss", *case.gradients]
    for results in (run(checked.stock, feeds, names), _run(lowered(case), feeds, names, Level.ORT_DISABLE_ALL)):
        loss = results.pop("loss")
        for wrt, gradient in zip(case.wrt, results.values(), strict=True):
            assert gradient.shape == feeds[wrt].shape
            assert loss.any() or not np.isfinite(loss).all() or not gradient.any(), wrt


def _forth(rank: int) -> list[int]:
    """Transposes [N, H, W, C] to [N, C, H, W], or a matrix."""
    return [1, 0] if rank == 2 else [0, rank - 1, *range(1, rank - 1)]


def _back(rank: int) -> list[int]:
    return np.argsort(_forth(rank)).tolist()


def _outside(name: str) -> str:
    return f"{name}_outside"


def _between_transposes(model: onnx.ModelProto, ranks: Mapping[str, int]) -> onnx.ModelProto:
    """A copy with transposes after its inputs and before its loss and gradients.

    Inputs and outputs of these ranks get the names of `_outside`. The gradient with respect to y is its weight.
    """
    between = onnx.ModelProto()
    between.CopyFrom(model)
    graph = between.graph
    nodes = []
    for value in graph.input:
        if (name := value.name) in ranks:
            _turn(value, ranks[name])
            if not name.endswith("_weight"):
                nodes.append(_transpose(value.name, name, _forth(ranks[name])))
    for node in graph.node:
        weight = next((name for name in node.input if name in ranks and name.endswith("_weight")), "")
        y = weight.removesuffix("_weight")
        if not weight:
            nodes.append(node)
        elif node.name == f"weigh_{y}":
            nodes.append(_transpose(y, _outside(y), _back(ranks[weight])))
            nodes.append(helper.make_node("Mul", [_outside(y), _outside(weight)], node.output, node.name))
        else:
            nodes.append(_transpose(_outside(weight), node.output[0], _forth(ranks[weight])))
    for value in graph.output:
        if (name := value.name) in ranks:
            _turn(value, ranks[name])
            nodes.append(_transpose(name, value.name, _back(ranks[name])))
    del graph.node[:]
    graph.node.extend(nodes)
    return between


def _transpose(name: str, result: str, perm: list[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [name], [result], f"transpose_{name}", perm=perm)


def _turn(value: onnx.ValueInfoProto, rank: int) -> None:
    """Permutes the dims of an input or output, if they are known, and renames it."""
    value.name = _outside(value.name)
    dims = value.type.tensor_type.shape.dim
    old = [onnx.TensorShapeProto.Dimension.FromString(extent.SerializeToString()) for extent in dims]
    del dims[:]
    dims.extend(old[place] if old else onnx.TensorShapeProto.Dimension() for place in _back(rank))


def _gradients_alone(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model without the forward nodes that no gradient needs."""
    training = ir.from_proto(model)
    training.graph.outputs[:] = [value for value in training.graph.outputs if value.name in names]
    RemoveUnusedNodesPass()(training)
    return ir.to_proto(training)


def _run(
    model: onnx.ModelProto, feeds: Arrays, names: Iterable[str], level: Level = Level.ORT_ENABLE_ALL
) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return run(
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]), feeds, names
    )
