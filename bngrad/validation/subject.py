"""What `validate` looks at: a training graph, what it is compared with, and the inputs of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bngrad.autodiff.prepare import prepare
from bngrad.autodiff.selection import find_loss, find_wrt
from bngrad.autodiff.training_graph import Training, training_graph
from bngrad.errors import InputError, ModelError, OracleError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.nodes import all_nodes
from bngrad.io.files import as_ir, in_memory
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.lower import LOWERINGS
from bngrad.passes.pipeline import for_target, rewrite, unknown_to_stock
from bngrad.training.differentiate import default_running_variance
from bngrad.validation.gradients import described_training_graph, gradients_of
from bngrad.validation.inputs import bind_dimensions, draw_inputs, feeds_of, symbolic_dimensions
from bngrad.validation.unbiased import unbias_running_variances

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.autodiff.running_statistics import SharedStatistics
    from bngrad.io.files import AnyModel
    from bngrad.oracle import Oracle, Prepared
    from bngrad.training.differentiate import Builder, RunningVariance

    Array = NDArray[Any]

Against = Literal["ort", "reference", "numeric"]


class Options(NamedTuple):
    """How a forward model is differentiated: what `differentiate` takes, under the same names."""

    loss: str | None = None
    wrt: Sequence[str] | None = None
    frozen: Sequence[str] = ()
    training: Sequence[str] = ()
    running_variance: RunningVariance | None = None
    shared_statistics: SharedStatistics | None = None

    @property
    def unbiased(self) -> bool:
        """Whether running variances take in the unbiased variance of the batch."""
        return self.running_variance == "unbiased"

    def graph(self, model: ir.Model) -> Training:
        """Our training graph of a forward model, in ORT's dialect, which has the biased running variance."""
        options = self._asdict()
        del options["running_variance"]
        options["shared_statistics"] = self.shared_statistics or "separate"
        return training_graph(model, **options)


class Given(NamedTuple):
    """The values that the caller gave for what is drawn otherwise."""

    inputs: Mapping[str, Array]
    dims: Mapping[str, int]
    seed: int


class Subject(NamedTuple):
    """What is validated."""

    forward: ir.Model | None
    """The forward model as the user has it; None where only a training graph is at hand."""
    original: ir.Model
    """A training graph in ORT's dialect: by ORT's builder, or ours before anything was lowered."""
    tested: ir.Model
    """The graph under test, which stock ONNX Runtime runs."""
    feeds: dict[str, Array]
    loss: str | None
    gradients: dict[str, str]
    """The outputs that are gradients, by the names of what they are with respect to."""
    against: Against
    """What it is compared with; `ort` becomes `reference` where ONNX Runtime's builder cannot be asked."""
    other_builder: bool
    """Whether one builder made the original, and another one the graph under test."""
    options: Options
    """How the forward model is differentiated."""
    notes: list[str]


def find_subject(
    name: str,
    model: AnyModel,
    against: Against,
    builder: Builder,
    rewritten: AnyModel | None,
    given: Given,
    options: Options,
    oracle: Callable[[], Oracle],
) -> Subject:
    """Finds out what a model is, and makes of it what `validate` compares.

    Args:
        name: What to call the model.
        model: A forward model, or a training graph; it is not changed.
        against: What to compare with.
        builder: Whose training graph of a forward model to validate.
        rewritten: The training graph to validate; by default one is made.
        given: What the caller gave of the inputs.
        options: How to differentiate a forward model.
        oracle: ONNX Runtime's training build, started when it is asked for.

    Raises:
        InputError: An argument is wrong.
        ModelError: The model cannot be validated.
        OracleError: The oracle is needed, and cannot be installed.
    """
    source = in_memory(as_ir(model))
    tested = None if rewritten is None else _for_stock(in_memory(as_ir(rewritten)))
    described = described_training_graph(source)
    is_made = described is not None or any(n.domain == DOMAIN for n in all_nodes(source))
    if is_made or any(_is_training_op(node) for node in all_nodes(source)):
        for field, value in options._asdict().items():
            if value and field != "loss":
                option = field.replace("_", "-")
                raise InputError(f"{name} is a training graph already; --{option} is for forward models")
        loss = options.loss or (None if described is None else described.loss)
        return _of_training_graph(source, tested, against, given, loss)
    if tested is not None:
        options = _as_made(options, tested)
    if options.running_variance is None:
        options = options._replace(running_variance=default_running_variance(source))
    return _of_forward_model(source, tested, against, builder, given, options, oracle)


def _as_made(options: Options, tested: ir.Model) -> Options:
    """The options that a given training graph was made with, where they show and nobody said otherwise."""
    if options.wrt is None:
        options = options._replace(wrt=list(gradients_of(tested)) or None)
    nodes = [
        node for node in all_nodes(tested) if node.op_identifier()[:2] == (DOMAIN, "BatchNormalizationTraining")
    ]
    if options.running_variance is None and nodes:
        unbiased = all(node.attributes.get_int("unbiased_running_var", 0) for node in nodes)
        options = options._replace(running_variance="unbiased" if unbiased else "biased")
    return options


def _for_stock(model: ir.Model) -> ir.Model:
    """A training graph; one that was made for a training build computes the same when it is lowered."""
    return for_target(model, target="stock", functions=True)[0] if unknown_to_stock(model) else model


def _is_training_op(node: ir.Node) -> bool:
    """Whether a node is of ORT's training dialect: a batch norm, or what is lowered."""
    key = (node.domain, node.op_type)
    return key in (BATCH_NORM_INTERNAL, BATCH_NORM_GRAD) or key in LOWERINGS


