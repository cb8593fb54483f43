"""`differentiate`: from a forward model and a loss to a training graph for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from onnx_ir.passes.common import InlinePass, RemoveUnusedOpsetsPass

from bngrad.arguments import require_choice, require_names
from bngrad.autodiff.batch_norm_modes import AUTO
from bngrad.autodiff.forward_info import KEY as FORWARD_INFO
from bngrad.autodiff.forward_info import read_forward_info
from bngrad.autodiff.metadata import write_training_graph
from bngrad.autodiff.running_statistics import SharedStatistics
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import InputError
from bngrad.graph.framework import framework_of
from bngrad.graph.name_messages import listed
from bngrad.inspection.model_warnings import mode_notes, model_warnings, running_variance_warnings
from bngrad.oracle.refusals import refuse_overwritten
from bngrad.passes.check import check
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.decomposed.recognize import candidates_of
from bngrad.passes.pipeline import for_target, require_sync
from bngrad.training.distribute import check_ranks, passes_of_a_rank
from bngrad.training.losses import append_loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir

    from bngrad.training.loss_functions import LossFunction

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
    """The output that holds a new running statistic or other buffer, by the name of the input that takes it in the
    next step."""
    warnings: list[str]
    """What is probably not intended."""
    notes: list[str]
    """What was changed in the forward model."""
    target: str | None
    """The input with the target of a loss function; None if the loss is the model's own."""
    state: Mapping[str, ir.TensorProtocol]
    """The initial weights and running statistics, by the names of their inputs."""


def differentiate(
    model: ir.Model,
    *,
    loss: str | None = None,
    loss_fn: str | LossFunction | None = None,
    prediction: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Sequence[str] | Literal["auto"] = (),
    running_variance: RunningVariance | None = None,
    shared_statistics: SharedStatistics | None = None,
    builder: Builder = "bngrad",
    target: DifferentiationTarget = "stock",
    functions: bool = True,
    fuse: bool = True,
    defaults: bool = True,
    sync: bool = False,
) -> Differentiated:
    """Makes a training graph of a forward model.

    Args:
        model: The forward model; it is not changed.
        loss: The name of a float scalar; by default the only one among the outputs.
        loss_fn: A loss function to append to a model without a loss; see `append_loss`.
        prediction: What it is computed of; by default the only float output.
        wrt: Names of inputs and initializers; by default the weights.
        frozen: Names of batch norms, or patterns, that use their running statistics.
        training: The same for those that use the batch's statistics; or ``auto`` for those that PyTorch's exporter
            records to have been in training mode, which are by default, and to refuse a model without the record.
        running_variance: Which variance ONNX's batch norms give the running variance; by default
            `default_running_variance`. Batch norms of other systems keep their system's.
        shared_statistics: How batch norms that read the same running statistic are separated.
        builder: The gradient builder.
        target: Where the graph runs.
        functions: Whether to embed the definitions of the ops, so that the graph runs without the library.
        fuse: Whether, for ``stock``, to fuse the gradient of a ReLU with that of the batch norm in front of it.
        defaults: Whether weights and running statistics keep their values as defaults of their inputs.
        sync: Whether the graph is that of one rank of a distributed run: see `bngrad.passes.distribute`.

    Raises:
        InputError: An option has an unknown value, a string is given where a sequence of names is expected, or the
            unbiased running variance is asked for with target ``ort``, whose dialect cannot express it; or a loss
            is named along with a loss function, or a prediction without one; or ``sync`` is asked for with another
            target than ``stock`` or another builder than ``bngrad``.
        ModelError: A name is wrong, or the model cannot be differentiated; or with ``sync`` the ranks would not
            compute what one process does.
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient, or cannot run on the target.
        OracleError: ORT's builder cannot be installed, or fails.
    """
    _require_options(running_variance, shared_statistics, builder, target)
    require_sync(sync, target=target, builder=builder)
    training = [training] if training == AUTO else training
    require_names(wrt=wrt, frozen=frozen, training=training)
    require_one_loss(loss, loss_fn, prediction)
    source, input_of_loss = model, None
    warnings: list[str] = []
    known = read_forward_info(model)
    if known is not None:
        loss = known.loss if loss is None and loss_fn is None else loss
        wrt = known.weights if wrt is None else wrt
    if loss_fn is not None:
        model, loss, input_of_loss, warnings = append_loss(model, loss_fn, prediction=prediction)
    unbiased = target != "ort" and (running_variance or default_running_variance(model)) == "unbiased"
    if builder == "ort":
        from bngrad.oracle.differentiate import ort_training_graph  # noqa: PLC0415 - only where it is needed

        made, notes = ort_training_graph(
            model, loss=loss, wrt=wrt, frozen=frozen, training=training, shared_statistics=shared_statistics
        )
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
                share=sync,
            ),
            [],
        )
    if target == "ort":
        refuse_overwritten(made.model, "--target stock or training")
        result = in_ort_dialect(made.model, source)
    else:
        result, _ = for_target(
            made.model,
            target=target,
            functions=functions,
            fuse=fuse,
            unbiased_running_var=unbiased,
            source=source,
            distribute=passes_of_a_rank(made) if sync else [],
        )
    if known is None:  # else the exporter knows what is a weight, and what is shared
        warnings += model_warnings(
            source,
            wrt=list(made.gradients),
            default_wrt=not wrt,
            frozen=frozen,
            training=training,
            shared_statistics=shared_statistics,
        )
        notes += mode_notes(source, frozen=frozen, training=training)
    recognized = [one.name for one in candidates_of(made.model) if one.taken and one.kind == "forward"]
    if recognized:
        notes.append(
            f"{listed(recognized)}: a batch norm in primitives has no running statistics in the training step, "
            "and no inference mode; step and finalize accept it with --batch-statistics (batch_statistics=True)"
        )
    if target == "ort" and running_variance is None and made.running_statistics:
        warnings += running_variance_warnings(source)
    result.metadata_props.pop(FORWARD_INFO, None)
    running = made.running_statistics | (dict(known.buffers) if known is not None else {})
    write_training_graph(
        result, loss=made.loss, gradients=made.gradients, running_statistics=running, warnings=warnings
    )
    state = _state(result.graph, [*made.gradients, *running])
    if sync:
        warnings += check_ranks(model, result.graph, made, running, state, in_primitives=bool(recognized))
    if not defaults:
        remove_defaults(result.graph, state)
    return Differentiated(result, made.loss, made.gradients, running, warnings, notes, input_of_loss, state)


