"""`validate`: a model in, a report out.

A forward model is differentiated by ONNX Runtime's own gradient builder, and by ours; a training graph that ORT's
builder made is taken as it is, and rewritten. Then what stock ONNX Runtime runs is compared with:

========== ==============================================================================================
ort        lock-step with the values that ORT's kernels had, the whole graph against the noise floor, and
           small models in float64
reference  lock-step with values that NumPy computed in float64, and the whole graph in float64; no ORT
numeric    every gradient against central differences of the loss in float64
========== ==============================================================================================
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import onnx_ir as ir

from bngrad import native_library
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import InputError, LibraryError, ModelError
from bngrad.files import as_ir
from bngrad.model_warnings import model_warnings
from bngrad.opset import DOMAIN
from bngrad.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.lower import LOWERINGS
from bngrad.passes.nodes import all_nodes
from bngrad.passes.pipeline import for_target, rewrite, unknown_to_stock
from bngrad.runtime import PROVIDERS, Provider
from bngrad.validation.common_values import CommonValues
from bngrad.validation.double import whole_in_float64
from bngrad.validation.float64 import evaluate
from bngrad.validation.inputs import bind_dimensions, draw_inputs, symbolic_dimensions
from bngrad.validation.lockstep import Tolerance, lock_step
from bngrad.validation.noise import noise_floor
from bngrad.validation.numeric import central_differences
from bngrad.validation.report import Report
from bngrad.validation.sites import find_sites
from bngrad.validation.steps import find_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from bngrad.autodiff.differentiate import Builder
    from bngrad.files import AnyModel
    from bngrad.oracle import Oracle, Prepared

    Array = NDArray[Any]
    Progress = Callable[[str, float | None], None]

Against = Literal["ort", "reference", "numeric"]

CAPTURE_BYTES = 512 << 20
"""What is held of the original's inner values at a time."""


class _Subject(NamedTuple):
    """What is validated."""

    name: str
    original: ir.Model
    """A training graph in ORT's dialect."""
    rewritten: ir.Model
    feeds: dict[str, Array]
    loss: str | None
    notes: list[str]
    own_builder: bool
    """Whether the gradients are by our rules, and not by a rewrite of ORT's."""


def validate(
    model: AnyModel,
    *,
    against: Against = "ort",
    provider: Provider | Literal["all"] = "all",
    builder: Builder = "bngrad",
    rewritten: AnyModel | None = None,
    inputs: Mapping[str, Array] | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    progress: Progress = lambda _stage, _fraction: None,
) -> Report:
    """Validates the rewrite of a model.

    Args:
        model: A forward model with a loss, or a training graph that ORT's gradient builder made.
        against: ``ort``, ``reference`` or ``numeric``.
        provider: Which implementations the lock-step runs.
        builder: Whose training graph of a forward model to validate: ours, or ORT's after `rewrite`.
        rewritten: The training graph to validate; by default what `differentiate` or `rewrite` makes.
        inputs: Arrays by input name; the others are drawn.
        dims: Extents of symbolic dimensions.
        seed: For everything drawn.
        rtol: With ``atol``, a plain tolerance for the lock-step instead of the derived bounds.
        atol: See ``rtol``; either alone counts the other as zero.
        loss: The float scalar to differentiate, where a forward model has more than one.
        wrt: What to differentiate a forward model by; by default its weights.
        progress: Called with what is being done, and the fraction of it or None.

    Raises:
        InputError: An argument is wrong.
        ModelError: The model has no batch norm, or the oracle cannot differentiate it.
        OracleError: The oracle cannot be installed, or fails.
        LibraryError: The native provider was asked for, and its library is missing.

    Warns:
        BngradWarning: The model is probably not what is to be trained, see `bngrad.differentiate`.
    """
    if against not in get_args(Against):
        raise InputError(f"against {against!r} does not exist; expected one of {', '.join(get_args(Against))}")
    providers, notes = _providers(provider)
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
    with ExitStack() as stack:
        oracle = _Lazy(stack, progress)
        name = str(model) if isinstance(model, str | Path) else "model"
        source = as_ir(model)
        warnings = model_warnings(source, wrt=wrt, default_wrt=not wrt)
        subject = _subject(name, source, builder, rewritten, inputs, dims, seed, loss, wrt, oracle)
        report = Report(
            model=name,
            batch_norms=_batch_norms(subject.original),
            against=against,
            providers=list(providers),
            seed=seed,
            inputs={name: list(value.shape) for name, value in subject.feeds.items()},
            notes=notes + subject.notes,
            warnings=warnings,
        )
        if against == "numeric":
            _numeric(report, subject, seed, progress)
        else:
            _lock_step(report, subject, providers, against, tolerance, oracle, progress)
            if against == "ort":
                _noise(report, subject, providers, seed, oracle, progress)
            progress("whole graphs in float64", None)
            report.checks.append(whole_in_float64(subject.original, subject.rewritten, subject.feeds))
    return report


