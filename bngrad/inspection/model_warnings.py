"""Warnings about forward models that an exporter made unfit for training.

Each check is a function of the user's model and returns one line per finding: the fault, its place, the likely
cause and the remedy. The checks change nothing.

The exporters of PyTorch (torch 2.9 to 2.15, onnxscript 0.7):

* ``torch.onnx.export(dynamo=True)`` writes every batch norm in inference mode, and records the mode that it had,
  see `torch_records`. Its default ``optimize=True`` folds batch norms into the Conv or Gemm before, recorded in
  the metadata, and merges equal initializers.
* ``dynamo=False`` does both unless ``training=TrainingMode.TRAINING``; folded weights are ``onnx::Conv_<n>``.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from bngrad.autodiff.batch_norm_modes import matching, put_in_training_mode
from bngrad.autodiff.metadata import is_built
from bngrad.autodiff.recorded_stops import loses_custom_gradients
from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.autodiff.weights import default_weights
from bngrad.graph.batch_norms import FROZEN, is_training_batch_norm
from bngrad.graph.framework import framework_of
from bngrad.graph.fresh_names import node_names
from bngrad.graph.nodes import all_nodes, counted, default_opset
from bngrad.graph.same_values import SAME_VALUES, origin
from bngrad.graph.subgraphs import nodes_of
from bngrad.graph.torch_records import (
    batch_norm_call,
    is_folded_batch_norm,
    recorded_mode,
)
from bngrad.inspection.diagnostic import Diagnostic
from bngrad.inspection.weight_warnings import (
    padded_tables,
    tied_weights,
    unlikely_weights,
    untied_weights,
    weights_without_gradient,
)
from bngrad.options import AUTO, ForwardOptions
from bngrad.passes.imports.tensorflow.node import FORWARDS, is_training, keeps_statistics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import onnx_ir as ir


_FOLDED_BY_TORCHSCRIPT = re.compile(r"onnx::Conv(Transpose)?_\d+")
_OUTPUT_OF_BATCH_NORM = re.compile(r"getitem(_\d+)?")
"""The name that PyTorch's modern exporter gives the output of a batch norm, and of no Conv or Gemm."""

_TORCH_REMEDY = (
    "if they are to be trained, export with torch.onnx.export(..., dynamo=True, optimize=False), or with "
    "dynamo=False, training=TrainingMode.TRAINING, do_constant_folding=False"
)


def model_warnings(
    model: ir.Model,
    options: ForwardOptions = ForwardOptions(),
    *,
    wrt: Collection[str] | None = None,
    default_wrt: bool = True,
) -> list[Diagnostic]:
    """Returns warnings of probable faults in a forward model that will be trained; none for a graph that is built.

    Args:
        model: The user's model; it is not changed.
        options: The modes of the batch norms, and their shared statistics.
        wrt: The names of what the loss is differentiated with respect to; by default of all likely weights.
        default_wrt: Whether the names are the default, and not the user's choice.
    """
    frozen, training = options.frozen, [pattern for pattern in options.training if pattern != AUTO]
    if is_built(model):
        return []
    names = list(wrt) if wrt is not None else [str(value.name) for value in default_weights(model.graph)]
    shared = _shared_statistics(model, frozen, training) if options.shared_statistics is None else ()
    warnings: dict[str, list[Iterable[str]]] = {
        "folded-batch-norms": [_folded_batch_norms(model, frozen)],
        "frozen-batch-norms": [_batch_norms_in_inference_mode(model, frozen, training)],
        "running-statistics-not-updated": [_batch_norms_without_running_statistics(model, frozen, training)],
        "shared-running-statistics": [shared],
        "custom-gradients-not-recorded": [_lost_custom_gradients(model)],
        "tied-weights": [tied_weights(model, names)],
        "untied-weights": [untied_weights(model, names)],
        "unlikely-weights": [unlikely_weights(model, names)] if default_wrt else [],
        "padding-not-recorded": [padded_tables(model, names)],
        "weights-without-gradient": [weights_without_gradient(model, straight_through=options.straight_through)]
        if default_wrt
        else [],
    }
    return [Diagnostic(text, kind) for kind, texts in warnings.items() for text in chain(*texts)]


def mode_notes(model: ir.Model, options: ForwardOptions = ForwardOptions()) -> list[str]:
    """Returns a note on the batch norms that go back to the training mode that PyTorch had them in."""
    chosen = _matching(model, (*options.frozen, *(pattern for pattern in options.training if pattern != AUTO)))
    recorded = [
        node
        for node in nodes_of(model.graph)
        if is_of_onnx(node) and node not in chosen and not is_training_batch_norm(node)
        if recorded_mode(node) and not any(map(_is_computed, node.inputs[3:5]))
    ]
    if not recorded:
        return []
    note = (
        f"PyTorch had {counted(recorded, 'batch norm')} in training mode, as the file records, and its exporter "
        "wrote inference mode: put in training mode; --frozen (frozen=) keeps the inference mode"
    )
    return [note]


def running_variance_warnings(model: ir.Model) -> list[str]:
    """Returns a warning for a model of PyTorch whose training graph has ONNX's rule, as ORT's dialect does."""
    if framework_of(model) != "pytorch":
        return []
    message = (
        "the model comes from PyTorch, which updates running variances with the unbiased variance of a batch; "
        "ORT's dialect has only the biased one: use --target stock or training, or pass --running-variance "
        "biased (running_variance=) to accept it"
    )
    return [message]


def _folded_batch_norms(model: ir.Model, frozen: Sequence[str]) -> Iterator[str]:
    """Layers that an exporter or a tool folded batch norms into: scale, bias and statistics are gone."""
    candidates = folded_layers(model)
    accepted = _matching(model, frozen)
    folded = [node for node in candidates if not (is_folded_batch_norm(node) and node in accepted)]
    if folded:
        yield (
            f"PyTorch's exporter folded batch norms into {counted(folded, 'layer')}, so that they are not "
            f"trained; {_TORCH_REMEDY}"
        )