def _of_training_graph(
    model: ir.Model, tested: ir.Model | None, against: Against, given: Given, loss: str | None
) -> Subject:
    original = model.clone()
    bind_dimensions(original, given.dims, given.inputs)
    if not any(_is_training_op(node) for node in all_nodes(model)):
        if against != "numeric":
            raise ModelError(
                "the model is rewritten already; give the original, and this one with --rewritten, or validate "
                "this one alone with --against numeric"
            )
        tested = tested or model
    tested = tested or rewrite(model).model
    # The shapes are those that the rewrite inferred: labels need a number of classes.
    shapes = tested.clone()
    symbols = symbolic_dimensions(shapes)
    bind_dimensions(shapes, {name: n for name, n in given.dims.items() if name in symbols}, given.inputs)
    feeds = draw_inputs(shapes, given=given.inputs, seed=given.seed)
    return Subject(
        forward=None,
        original=original,
        tested=tested,
        feeds=feeds,
        loss=loss,
        gradients=gradients_of(model),
        against=against,
        other_builder=False,
        options=Options(),
        notes=[],
    )


def _of_forward_model(
    model: ir.Model,
    tested: ir.Model | None,
    against: Against,
    builder: Builder,
    given: Given,
    options: Options,
    oracle: Callable[[], Oracle],
) -> Subject:
    bound = model.clone()
    bind_dimensions(bound, given.dims, feeds_of(bound, given.inputs))
    made = options.graph(bound)
    original = made.model
    notes: list[str] = []
    values: dict[str, Array] = {}
    by_ort = against == "ort" or builder == "ort"
    if by_ort:
        running = oracle()
        try:
            prepared, original = _by_ort(bound, made, options, running)
        except (ModelError, OracleError) as error:
            if builder == "ort":
                raise
            notes.append(
                "compared with NumPy and central differences, for ONNX Runtime's gradient builder does not take "
                f"the model: {error}"
            )
            against, by_ort = "reference", False
        else:
            notes += prepared.notes
            values = prepared.values
    if not by_ort and tested is None and options.wrt is None:
        made, more = _with_data_inputs(bound, made, options)
        original, notes = made.model, notes + more
    if tested is None and builder == "ort":
        tested, _ = for_target(original, target="stock", unbiased_running_var=options.unbiased)
    elif tested is None:
        # From the model with its symbols: one graph has to serve every size.
        training = options._replace(loss=made.loss, wrt=list(made.gradients)).graph(model).model
        if by_ort:
            _name_statistics(training, original)
        tested, _ = for_target(training, target="stock", unbiased_running_var=options.unbiased, source=model)
    if options.unbiased:
        unbias_running_variances(original.graph)
    bind_dimensions(made.model, {}, given.inputs)
    feeds = draw_inputs(made.model, given={**values, **given.inputs}, seed=given.seed)
    return Subject(
        forward=model,
        original=original,
        tested=tested,
        feeds={**values, **feeds},
        loss=made.loss,
        gradients=made.gradients,
        against=against,
        other_builder=by_ort and builder == "bngrad",
        options=options,
        notes=notes,
    )


def _by_ort(model: ir.Model, made: Training, options: Options, oracle: Oracle) -> tuple[Prepared, ir.Model]:
    """The training graph of a forward model by ORT's gradient builder, of the same loss by the same values.

    Raises:
        ModelError: It gets the model wrong.
        OracleError: It fails on the model.
    """
    from bngrad.oracle import prepare_forward  # noqa: PLC0415 - only where it is needed

    if options.shared_statistics == "chain":
        raise ModelError("it gives each batch norm its own running statistics, and --shared-statistics is chain")
    prepared = prepare_forward(
        model,
        made.loss,
        list(made.gradients),
        frozen=options.frozen,
        training=options.training,
        # Constants would be folded in float, which the graphs in float64 would differ by.
        frozen_statistics_as_inputs=True,
    )
    return prepared, oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model


def _with_data_inputs(model: ir.Model, made: Training, options: Options) -> tuple[Training, list[str]]:
    """Our training graph with the gradients by the float inputs that are data, too; and which it cannot have."""
    others = {*made.gradients, *made.running_statistics}
    data = [
        str(value.name)
        for value in model.graph.inputs
        if value.dtype in SUPPORTED_DTYPES and value.const_value is None and value.name not in others
    ]
    if not data:
        return made, []
    prepared = prepare(model, frozen=options.frozen, training=options.training)
    loss = find_loss(prepared, made.loss)
    found, notes = list(made.gradients), []
    for name in data:
        try:
            find_wrt(prepared, [name], loss)
        except ModelError as error:
            notes.append(f"the gradient with respect to input {name!r} is not checked: {error}")
        else:
            found.append(name)
    try:
        return options._replace(loss=made.loss, wrt=found).graph(model), notes
    except ModelError as error:
        return made, [f"the gradients with respect to the data inputs are not checked: {error}"]


def _name_statistics(training: ir.Model, original: ir.Model) -> None:
    """Gives the saved statistics of our training graph the names that ORT's has for them."""
    saved = {_reads(n): n.outputs[3:5] for n in original.graph if n.op_type == BATCH_NORM_INTERNAL[1]}
    for node in training.graph:
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            for value, theirs in zip(node.outputs[3:5], saved.get(_reads(node), ()), strict=False):
                value.name = theirs.name


def _reads(batch_norm: ir.Node) -> tuple[str | None, ...]:
    """The names of its X and running mean, which tell it from every other."""
    return tuple(value.name for value in (batch_norm.inputs[0], batch_norm.inputs[3]) if value is not None)