class _Lazy:
    """The oracle, started when it is first needed and stopped with the validation."""

    def __init__(self, stack: ExitStack, progress: Progress) -> None:
        self._stack = stack
        self._progress = progress
        self._oracle: Oracle | None = None

    def __call__(self) -> Oracle:
        if self._oracle is None:
            from bngrad.oracle import Oracle  # noqa: PLC0415 - only where it is needed

            self._oracle = self._stack.enter_context(Oracle(progress=self._progress))
        return self._oracle


def _providers(provider: Provider | Literal["all"]) -> tuple[tuple[Provider, ...], list[str]]:
    if provider == "all":
        try:
            native_library.library_path()
        except LibraryError as error:
            return ("python", "function"), [f"the native provider was not validated: {error}"]
        return PROVIDERS, []
    if provider not in PROVIDERS:
        raise InputError(f"provider {provider!r} does not exist; expected all, {', '.join(PROVIDERS)}")
    if provider == "native":
        native_library.library_path()
    return (provider,), []


def _subject(
    name: str,
    model: ir.Model,
    builder: Builder,
    rewritten: AnyModel | None,
    inputs: Mapping[str, Array] | None,
    dims: Mapping[str, int] | None,
    seed: int,
    loss: str | None,
    wrt: Sequence[str] | None,
    oracle: Callable[[], Oracle],
) -> _Subject:
    bound = model.clone()
    bind_dimensions(bound, dims or {}, inputs or {})
    own_builder = False
    if any(_is_training_op(node) for node in all_nodes(bound)):
        if wrt is not None:
            raise InputError(f"{name} is a training graph already; --wrt is for forward models")
        prepared, original = None, bound
    else:
        prepared, original = _differentiated(bound, loss, wrt, oracle)
        own_builder = builder == "bngrad"
    if rewritten is not None:
        tested = as_ir(rewritten)
        if unknown_to_stock(tested):  # made for a training build; what it computes is the same
            tested, _ = for_target(tested, target="stock", functions=True)
    elif own_builder and prepared is not None:
        # From the model with its symbols: one graph has to serve every size.
        tested = _by_our_builder(model, original, prepared.loss, prepared.wrt)
    else:
        tested = rewrite(model if prepared is None else original).model
    values = prepared.values if prepared is not None else {}
    # The shapes are those that the rewrite inferred: labels need a number of classes.
    shapes = tested.clone()
    symbols = symbolic_dimensions(shapes)
    bind_dimensions(shapes, {name: n for name, n in (dims or {}).items() if name in symbols}, inputs or {})
    feeds = draw_inputs(shapes, given={**values, **(inputs or {})}, seed=seed)
    return _Subject(
        name,
        original,
        tested,
        feeds,
        prepared.loss if prepared is not None else loss,
        list(prepared.notes) if prepared is not None else [],
        own_builder,
    )


def _is_training_op(node: ir.Node) -> bool:
    """Whether a node is of ORT's training dialect: a batch norm, or what is lowered."""
    key = (node.domain, node.op_type)
    return key in (BATCH_NORM_INTERNAL, BATCH_NORM_GRAD) or key in LOWERINGS


