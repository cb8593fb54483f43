"""`differentiate`: from a forward model and a loss to a training graph for a target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from onnx_ir.passes.common import InlinePass, RemoveUnusedOpsetsPass

from bngrad.autodiff.forward_info import KEY as FORWARD_INFO
from bngrad.autodiff.forward_info import read_forward_info
from bngrad.autodiff.metadata import write_training_graph
from bngrad.autodiff.own_rules import has_own_rules
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import InputError
from bngrad.graph.framework import framework_of
from bngrad.graph.name_messages import listed
from bngrad.inspection.model_warnings import mode_notes, model_warnings, running_variance_warnings
from bngrad.oracle.refusals import refuse_overwritten
from bngrad.passes.check import check
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.decomposed.recognize import candidates_of
from bngrad.passes.optimize.memory_budget import within
from bngrad.passes.pipeline import for_target, require_budget_for_stock, require_sync
from bngrad.training.distribute import check_ranks, passes_of_a_rank
from bngrad.training.losses import append_loss
from bngrad.training.options import DifferentiateOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Unpack

    import onnx_ir as ir

    from bngrad.autodiff.training_graph import Training
    from bngrad.options import RunningVariance
    from bngrad.passes.quantize.quantization import Quantization
    from bngrad.training.options import DifferentiateKeywords


class Differentiated(NamedTuple):
    """A training graph, its names, and the remarks of the builder."""

    model: ir.Model
    """Its metadata has the other fields except the notes, see `bngrad.read_training_graph`."""
    loss: str
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the name of the input."""
    running_statistics: dict[str, str]
    """The output that holds a new running statistic or other buffer, by the name of the input that takes it in the
    next step."""
    warnings: list[str]
    """Properties of the model that are probably not intended."""
    notes: list[str]
    """Changes that were made to the forward model."""
    target: str | None
    """The input with the target of a loss function; None if the loss is the model's own."""
    state: Mapping[str, ir.TensorProtocol]
    """The initial weights and running statistics, by the names of their inputs."""
    loss_scale: str | None = None
    """The input that takes the factor of all gradients, a float scalar; None if they have none."""