def folded_layers(model: ir.Model) -> list[ir.Node]:
    """Returns the layers that PyTorch's exporter folded batch norms into, by its records or its names."""
    of_torch = framework_of(model) == "pytorch"
    return [
        node
        for node in all_nodes(model)
        if is_folded_batch_norm(node) or (of_torch and _is_named_like_a_folded_one(node))
    ]


def _is_named_like_a_folded_one(node: ir.Node) -> bool:
    """Tests whether a layer has the weight or the output that a batch norm was folded into."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or weight is None:
        return False
    return bool(
        _FOLDED_BY_TORCHSCRIPT.fullmatch(weight.name or "")
        or _OUTPUT_OF_BATCH_NORM.fullmatch(node.outputs[0].name or "")
    )


def _batch_norms_in_inference_mode(
    model: ir.Model, frozen: Sequence[str], training: Sequence[str]
) -> Iterator[str]:
    """Warns of batch norms whose statistics are frozen by the model, not by the user's choice."""
    if left := frozen_batch_norms(model, frozen, training):
        yield (
            f"the model has no batch norm in training mode, but {counted(left, 'batch norm')} in inference mode, "
            "so that their statistics are frozen; export it in training mode or pass --training '*' (training=), "
            "or --frozen '*' to keep them so"
        )


def frozen_batch_norms(model: ir.Model, frozen: Sequence[str] = (), training: Sequence[str] = ()) -> list[ir.Node]:
    """Returns the batch norms in inference mode of a model without others that nobody chose a mode for."""
    opset = default_opset(model) or 0
    modes = {node: _mode(node, opset) for node in all_nodes(model)}
    batch_norms = {node: mode for node, mode in modes.items() if mode is not None}
    chosen = _matching(model, (*frozen, *training)) & set(batch_norms)
    left = [
        node
        for node, mode in batch_norms.items()
        if not mode and node not in chosen and FROZEN not in node.metadata_props
    ]
    recorded = put_in_training_mode(left)
    return [] if chosen or recorded or any(batch_norms.values()) else left


def _batch_norms_without_running_statistics(
    model: ir.Model, frozen: Sequence[str], training: Sequence[str]
) -> Iterator[str]:
    """Batch norms of TensorFlow that return the statistics of the batch, and leave averaging to other ops."""
    to_train, to_freeze = _matching(model, training), _matching(model, frozen)
    batch_norms = [
        node
        for node in all_nodes(model)
        if node.op_type in FORWARDS
        and not keeps_statistics(node)
        and (node in to_train or (is_training(node) and node not in to_freeze))
    ]
    if batch_norms:
        yield (
            f"running statistics are not updated by {counted(batch_norms, 'batch norm')} of TensorFlow, whose "
            "exponential_avg_factor is 1; set it to the weight of the new statistics in the running ones, 0.01 "
            "for Keras's momentum of 0.99"
        )


def _lost_custom_gradients(model: ir.Model) -> Iterator[str]:
    """Warns of custom gradients, which jax2onnx does not record."""
    if loses_custom_gradients(model):
        yield (
            "jax2onnx does not record custom gradients (jax.custom_vjp, jax.custom_jvp), so that any are lost; "
            "export with to_onnx of docs/examples/jax/known_gradients.py, which refuses them"
        )


def _shared_statistics(model: ir.Model, frozen: Sequence[str], training: Sequence[str]) -> Iterator[str]:
    """Batch norms of PyTorch with the same running statistic, where the record of its module was dropped."""
    chosen = _matching(model, (*frozen, *training))
    left = [node for node in nodes_of(model.graph) if is_of_onnx(node) and node not in chosen]
    groups: dict[ir.Value, list[ir.Node]] = {}
    for node in put_in_training_mode(left):
        mean = node.inputs[3] if len(node.inputs) > 3 else None
        if mean is not None and batch_norm_call(node) is None:
            groups.setdefault(origin(mean), []).append(node)
    if shared := next((nodes for nodes in groups.values() if len(nodes) > 1), None):
        yield (
            f"{counted(shared, 'batch norm')} read the same running statistic, and the file does not record "
            "whether one module was called several times or a tool merged equal values; each gets its own: pass "
            "--shared-statistics chain (shared_statistics=) for one module, or separate to confirm"
        )


def _mode(node: ir.Node, opset: int) -> bool | None:
    """Tests whether a forward batch norm is in training mode, or its statistics are computed; None for another."""
    if node.op_type in FORWARDS:
        return is_training(node)
    if (node.domain, node.op_type) == ("bngrad", "BatchNormalizationTraining"):
        return True
    if node.domain not in ("", "ai.onnx") or node.op_type != "BatchNormalization":
        return None
    if any(map(_is_computed, node.inputs[3:5])):
        return True
    if opset >= 14:
        return is_training_batch_norm(node)
    # Below opset 14 the number of outputs decides, and below 7 an attribute.
    attribute = node.attributes.get("is_test")
    return attribute.value == 0 if attribute is not None else any(value.name for value in node.outputs[1:])


def _is_computed(statistic: ir.Value | None) -> bool:
    """Tests whether the model computes a statistic, as PyTorch does for a module without running statistics."""
    node = None if statistic is None else origin(statistic, SAME_VALUES).producer()
    return node is not None and node.op_type != "Constant"


def _matching(model: ir.Model, patterns: Sequence[str]) -> set[ir.Node]:
    names = node_names(model) if patterns else {}
    return {node for pattern in patterns for node in matching(names, pattern)}
