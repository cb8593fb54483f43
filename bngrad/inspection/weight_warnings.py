"""Warnings about the weights of a forward model: merged values, constants, and values that are not trained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.autodiff.edges import why_no_gradient
from bngrad.autodiff.loss_and_wrt import reaching_values
from bngrad.autodiff.quantization import is_quantization
from bngrad.autodiff.straight_through import stop_roundings
from bngrad.autodiff.weights import WEIGHT_SLOTS, default_weights
from bngrad.graph.constant_value import has_equal_elements
from bngrad.graph.framework import framework_of
from bngrad.graph.name_messages import listed
from bngrad.graph.nodes import all_nodes, counted, nodes_behind
from bngrad.graph.same_values import SAME_VALUES, readers
from bngrad.graph.subgraphs import captured_values
from bngrad.graph.torch_calls import recorded_call
from bngrad.graph.torch_records import (
    PARAMETER,
    are_recorded_as_tied,
    recorded_kinds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

_MADE_BY_EXPORTER = re.compile(r"(val|onnx::\w+|Const(ant)?|const_fold_opt)_+\d+(:0)?|.*/Const(ant)?(_\d+)?(:0)?")
"""Names that exporters give to values other than parameters: ``val_7``, ``onnx::Mul_12``, ``Const__3:0``."""

_NAMED_PARAMETER = re.compile(
    r"weight|bias|scale|gamma|beta|alpha|slope|temperature|kernel|shift|param|logit|gain", re.IGNORECASE
)
_NAMED_STATISTIC = re.compile(r"(running|moving)_?(mean|var|std)", re.IGNORECASE)


def tied_weights(model: ir.Model, names: Sequence[str]) -> Iterator[str]:
    """Parameters of equal elements that several nodes have as their weight.

    Graph inputs are left out: an exporter merges initializers, but not the arguments of what it exports.
    """
    tied = []
    if (model.producer_name or "").startswith("bngrad."):  # what this package exports has no merged values
        return
    for value in _values(model.graph, names):
        if value.is_graph_input():
            continue
        nodes = list(
            dict.fromkeys(node for node, index in readers(value, SAME_VALUES) if _is_weight_slot(node, index))
        )
        if len(nodes) > 1 and has_equal_elements(value) and not are_recorded_as_tied(nodes):
            tied.append((str(value.name), nodes))
    if tied:
        name, nodes = tied[0]
        more = f" (and {listed(name for name, _ in tied[1:])} likewise)" if len(tied) > 1 else ""
        yield (
            f"{name!r} is a weight of {counted(nodes, 'node')}, trained as one{more}; its elements are all "
            "equal, and exporters merge equal initial values: if the network does not share it, export with "
            "torch.onnx.export(..., dynamo=True, optimize=False), or dynamo=False, training=TrainingMode.TRAINING"
        )


def untied_weights(model: ir.Model, names: Sequence[str]) -> Iterator[str]:
    """Matrices that are transposes of other weights, as exporters write a shared one that a layer transposes."""
    if (model.producer_name or "").startswith("bngrad."):
        return
    matrices = [(value, matrix) for value in _values(model.graph, names) if (matrix := _matrix(value)) is not None]
    pairs = [
        (str(transposed.name), str(value.name))
        for index, (value, matrix) in enumerate(matrices)
        for transposed, other in matrices[index + 1 :]
        if other.shape == matrix.shape[::-1] and _is_transpose(other, matrix)
    ]
    if pairs:
        (transposed, value), *others = pairs
        more = f" (and {listed(name for name, _ in others)} likewise)" if others else ""
        yield (
            f"{transposed!r} is the transpose of {value!r}, and both are trained, apart{more}: exporters write a "
            "weight that two layers share twice if one transposes it; if the network shares it, export without "
            "folding constants: torch.onnx.export(..., dynamo=True, optimize=False), or dynamo=False, "
            "do_constant_folding=False"
        )


def _matrix(value: ir.Value) -> NDArray[Any] | None:
    tensor = value.const_value
    if tensor is None or len(tensor.shape) != 2 or tensor.size == 0 or value.is_graph_input():
        return None
    try:
        return tensor.numpy()
    except (OSError, ValueError):  # its external data is not there, which is reported where it is needed
        return None


def _is_transpose(other: NDArray[Any], matrix: NDArray[Any]) -> bool:
    """Tests whether two matrices are transposes of each other, and neither equals its own as an identity does."""
    return bool(
        np.array_equal(other[0, :8], matrix[:8, 0])  # differs for most, and leaves the others on disk
        and np.array_equal(other, matrix.T)
        and not np.array_equal(other, matrix)
        and not np.all(matrix == matrix.flat[0])
    )


def unlikely_weights(model: ir.Model, names: Sequence[str]) -> Iterator[str]:
    """Values that are weights by default, and do not look like weights."""
    names_by_reason: dict[str, list[str]] = {}
    kinds = recorded_kinds(model.graph)
    for value in _values(model.graph, names):
        reason = None if kinds.get(str(value.name)) == PARAMETER else _why_no_weight(value)
        if reason is not None:
            names_by_reason.setdefault(reason, []).append(str(value.name))
    for reason, values in names_by_reason.items():
        looks = "does not look like a weight" if len(values) == 1 else "do not look like weights"
        yield (
            f"{listed(values)} {looks} ({reason}), but the loss is differentiated with respect to every "
            "float initializer by default; name the weights with --wrt (wrt=)"
        )


def padded_tables(model: ir.Model, names: Sequence[str]) -> Iterator[str]:
    """Tables of embeddings with one row of zeros, as PyTorch makes them with padding_idx, without a record."""
    if framework_of(model) != "pytorch" or (model.producer_name or "").startswith("bngrad."):
        return
    padding_rows = {
        str(value.name): row for value in _values(model.graph, names) if (row := _padding_row(value)) is not None
    }
    if padding_rows:
        name, row = next(iter(padding_rows.items()))
        yield (
            f"{listed(padding_rows)}: row {row} of {name!r} is zeros, as PyTorch's Embedding makes it with "
            f"padding_idx={row}, but the file does not record that, so the row is trained; if it is padding, "
            "export with bngrad.torch or torch.onnx.export(..., dynamo=True, optimize=False)"
        )


def _padding_row(value: ir.Value) -> int | None:
    """The only row of zeros of a table of embeddings without a record; None if there is no such row."""
    uses = [node for node, index in value.uses() if (node.op_type, index) == ("Gather", 0)]
    tensor = value.const_value
    if tensor is None or len(tensor.shape) != 2 or not uses or any(map(recorded_call, uses)):
        return None
    try:
        array = tensor.numpy()
    except (OSError, ValueError):  # its external data is not there, which is reported where it is needed
        return None
    rows = np.flatnonzero(~array.astype(bool).any(axis=1))
    return int(rows[0]) if len(rows) == 1 < len(array) else None


def weights_without_gradient(model: ir.Model, *, straight_through: bool) -> Iterator[str]:
    """Values that would be weights by default, were there not ops without a gradient between them and any loss."""
    is_quantized = any(map(is_quantization, all_nodes(model)))
    if is_quantized and not straight_through:
        model = model.clone()
        stop_roundings(model)
    trained = {value for output in model.graph.outputs for value in reaching_values(output, as_weights=True)}
    behind = nodes_behind(model.graph.outputs)
    sources = {x for node in behind for x in (*node.inputs, *captured_values(node))}
    kept = [value for value in default_weights(model.graph) if value in sources - trained]
    # Without a layer's weight they are more likely constants, such as the thresholds of a comparison.
    uses = (use for value in kept for use in readers(value, SAME_VALUES))
    if kept and (is_quantized or any(_is_weight_slot(node, index) for node, index in uses)):
        verb, what = ("keeps", "its value") if len(kept) == 1 else ("keep", "their values")
        reasons = (why_no_gradient(value) for value in kept)
        reason = next((reason for reason in reasons if reason), " without a gradient")
        yield (
            f"{listed(str(value.name) for value in kept)} {verb} {what}{reason}; name the weights to train with "
            "--wrt (wrt=)"
        )


def _values(graph: ir.Graph, names: Sequence[str]) -> Iterator[ir.Value]:
    """The inputs and initializers that have these names."""
    values = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    return (values[name] for name in names if name in values)


def _why_no_weight(value: ir.Value) -> str | None:
    """Returns the reason why a value is probably not a weight; None if it may be one."""
    name = str(value.name)
    if _NAMED_STATISTIC.search(name):
        return "named like a running statistic"
    by_exporter = _MADE_BY_EXPORTER.fullmatch(name) is not None
    slots = {index for node, index in readers(value, SAME_VALUES) if _is_weight_slot(node, index)}
    if slots:
        zero_bias = by_exporter and slots == {2} and has_equal_elements(value, 0.0)
        return "a bias of zeros named by an exporter" if zero_bias else None
    if by_exporter:
        return "named like an exporter's constant"
    scalar = value.const_value is not None and value.const_value.size == 1
    if scalar and not _NAMED_PARAMETER.search(name) and "." not in name:
        return "a scalar"
    return None


def _is_weight_slot(node: ir.Node, index: int) -> bool:
    return node.domain in ("", "ai.onnx") and index in WEIGHT_SLOTS.get(node.op_type, ())