def default_running_variance(model: ir.Model) -> RunningVariance:
    """The rule of the system that exported a forward model: PyTorch's, or else ONNX's."""
    return "unbiased" if framework_of(model) == "pytorch" else "biased"


def require_one_loss(loss: str | None, loss_fn: str | LossFunction | None, prediction: str | None) -> None:
    """Refuses options that contradict each other about the loss.

    Raises:
        InputError: A loss and a loss function are given, or a prediction without a loss function.
    """
    if loss is not None and loss_fn is not None:
        raise InputError(
            f"loss {loss!r} is named, and a loss function is to be appended; expected either --loss (loss=) or "
            "--loss-fn (loss_fn=)"
        )
    if prediction is not None and loss_fn is None:
        raise InputError(
            f"prediction {prediction!r} is named without a loss function; add --loss-fn (loss_fn=), or name the "
            "model's own loss with --loss (loss=)"
        )


def _state(graph: ir.Graph, names: Iterable[str]) -> dict[str, ir.TensorProtocol]:
    """The values of inputs that have a default."""
    given = {name: graph.initializers[name].const_value for name in names if name in graph.initializers}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def remove_defaults(graph: ir.Graph, names: Iterable[str]) -> None:
    """Leaves inputs that have to be fed: languages other than Python drop or refuse what is fed for the others."""
    for name in names:
        graph.initializers.pop(name).const_value = None


def _require_options(
    running_variance: str | None, shared_statistics: str | None, builder: str, target: str
) -> None:
    if running_variance is not None:
        require_choice("running variance", running_variance, get_args(RunningVariance))
    require_choice("builder", builder, get_args(Builder))
    require_choice("target", target, get_args(DifferentiationTarget))
    if shared_statistics is not None:
        require_choice("shared_statistics", shared_statistics, get_args(SharedStatistics))
    if running_variance == "unbiased" and target == "ort":
        raise InputError(
            "target 'ort' cannot have the unbiased running variance: com.microsoft.BatchNormInternal has ONNX's "
            "biased one; use target stock or training"
        )


def in_ort_dialect(model: ir.Model, source: ir.Model) -> ir.Model:
    """Inlines the ops of ``bngrad``, such as the gradient of a frozen batch norm, as standard ops."""
    EmbedFunctionsPass(functions=True)(model)
    InlinePass()(model)
    RemoveUnusedOpsetsPass()(model)
    check(model, source)
    return model
