"""`finalize`: puts trained weights and running statistics into the forward model, for inference.

The state of a training loop goes into the model that the training graph was made from. Batch norms then use their
running statistics, Dropout becomes the identity, and the loss is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from onnx_ir.passes.common import (
    RemoveInitializersFromInputsPass,
    RemoveUnusedOpsetsPass,
)

from bngrad.arguments import require_names
from bngrad.autodiff.control_flow.prepare import fold_branches
from bngrad.autodiff.forward_info import new_buffers, update_forward_info
from bngrad.autodiff.prepare_forward import inlined
from bngrad.autodiff.stop_gradient import stops_to_identity
from bngrad.errors import InputError, ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.graph.nodes import all_nodes, describe, refuse_training_graph
from bngrad.graph.shapes import has_one_element
from bngrad.opset import batched_conv, depthwise, max_pool_grad
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL
from bngrad.passes.check import check
from bngrad.passes.pipeline import foreign_nodes
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import raise_opset
from bngrad.passes.quantize.deploy import deploy
from bngrad.passes.quantize.form import quantizable
from bngrad.passes.quantize.round_values import round_values
from bngrad.passes.workarounds.all_axes import AllAxesPass
from bngrad.passes.workarounds.matrix_vector import MatrixVectorPass
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.training.to_inference import refuse_batch_statistics, refuse_random, to_inference
from bngrad.training.trained_values import put_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.passes.quantize.quantization import Quantization

    Array = NDArray[Any]

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_BATCH_NORMS = {("", "BatchNormalization"), BATCH_NORM_INTERNAL}
_WITHOUT_MODE = {*batched_conv.SIGNATURES, *depthwise.SIGNATURES, max_pool_grad.NAME}
"""The ops of ``bngrad`` that compute the same in inference mode, as products of derivatives have them."""
_ANY_OPSET, _OLDEST = 1, 7
"""An inference model keeps the opset of the forward model, if ONNX Runtime supports that."""


class Finalized(NamedTuple):
    """An inference model, and which of its values are new."""

    model: ir.Model
    weights: list[str]
    """The initializers with a new value."""
    kept: list[str]
    """The weights and statistics that kept their values."""


def finalize(
    model: ir.Model,
    weights: Mapping[str, Array],
    *,
    outputs: Sequence[str] | None = None,
    random: bool = False,
    from_state: bool = False,
    batch_statistics: bool = False,
    quantization: Quantization | None = None,
) -> Finalized:
    """Returns a copy of a forward model for inference, with new weights and running statistics.

    Args:
        model: The forward model; it is not changed.
        weights: New values by the names of the training graph's inputs, or of its outputs that are new running
            statistics: see `put_values`.
        outputs: Names of the outputs to keep; by default all but running statistics and losses.
        random: Whether outputs may depend on random nodes.
        from_state: Whether the values are of the state of a training step, which has 16-bit weights as float.
        batch_statistics: Whether batch norms in primitives may use the statistics of the batch.
        quantization: What the step of the state rounds, whose ranges and learned scales are among the
            values; None for nothing.

    Raises:
        InputError: A name is unknown or ambiguous, a value has a wrong shape or type, or ``outputs`` is a string.
        ModelError: The model is a training graph, no output is left, or one depends on a random node or, unless
            accepted, on the statistics of the batch.
    """
    rounding = () if quantization is None else quantization.state
    result = to_inference_model(
        inlined_copy(model),
        {name: array for name, array in weights.items() if name not in rounding},
        outputs=outputs,
        random=random,
        from_state=from_state,
        batch_statistics=batch_statistics,
    )
    if quantization is not None:
        result = result._replace(model=quantizable(result.model))
        round_values(result.model, quantization, ranges=weights)
        deploy(result.model, quantization)
    update_forward_info(result.model)
    check(result.model, model)
    return result


def inlined_copy(model: ir.Model, *, in_place: bool = False) -> ir.Model:
    """Returns a copy of a forward model without functions.

    Args:
        model: The forward model.
        in_place: Whether the model itself may be returned, as nothing else needs it.

    Raises:
        ModelError: The model is a training graph, or a call of a function does not match.
    """
    refuse_training_graph(model, products=False)
    refuse_other_systems(model)
    copy = inlined(model)
    return model.clone() if copy is model and not in_place else copy


def to_inference_model(
    model: ir.Model,
    weights: Mapping[str, Array],
    *,
    outputs: Sequence[str] | None,
    random: bool = False,
    from_state: bool = False,
    batch_statistics: bool = False,
) -> Finalized:
    """Does the same as `finalize`, without a copy and without a check of the result.

    Args:
        model: A forward model without functions; it is changed.
        weights: See `finalize`; so are the other arguments.
        outputs: See `finalize`.
        random: See `finalize`.
        from_state: See `finalize`.
        batch_statistics: See `finalize`.

    Raises:
        InputError: See `finalize`.
        ModelError: See `finalize`.
    """
    require_names(outputs=outputs)
    model = raise_opset(model, _ANY_OPSET)
    stops_to_identity(model)
    fold_branches(model)  # as in the training graph, so that the same nodes read a running statistic
    names = Names(model)
    updated = put_values(model, weights, names, from_state=from_state)
    InferTypesPass()(model)
    _keep_outputs(model, outputs)
    MatrixVectorPass()(model)
    AllAxesPass()(model)
    # Nodes that only the loss needs may be invalid in inference mode.
    remove_unused_nodes(model)
    to_inference(model, names)
    remove_unused_nodes(model)
    if not random:
        refuse_random(model)
    if not batch_statistics:
        refuse_batch_statistics(model)
    model = raise_opset(model, _OLDEST)
    # Trained values are constants of the inference model.
    RemoveInitializersFromInputsPass()(model)
    _drop_unused_inputs(model.graph)
    RemoveUnusedOpsetsPass()(model)
    return Finalized(model, updated, sorted(set(model.graph.initializers) - set(updated)))


def refuse_other_systems(model: ir.Model) -> None:
    """Refuses batch norms that would stay in training mode.

    Raises:
        ModelError: There is one; the first is named.
    """
    of_bngrad = [node for node in all_nodes(model) if node.domain == DOMAIN and node.op_type not in _WITHOUT_MODE]
    for node in (*foreign_nodes(model), *of_bngrad):
        if (node.domain, node.op_type) not in _BATCH_NORMS and not _is_inference(node):
            raise ModelError(
                f"{describe(node)} cannot be put into inference mode; expected ONNX's BatchNormalization: give "
                "the forward model as it was before bngrad rewrite, or export it to ONNX's ops"
            )


def _is_inference(node: ir.Node) -> bool:
    mode = node.attributes.get("is_training")
    return "Inference" in node.op_type or (mode is not None and not mode.value)


def _keep_outputs(model: ir.Model, names: Sequence[str] | None) -> None:
    graph = model.graph
    outputs = {str(value.name): value for value in graph.outputs}
    if names:
        for name in names:
            if name not in outputs:
                raise InputError(unknown_name(name, outputs, "an output"))
        kept = [outputs[name] for name in dict.fromkeys(names)]
    else:
        left_out = running_outputs(model) | losses(graph) | {outputs.get(name) for name in new_buffers(model)}
        kept = [value for value in outputs.values() if value not in left_out]
    if not kept:
        raise ModelError(
            f"the model has no output but losses and running statistics ({listed(outputs)}); name what to keep "
            "with --keep (outputs=), after making it an output of the forward model"
        )
    graph.outputs.clear()
    graph.outputs.extend(kept)


def running_outputs(model: ir.Model) -> set[ir.Value]:
    """The outputs of batch norms that only training has."""
    nodes = [node for node in all_nodes(model) if (node.domain, node.op_type) in _BATCH_NORMS]
    return {value for node in nodes for value in node.outputs[1:]}


def losses(graph: ir.Graph) -> set[ir.Value]:
    """The outputs that are losses: float scalars, and values that depend on a loss op.

    Without these, the loss is the only float output of one element, as in `differentiate`.
    """
    depending = {node.outputs[0] for node in graph if node.domain == "" and node.op_type in _LOSSES}
    for node in graph:
        if any(value in depending for value in node.inputs):
            depending.update(node.outputs)
    computed = [v for v in graph.outputs if v.producer() is not None and v.dtype in (None, *SUPPORTED_DTYPES)]
    losses = {v for v in computed if v in depending or (v.shape is not None and len(v.shape) == 0)}
    if losses:
        return losses
    single = [v for v in computed if has_one_element(v)]
    return set(single) if len(single) == 1 else set()


def _drop_unused_inputs(graph: ir.Graph) -> None:
    """Removes unused inputs, such as the labels of a loss."""
    for value in list(graph.inputs):
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
