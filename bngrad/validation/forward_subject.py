"""Prepares a forward model for the checks: differentiates it with our builder, and with ORT's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad.autodiff.loss_and_wrt import find_loss, find_wrt
from bngrad.autodiff.prepare_forward import prepare
from bngrad.autodiff.running_statistics import has_recorded_chain
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import ModelError, OracleError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL
from bngrad.passes.pipeline import for_target
from bngrad.validation.inputs import bind_dimensions, draw_inputs, feeds_of
from bngrad.validation.subject import Subject
from bngrad.validation.unbiased import unbias_running_variances

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.autodiff.training_graph import Training
    from bngrad.options import ForwardOptions
    from bngrad.oracle import Oracle, Prepared
    from bngrad.validation.options import ValidateOptions

    Array = NDArray[Any]


def forward_model_subject(
    model: ir.Model,
    tested: ir.Model | None,
    options: ValidateOptions,
    oracle: Callable[[], Oracle],
) -> Subject:
    """Differentiates a forward model and prepares it for the checks.

    Args:
        model: The forward model. It is not modified.
        tested: The training graph to check; None to build one.
        options: The options of the validation.
        oracle: Returns ONNX Runtime's training build, started on first use.

    Raises:
        InputError: An argument is invalid.
        ModelError: The model cannot be differentiated.
        OracleError: The oracle is needed, but cannot be installed, or fails with ``builder`` ort.
    """
    inputs, against, builder = options.inputs or {}, options.against, options.builder
    bound = model.clone()
    bind_dimensions(bound, options.dims or {}, feeds_of(bound, inputs), options.batch_size)
    training = training_graph(bound, options)
    original = training.model
    notes: list[str] = []
    values: dict[str, Array] = {}
    by_ort = against == "ort" or builder == "ort"
    if by_ort:
        running = oracle()
        try:
            prepared, original = _by_ort(bound, training, options, running)
        except (ModelError, OracleError) as error:
            if builder == "ort":
                raise
            notes.append(
                "compared with NumPy and central differences, because ONNX Runtime's gradient builder does not "
                f"support the model: {error}"
            )
            against, by_ort = "reference", False
        else:
            notes += prepared.notes
            values = prepared.values
    if not by_ort and tested is None and options.wrt is None:
        training, more = _with_data_inputs(bound, training, options)
        original, notes = training.model, notes + more
    if tested is None and builder == "ort":
        tested, _ = for_target(original, target="stock", unbiased_running_var=options.unbiased)
    elif tested is None:
        # From the model with its symbolic dimensions, so that the graph works for all sizes.
        graph = training_graph(model, options, loss=training.loss, wrt=list(training.gradients)).model
        if by_ort:
            _name_statistics(graph, original)
        tested, _ = for_target(graph, target="stock", unbiased_running_var=options.unbiased, source=model)
    if options.unbiased:
        unbias_running_variances(original.graph)
    bind_dimensions(training.model, {}, inputs, options.batch_size)
    feeds = draw_inputs(training.model, arrays={**values, **inputs}, seed=options.seed)
    return Subject(
        forward=model,
        original=original,
        tested=tested,
        feeds={**values, **feeds},
        loss=training.loss,
        gradients=training.gradients,
        against=against,
        other_builder=by_ort and builder == "bngrad",
        options=options,
        notes=notes,
    )


def _by_ort(
    model: ir.Model, training: Training, options: ForwardOptions, oracle: Oracle
) -> tuple[Prepared, ir.Model]:
    """Returns ORT's training graph of a forward model, for the same loss and values as ours.

    Raises:
        ModelError: ORT's builder is known to compute wrong gradients for the model.
        OracleError: ORT's builder fails on the model.
    """
    from bngrad.oracle import prepare_forward  # noqa: PLC0415 - rarely needed

    if options.shared_statistics == "chain":
        raise ModelError("it does not support --shared-statistics chain")
    if options.shared_statistics is None and has_recorded_chain(model):
        raise ModelError("it does not support running statistics that several batch norms update")
    prepared = prepare_forward(
        model,
        training.loss,
        list(training.gradients),
        options=options,
        # As constants they would be folded in float, and the graphs in float64 would differ.
        frozen_statistics_as_inputs=True,
    )
    return prepared, oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model


def _with_data_inputs(model: ir.Model, training: Training, options: ForwardOptions) -> tuple[Training, list[str]]:
    """Adds the gradients with respect to float inputs that are data; also returns notes on those that fail."""
    others = {*training.gradients, *training.running_statistics}
    data = [
        str(value.name)
        for value in model.graph.inputs
        if value.dtype in SUPPORTED_DTYPES and value.const_value is None and value.name not in others
    ]
    if not data:
        return training, []
    prepared = prepare(model, options)
    loss = find_loss(prepared, training.loss)
    names, notes = list(training.gradients), []
    for name in data:
        try:
            find_wrt(prepared, [name], loss)
        except ModelError as error:
            notes.append(f"the gradient with respect to input {name!r} is not checked: {error}")
        else:
            names.append(name)
    try:
        return training_graph(model, options, loss=training.loss, wrt=names), notes
    except ModelError as error:
        return training, [f"the gradients with respect to the data inputs are not checked: {error}"]


def _name_statistics(training: ir.Model, original: ir.Model) -> None:
    """Renames the saved statistics of our training graph as in ORT's."""
    saved = {_key(n): n.outputs[3:5] for n in original.graph if n.op_type == BATCH_NORM_INTERNAL[1]}
    for node in training.graph:
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            for value, theirs in zip(node.outputs[3:5], saved.get(_key(node), ()), strict=False):
                value.name = theirs.name


def _key(batch_norm: ir.Node) -> tuple[str | None, ...]:
    """Returns the names of X and the running mean, which identify a batch norm."""
    return tuple(value.name for value in (batch_norm.inputs[0], batch_norm.inputs[3]) if value is not None)