def _differentiated(
    model: ir.Model, loss: str | None, wrt: Sequence[str] | None, oracle: Callable[[], Oracle]
) -> tuple[Prepared, ir.Model]:
    """The training graph of a forward model, by ORT's gradient builder."""
    from bngrad.oracle import prepare_forward  # noqa: PLC0415 - only where it is needed

    if any(node.domain == DOMAIN for node in all_nodes(model)):
        raise ModelError("the model is rewritten already; give the original, and this one with --rewritten")
    prepared = prepare_forward(_proto(model), loss, wrt)
    return prepared, ir.from_proto(oracle().build_gradient(prepared.model, prepared.loss, prepared.wrt))


def _by_our_builder(model: ir.Model, original: ir.Model, loss: str, wrt: Sequence[str]) -> ir.Model:
    """Our training graph, whose saved statistics have the names that the original has for them."""
    result = training_graph(model, loss=loss, wrt=wrt).model
    saved = {_reads(n): n.outputs[3:5] for n in original.graph if n.op_type == BATCH_NORM_INTERNAL[1]}
    for node in result.graph:
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            for value, theirs in zip(node.outputs[3:5], saved.get(_reads(node), ()), strict=False):
                value.name = theirs.name
    return for_target(result, target="stock", functions=True)[0]


def _reads(batch_norm: ir.Node) -> tuple[str | None, ...]:
    """The names of its X and running mean, which tell it from every other."""
    return tuple(value.name for value in (batch_norm.inputs[0], batch_norm.inputs[3]) if value is not None)


def _lock_step(
    report: Report,
    subject: _Subject,
    providers: Sequence[Provider],
    against: Against,
    tolerance: Tolerance | None,
    oracle: _Lazy,
    progress: Progress,
) -> None:
    common = CommonValues(subject.original, subject.rewritten, same_builder=not subject.own_builder)
    sites, inside = find_sites(subject.original, common)
    steps = find_steps(subject.original, common, sites)
    if inside:
        report.notes.append(
            f"{len(inside)} batch norms are in subgraphs or functions, lock-step cannot look there: {inside[0]!r}"
        )
    original = _proto(subject.original)

    def from_ort(names: Sequence[str]) -> Iterator[dict[str, Array]]:
        return oracle().capture(original, subject.feeds, names, CAPTURE_BYTES)

    def from_numpy(names: Sequence[str]) -> Iterator[dict[str, Array]]:
        values = evaluate(original, subject.feeds, names)
        yield {
            name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in values.items()
        }

    report.checks.append(
        lock_step(
            subject.rewritten,
            [*sites, *steps] if against == "ort" else sites,
            from_ort if against == "ort" else from_numpy,
            providers=providers,
            against=against,
            tolerance=tolerance,
            progress=lambda done, total: progress("nodes in lock-step", done / total),
        )
    )


def _noise(
    report: Report,
    subject: _Subject,
    providers: Sequence[Provider],
    seed: int,
    oracle: _Lazy,
    progress: Progress,
) -> None:
    report.checks.append(
        noise_floor(
            oracle(),
            subject.original,
            subject.rewritten,
            subject.feeds,
            providers=providers,
            seed=seed,
            progress=lambda done, total: progress("whole graphs against the noise floor", done / total),
        )
    )


def _numeric(report: Report, subject: _Subject, seed: int, progress: Progress) -> None:
    loss = subject.loss or _only_scalar(subject.original)
    report.checks.append(
        central_differences(
            _proto(subject.rewritten),
            subject.feeds,
            loss=loss,
            seed=seed,
            progress=lambda done, total: progress("central differences", done / total),
        )
    )


def _only_scalar(model: ir.Model) -> str:
    """The loss of a training graph that nobody named."""
    scalars = [v for v in model.graph.outputs if v.shape is not None and len(v.shape) == 0]
    if len(scalars) != 1:
        names = ", ".join(str(value.name) for value in model.graph.outputs)
        raise InputError(f"which output is the loss? name it with --loss; the outputs are {names}")
    return str(scalars[0].name)


def _batch_norms(model: ir.Model) -> dict[str, int]:
    """How many nodes of ORT's batch norm a model has, by op type."""
    counts: dict[str, int] = {}
    for node in all_nodes(model):
        if (node.domain, node.op_type) in (BATCH_NORM_INTERNAL, BATCH_NORM_GRAD):
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def _proto(model: ir.Model) -> onnx.ModelProto:
    return ir.to_proto(model)
