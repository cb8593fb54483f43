"""`differentiate`: from a forward model and a loss to a training graph for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, RemoveUnusedOpsetsPass

from bngrad.arguments import require_choice, require_names
from bngrad.autodiff.metadata import write_training_graph
from bngrad.autodiff.prepare import make_inputs, new_statistics, running_statistics, with_modes
from bngrad.autodiff.running_statistics import SharedStatistics
from bngrad.autodiff.training_graph import Training, training_graph
from bngrad.autodiff.walk import refuse_taken_names
from bngrad.errors import InputError, ModelError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.nodes import describe
from bngrad.inspection.model_warnings import model_warnings, running_variance_warnings
from bngrad.io.files import in_memory
from bngrad.opset.functions import MIN_OPSET
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL
from bngrad.passes.check import check
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.pipeline import for_target

if TYPE_CHECKING:
    from collections.abc import Sequence

Builder = Literal["bngrad", "ort"]
"""The gradient builder: the rules of this package, or ONNX Runtime's own."""

DifferentiationTarget = Literal["stock", "training", "ort"]
"""Where a training graph runs.

``stock``: any ONNX Runtime. ``training``: a training build, with the batch norms as ops of ``bngrad``. ``ort``: a
consumer of ORT's dialect, without ops of ``bngrad``.
"""


RunningVariance = Literal["biased", "unbiased"]
"""The variance of a batch of M elements that updates the running variance.

``biased``: the mean of the squared deviations, ONNX's rule. ``unbiased``: that times M / max(M - 1, 1), the rule
of PyTorch, TensorFlow and MIOpen.
"""


