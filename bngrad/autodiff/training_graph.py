"""Builds the training graph of a forward model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.body_statistics import return_statistics_of_bodies, statistics_of_bodies
from bngrad.autodiff.chosen_stops import refuse_stopped_loss
from bngrad.autodiff.ghost_batches import refuse_ghost_batches
from bngrad.autodiff.loss_and_wrt import find_loss, find_wrt, reaching_values
from bngrad.autodiff.new_statistics import NEW_STATISTICS, new_statistics, running_statistics
from bngrad.autodiff.prepare_forward import OPSET, make_inputs, prepare
from bngrad.autodiff.rules.normalization import UNBIASED
from bngrad.autodiff.share_loss import share_loss
from bngrad.autodiff.stop_gradient import stopped, stops_to_identity
from bngrad.autodiff.walk import add_gradients
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.gc_pause import without_collections
from bngrad.graph.name_messages import listed
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.subgraphs import nodes_of
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from bngrad.options import ForwardOptions
from bngrad.passes.precision.mixed_precision import MINIMUM_OPSET, MixedPrecisionPass
from bngrad.passes.precision.sixteen_bit_ops import SIXTEEN_BIT_OPS
from bngrad.passes.quantize.round_values import round_values
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.passes.workarounds.sigmoid import compute_by_exp, enlarged_sigmoids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from bngrad.options import ForwardKeywords
    from bngrad.passes.quantize.quantization import Quantization


class Training(NamedTuple):
    """A training graph, and the names that a training loop needs."""

    model: ir.Model
    loss: str
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the name of the input."""
    running_statistics: dict[str, str]
    """The output that holds a new running statistic, by the name of the input that takes it in the next step."""
    loss_scale: str | None = None
    """The input that takes the factor of all gradients, a float scalar; None if they have none."""


@without_collections()
def training_graph(
    model: ir.Model,
    options: ForwardOptions = ForwardOptions(),
    *,
    unbiased_running_var: bool = False,
    share: bool = False,
    mixed: ir.DataType | None = None,
    quantization: Quantization | None = None,
    **changes: Unpack[ForwardKeywords],
) -> Training:
    """Returns a copy of a forward model with the gradients of a loss as further outputs, in ORT's dialect.

    Weights and running statistics become graph inputs with their values as defaults; the new running statistics
    become outputs. Frozen batch norms, which ORT's dialect cannot express, are ops of ``bngrad``.

    Args:
        model: The forward model; it is not changed.
        options: The options of `bngrad.differentiate`; ``unbiased_running_var`` is the one below.
        unbiased_running_var: Whether the running variances become unbiased later, which changes the gradient of a
            loss that reads them.
        share: Whether to replace the loss by this rank's share of the loss of the whole batch; see `share_loss`.
        mixed: The type of 16 bits of mixed precision; with float16 the gradients are multiplied by ``loss_scale``.
        quantization: What is rounded; the ranges are further running statistics, and the learned scales weights.
        changes: Options that replace those in ``options``.

    Raises:
        ModelError: A name is wrong, the model cannot be differentiated, or mixed precision changes nothing.
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient.
    """
    options = replace(options, **changes)
    result = prepare(model, options, OPSET if mixed is None else max(OPSET, MINIMUM_OPSET[mixed]))
    for node in _batch_norms(result) if unbiased_running_var else ():
        node.meta[UNBIASED] = True
    target = find_loss(result, options.loss)
    refuse_stopped_loss(target, options.stop_gradient)
    if not target.is_graph_output():
        result.graph.outputs.append(target)
    names = [str(value.name) for value in find_wrt(result, options.wrt, target)]
    if mixed is not None:
        name = str(target.name)
        _to_mixed_precision(result, mixed)
        target = find_loss(result, name)
    if quantization is not None:
        new_ranges = round_values(result, quantization, stop=stopped)
        result.meta[NEW_STATISTICS] = {**result.meta.get(NEW_STATISTICS, {}), **new_ranges}
        _require_needed(result, quantization.scales, target)
        names += quantization.scales.values()
    if share:
        refuse_ghost_batches(result.graph, "--sync (sync=)")
        target = share_loss(result, target, names)
    statistics = [*running_statistics(result), *statistics_of_bodies(result.graph)]
    make_inputs(result.graph, [*find_wrt(result, names, target), *statistics])
    scale = _add_loss_scale(result) if mixed == ir.DataType.FLOAT16 else None
    seed = None if scale is None else _seed(result, scale, target)
    sigmoids = enlarged_sigmoids(result)
    batch_norms = _batch_norms(result)
    gradients = add_gradients(result, target, find_wrt(result, names, target), seed)
    return_statistics_of_bodies(result, batch_norms)
    compute_by_exp(result, sigmoids)
    stops_to_identity(result)
    remove_unused_nodes(result)
    for domain in sorted({node.domain for node in nodes_of(result.graph)} & {MICROSOFT, DOMAIN}):
        result.opset_imports.setdefault(domain, 1)
    running = {str(old.name): str(new.name) for old, new in new_statistics(result).items()}
    return Training(
        result, str(target.name), gradients, running, loss_scale=None if scale is None else str(scale.name)
    )


def _batch_norms(model: ir.Model) -> list[ir.Node]:
    return [node for node in nodes_of(model.graph) if (node.domain, node.op_type) == BATCH_NORM_INTERNAL]


def _require_needed(model: ir.Model, scales: Mapping[str, str], loss: ir.Value) -> None:
    """Refuses learned scales of tensors that a loss does not depend on."""
    reaching = reaching_values(loss)
    if others := [tensor for tensor, name in scales.items() if model.graph.initializers[name] not in reaching]:
        raise ModelError(
            f"the loss does not depend on {listed(others)}, so there is no scale to learn; leave out "
            "--learned-scales (learned_scales=), or the outputs that need it"
        )


def _to_mixed_precision(model: ir.Model, dtype: ir.DataType) -> None:
    """Lets a prepared model compute in 16 bits.

    Raises:
        ModelError: No node of it does.
    """
    if not MixedPrecisionPass(dtype)(model).modified:
        products = ", ".join(name for (_, name), op in SIXTEEN_BIT_OPS.items() if op.casts)
        raise ModelError(
            f"the model has no node in float32 that mixed precision computes in {dtype.name.lower()}: {products}; "
            "expected a model with one of them in float32, or precision model"
        )


def _add_loss_scale(model: ir.Model) -> ir.Value:
    """Adds an input for the factor of the gradients."""
    scale = ir.val(Names(model).fresh("scaler/scale"), ir.DataType.FLOAT, [])
    model.graph.inputs.append(scale)
    return scale


def _seed(model: ir.Model, scale: ir.Value, loss: ir.Value) -> ir.Value:
    """Returns a scalar in the type and rank of a loss."""
    make = NodesAtEnd(model.graph, Names(model), "bngrad_seed")
    return make.of_rank_of(make.cast(scale, dtype_of(loss)), loss)