def differentiate(
    model: ir.Model,
    options: DifferentiateOptions = DifferentiateOptions(),
    *,
    last: bool = True,
    mixed: ir.DataType | None = None,
    quantization: Quantization | None = None,
    **changes: Unpack[DifferentiateKeywords],
) -> Differentiated:
    """Builds the training graph of a forward model.

    Args:
        model: The forward model; it is not changed.
        options: See `bngrad.differentiate`.
        last: Whether nothing is added to the graph; else it has to be checked, see `for_target`.
        mixed: The type of 16 bits of mixed precision, see `training_graph`; for the builder ``bngrad``.
        quantization: What is rounded, see `training_graph`; for the builder ``bngrad``.
        changes: Changes of the options.

    Raises:
        InputError: An option has an unknown value, or options contradict each other; the unbiased running variance
            is asked for with target ``ort``, whose dialect cannot express it; or ``sync`` with another target than
            ``stock`` or another builder than ``bngrad``.
        ModelError: A name is wrong, or the model cannot be differentiated; or with ``sync`` the ranks would not
            compute what one process does.
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient, or cannot run on the target.
        OracleError: ORT's builder cannot be installed, or fails.
    """
    options = replace(options, **changes)
    target, sync = options.target, options.sync
    require_budget_for_stock(options.memory, target=target)
    if options.running_variance == "unbiased" and target == "ort":
        raise InputError(
            "target 'ort' cannot have the unbiased running variance: com.microsoft.BatchNormInternal has ONNX's "
            "biased one; use target stock or training"
        )
    require_sync(sync, target=target, builder=options.builder)
    options.require_one_loss()
    source, input_of_loss = model, None
    warnings: list[str] = []
    exported = read_forward_info(model)
    if exported is not None:
        loss = exported.loss if options.loss is None and options.loss_fn is None else options.loss
        options = replace(options, loss=loss, wrt=exported.weights if options.wrt is None else options.wrt)
    if options.loss_fn is not None:
        model, loss, input_of_loss, warnings = append_loss(model, options.loss_fn, prediction=options.prediction)
        options = replace(options, loss=loss, loss_fn=None, prediction=None)
    unbiased = target != "ort" and (options.running_variance or default_running_variance(model)) == "unbiased"
    training, notes = _training_graph(model, options, unbiased=unbiased, mixed=mixed, quantization=quantization)
    recognized = [norm.name for norm in candidates_of(training.model) if norm.taken and norm.kind == "forward"]
    if target == "ort":
        refuse_overwritten(training.model, "--target stock or training")
        result = in_ort_dialect(training.model, source)
    else:
        result, _ = within(
            options.memory,
            lambda kept: for_target(
                training.model,
                target=target,
                functions=options.functions,
                fuse=options.fuse,
                conv_grad=options.conv_grad,
                channels_last=options.channels_last,
                memory=kept,
                unbiased_running_var=unbiased,
                source=source,
                custom_ops=has_own_rules(),
                distribute=passes_of_a_rank(training) if sync else [],
                in_place=not isinstance(options.memory, int),  # a number of bytes takes two graphs
                last=last,
            ),
        )
    if exported is None:  # else the exporter recorded the weights and the shared values
        warnings += model_warnings(source, options, wrt=list(training.gradients), default_wrt=not options.wrt)
        notes += mode_notes(source, options)
    if recognized:
        notes.append(
            f"{listed(recognized)}: a batch norm in primitives has no running statistics in the training step, "
            "and no inference mode; step and finalize accept it with --batch-statistics (batch_statistics=True)"
        )
    if target == "ort" and options.running_variance is None and training.running_statistics:
        warnings += running_variance_warnings(source)
    result.metadata_props.pop(FORWARD_INFO, None)
    running = training.running_statistics | (dict(exported.buffers) if exported is not None else {})
    write_training_graph(
        result, loss=training.loss, gradients=training.gradients, running_statistics=running, warnings=warnings
    )
    state = _state(result.graph, [*training.gradients, *running])
    if sync:
        warnings += check_ranks(model, result.graph, training, running, state, in_primitives=bool(recognized))
    if not options.defaults:
        remove_defaults(result.graph, state)
    return Differentiated(
        result,
        training.loss,
        training.gradients,
        running,
        warnings,
        notes,
        input_of_loss,
        state,
        training.loss_scale,
    )


def _training_graph(
    model: ir.Model,
    options: DifferentiateOptions,
    *,
    unbiased: bool,
    mixed: ir.DataType | None,
    quantization: Quantization | None,
) -> tuple[Training, list[str]]:
    """The training graph of a builder, and its notes."""
    options = replace(options, running_variance="unbiased" if unbiased else "biased")
    if options.builder == "ort":
        from bngrad.oracle.differentiate import ort_training_graph  # noqa: PLC0415 - only where it is needed

        return ort_training_graph(model, options)
    graph = training_graph(
        model,
        options,
        unbiased_running_var=unbiased,
        share=options.sync,
        mixed=mixed,
        quantization=quantization,
    )
    return graph, []


def default_running_variance(model: ir.Model) -> RunningVariance:
    """The rule of the system that exported a forward model: PyTorch's, or else ONNX's."""
    return "unbiased" if framework_of(model) == "pytorch" else "biased"


def _state(graph: ir.Graph, names: Iterable[str]) -> dict[str, ir.TensorProtocol]:
    """The values of inputs that have a default."""
    defaults = {name: graph.initializers[name].const_value for name in names if name in graph.initializers}
    return {name: tensor for name, tensor in defaults.items() if tensor is not None}


def remove_defaults(graph: ir.Graph, names: Iterable[str]) -> None:
    """Removes defaults, so that inputs must be fed: other languages drop or refuse feeds for inputs with one."""
    for name in names:
        graph.initializers.pop(name).const_value = None


def in_ort_dialect(model: ir.Model, source: ir.Model) -> ir.Model:
    """Inlines the ops of ``bngrad``, such as the gradient of a frozen batch norm, as standard ops."""
    EmbedFunctionsPass(functions=True)(model)
    InlinePass()(model)
    RemoveUnusedOpsetsPass()(model)
    check(model, source)
    return model
