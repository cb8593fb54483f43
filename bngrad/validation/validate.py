"""`validate`: a model in, a report out.

A forward model is differentiated by ONNX Runtime's own gradient builder first; a training graph that the builder
made is taken as it is. Then:

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

from bngrad import native
from bngrad.errors import InputError, LibraryError, ModelError
from bngrad.files import as_ir
from bngrad.opset import DOMAIN
from bngrad.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.nodes import all_nodes
from bngrad.passes.pipeline import rewrite
from bngrad.runtime import PROVIDERS, Provider
from bngrad.validation.double import whole_in_float64
from bngrad.validation.float64 import evaluate
from bngrad.validation.inputs import bind_dimensions, draw_inputs
from bngrad.validation.lockstep import Tolerance, lock_step
from bngrad.validation.noise import noise_floor
from bngrad.validation.numeric import central_differences
from bngrad.validation.report import Report
from bngrad.validation.sites import find_sites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from bngrad.files import AnyModel
    from bngrad.oracle import Oracle

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


def validate(
    model: AnyModel,
    *,
    against: Against = "ort",
    provider: Provider | Literal["all"] = "all",
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
        rewritten: The rewritten training graph to validate; by default what `rewrite` makes of the original.
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
    """
    if against not in get_args(Against):
        raise InputError(f"against {against!r} does not exist; expected one of {', '.join(get_args(Against))}")
    providers, notes = _providers(provider)
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
    with ExitStack() as stack:
        oracle = _Lazy(stack, progress)
        name = str(model) if isinstance(model, str | Path) else "model"
        subject = _subject(name, as_ir(model), rewritten, inputs, dims, seed, loss, wrt, oracle)
        report = Report(
            model=name,
            batch_norms=_batch_norms(subject.original),
            against=against,
            providers=list(providers),
            seed=seed,
            inputs={name: list(value.shape) for name, value in subject.feeds.items()},
            notes=notes + subject.notes,
        )
        if against == "numeric":
            _numeric(report, subject, seed, progress)
        else:
            _lock_step(report, subject, providers, against, tolerance, oracle, progress)
            if against == "ort":
                _noise(report, subject, seed, oracle, progress)
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
            native.library_path()
        except LibraryError as error:
            return ("python", "function"), [f"the native provider was not validated: {error}"]
        return PROVIDERS, []
    if provider not in PROVIDERS:
        raise InputError(f"provider {provider!r} does not exist; expected all, {', '.join(PROVIDERS)}")
    if provider == "native":
        native.library_path()
    return (provider,), []


def _subject(
    name: str,
    model: ir.Model,
    rewritten: AnyModel | None,
    inputs: Mapping[str, Array] | None,
    dims: Mapping[str, int] | None,
    seed: int,
    loss: str | None,
    wrt: Sequence[str] | None,
    oracle: Callable[[], Oracle],
) -> _Subject:
    notes: list[str] = []
    values: dict[str, Array] = {}
    model = model.clone()
    bind_dimensions(model, dims or {}, inputs or {})
    if _batch_norms(model):
        if wrt is not None:
            raise InputError(f"{name} is a training graph already; --wrt is for forward models")
        original = model
    else:
        original, loss, values, notes = _differentiated(model, loss, wrt, oracle)
    result = rewrite(original, target="training").model
    if rewritten is not None:
        result = as_ir(rewritten)
    # The shapes are those that the rewrite inferred: labels need a number of classes.
    feeds = draw_inputs(result, given={**values, **(inputs or {})}, seed=seed)
    return _Subject(name, original, result, feeds, loss, notes)


def _differentiated(
    model: ir.Model, loss: str | None, wrt: Sequence[str] | None, oracle: Callable[[], Oracle]
) -> tuple[ir.Model, str, dict[str, Array], list[str]]:
    """The training graph of a forward model, by ORT's gradient builder."""
    from bngrad.oracle import prepare_forward  # noqa: PLC0415 - only where it is needed

    if not any(node.op_type == "BatchNormalization" for node in all_nodes(model)):
        ours = any(node.domain == DOMAIN for node in all_nodes(model))
        raise ModelError(
            "the model is rewritten already; give the original, and this one with --rewritten"
            if ours
            else "the model has no batch norm; there is nothing to rewrite or to validate"
        )
    prepared = prepare_forward(_proto(model), loss, wrt)
    training = ir.from_proto(oracle().build_gradient(prepared.model, prepared.loss, prepared.wrt))
    return training, prepared.loss, prepared.values, list(prepared.notes)


def _lock_step(
    report: Report,
    subject: _Subject,
    providers: Sequence[Provider],
    against: Against,
    tolerance: Tolerance | None,
    oracle: _Lazy,
    progress: Progress,
) -> None:
    sites, inside = find_sites(subject.original)
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
            sites,
            from_ort if against == "ort" else from_numpy,
            providers=providers,
            against=against,
            tolerance=tolerance,
            progress=lambda done, total: progress("batch norms in lock-step", done / total),
        )
    )


def _noise(report: Report, subject: _Subject, seed: int, oracle: _Lazy, progress: Progress) -> None:
    library = native.library_path() if "native" in report.providers else None
    report.checks.append(
        noise_floor(
            oracle(),
            subject.original,
            subject.rewritten,
            subject.feeds,
            library=library,
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