class Differentiated(NamedTuple):
    """A training graph, its names, and the remarks of the builder."""

    model: ir.Model
    """Its metadata has the other fields but for the notes, see `bngrad.read_training_graph`."""
    loss: str
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the name of the input."""
    running_statistics: dict[str, str]
    """The output that holds a new running statistic, by the name of the input that takes it in the next step."""
    warnings: list[str]
    """What is probably not intended."""
    notes: list[str]
    """What was changed in the forward model."""


def differentiate(
    model: ir.Model,
    *,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Sequence[str] = (),
    running_variance: RunningVariance | None = None,
    shared_statistics: SharedStatistics = "separate",
    builder: Builder = "bngrad",
    target: DifferentiationTarget = "stock",
    functions: bool = True,
    fuse: bool = True,
) -> Differentiated:
    """Makes a training graph of a forward model.

    Args:
        model: The forward model; it is not changed.
        loss: The name of a float scalar; by default the only one among the outputs.
        wrt: Names of inputs and initializers; by default the weights.
        frozen: Names of batch norms, or patterns, that use their running statistics.
        training: The same for those that use the batch's statistics.
        running_variance: Which variance ONNX's batch norms give the running variance; by default
            `default_running_variance`. Batch norms of other systems keep their system's.
        shared_statistics: How batch norms that read the same running statistic are separated.
        builder: The gradient builder.
        target: Where the graph runs.
        functions: Whether to embed the definitions of the ops, so that the graph runs without the library.
        fuse: Whether, for ``stock``, to fuse the gradient of a ReLU with that of the batch norm in front of it.

    Raises:
        InputError: An option has an unknown value, a string is given where a sequence of names is expected, or the
            unbiased running variance is asked for with target ``ort``, whose dialect cannot express it.
        ModelError: A name is wrong, or the model cannot be differentiated.
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient, or cannot run on the target.
        OracleError: ORT's builder cannot be installed, or fails.
    """
    _require_options(running_variance, shared_statistics, builder, target)
    require_names(wrt=wrt, frozen=frozen, training=training)
    unbiased = target != "ort" and (running_variance or default_running_variance(model)) == "unbiased"
    if builder == "ort":
        made, notes = _by_ort(model, loss, wrt, frozen, training, shared_statistics)
    else:
        made, notes = (
            training_graph(
                model,
                loss=loss,
                wrt=wrt,
                frozen=frozen,
                training=training,
                shared_statistics=shared_statistics,
                unbiased_running_var=unbiased,
            ),
            [],
        )
    if target == "ort":
        _refuse_overwritten(made.model, "--target stock or training")
        result = _in_ort_dialect(made.model, model)
    else:
        result, _ = for_target(
            made.model,
            target=target,
            functions=functions,
            fuse=fuse,
            unbiased_running_var=unbiased,
            source=model,
        )
    warnings = model_warnings(
        model, wrt=list(made.gradients), default_wrt=not wrt, frozen=frozen, training=training
    )
    if target == "ort" and running_variance is None and made.running_statistics:
        warnings += running_variance_warnings(model)
    write_training_graph(
        result,
        loss=made.loss,
        gradients=made.gradients,
        running_statistics=made.running_statistics,
        warnings=warnings,
    )
    return Differentiated(result, made.loss, made.gradients, made.running_statistics, warnings, notes)


def default_running_variance(model: ir.Model) -> RunningVariance:
    """The rule of the system that exported a forward model: PyTorch's, or else ONNX's."""
    return "unbiased" if model.producer_name == "pytorch" else "biased"


def _require_options(running_variance: str | None, shared_statistics: str, builder: str, target: str) -> None:
    if running_variance is not None:
        require_choice("running variance", running_variance, get_args(RunningVariance))
    require_choice("builder", builder, get_args(Builder))
    require_choice("target", target, get_args(DifferentiationTarget))
    require_choice("shared_statistics", shared_statistics, get_args(SharedStatistics))
    if running_variance == "unbiased" and target == "ort":
        raise InputError(
            "target 'ort' cannot have the unbiased running variance: com.microsoft.BatchNormInternal has ONNX's "
            "biased one; use target stock or training"
        )


def _by_ort(
    model: ir.Model,
    loss: str | None,
    wrt: Sequence[str] | None,
    frozen: Sequence[str],
    training: Sequence[str],
    shared_statistics: SharedStatistics,
) -> tuple[Training, list[str]]:
    """The training graph by ORT's gradient builder; what it gets wrong is refused before."""
    from bngrad.oracle import Oracle, prepare_forward  # noqa: PLC0415 - only where it is needed

    model, _ = with_modes(model, MIN_OPSET, frozen=frozen, training=training, shared_statistics=shared_statistics)
    _refuse_overwritten(model, "--builder bngrad")
    prepared = prepare_forward(ir.to_proto(in_memory(model)), loss, wrt)
    forward = prepared.model.graph
    refuse_taken_names((name for node in forward.node for name in (*node.input, *node.output)), prepared.wrt)
    with Oracle() as oracle:
        result, gradients = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt)
    inputs = {str(value.name): value for value in result.graph.inputs}
    for name, array in prepared.values.items():
        # The builder takes weights as inputs without a value; here the value is their default.
        inputs[name].const_value = ir.tensor(array, name=name)
        result.graph.register_initializer(inputs[name])
    statistics = [value for value in running_statistics(result) if not value.is_graph_input()]
    make_inputs(result.graph, statistics)
    outputs, running = set(result.graph.outputs), new_statistics(result)
    for old, new in running.items():
        # The builder gives no types to what nothing reads.
        new.type, new.shape = new.type or old.type, new.shape or old.shape
    result.graph.outputs.extend(value for value in running.values() if value not in outputs)
    return Training(
        result,
        prepared.loss,
        gradients,
        {str(old.name): str(new.name) for old, new in running.items()},
    ), list(prepared.notes)


def _refuse_overwritten(model: ir.Model, remedy: str) -> None:
    """Refuses a running statistic that several nodes read: ORT's BatchNormInternal overwrites it in place."""
    for node in model.graph:
        if is_training_batch_norm(node) or (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            for value in node.inputs[3:5]:
                others = [describe(n) for n, _ in value.uses() if n is not node] if value is not None else []
                if value is not None and others:
                    raise ModelError(
                        f"the running statistic {value.name!r} of {describe(node)} is read by {others[0]} too, "
                        f"and ONNX Runtime's own batch norm overwrites it in place: use {remedy}"
                    )


def _in_ort_dialect(model: ir.Model, source: ir.Model) -> ir.Model:
    """Inlines the ops of ``bngrad``, such as the gradient of a frozen batch norm, as standard ops."""
    EmbedFunctionsPass(functions=True)(model)
    InlinePass()(model)
    RemoveUnusedOpsetsPass()(model)
    check(model, source)
    return model
