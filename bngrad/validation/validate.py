"""`validate` checks a model's training graph and returns a report.

A forward model is differentiated by our builder, and for `ort` also by ONNX Runtime's gradient builder. A training
graph from ORT's builder is rewritten. The resulting graph for stock ONNX Runtime is compared as follows:

========== ==============================================================================================
ort        each node in lock-step with the values of ORT's kernels, the whole graph against the noise
           floor, and small models in float64
reference  the ops of ``bngrad`` in lock-step with NumPy in float64, the whole graph in float64, and the
           checks of `numeric`
numeric    the outputs of the forward model in float64, and all gradients against central differences of
           its loss
torch      the loss, outputs, gradients and new running statistics against PyTorch, which runs and
           differentiates the forward model in float64
========== ==============================================================================================

Only `ort` needs the oracle, and only `torch` needs PyTorch. Models that ORT's builder does not support are
compared as for `reference`, with a note.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bngrad.autodiff.recorded_stops import with_recorded_stops
from bngrad.autodiff.stop_gradient import stop_nodes
from bngrad.errors import InputError, OracleError
from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.nodes import all_nodes
from bngrad.inspection.graph_nodes import graph_nodes
from bngrad.inspection.identity import identity
from bngrad.inspection.model_warnings import mode_notes, model_warnings
from bngrad.io.files import as_ir
from bngrad.opset.functions import DOMAIN
from bngrad.passes.distribute.collectives import is_collective
from bngrad.runtime.device_session import require_available
from bngrad.runtime.environment import environment
from bngrad.validation.autograd import load_autograd
from bngrad.validation.checks import Checks, has_type
from bngrad.validation.find_subject import find_subject
from bngrad.validation.implementations import available_implementations
from bngrad.validation.lockstep import Tolerance
from bngrad.validation.loss_of_model import with_loss
from bngrad.validation.options import ValidateOptions
from bngrad.validation.report import Report
from bngrad.validation.sites import BATCH_NORMS, batch_norms_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.io.files import AnyModel
    from bngrad.options import Implementation
    from bngrad.oracle import Oracle
    from bngrad.validation.checks import Progress
    from bngrad.validation.subject import Subject


def validate(
    model: AnyModel,
    options: ValidateOptions = ValidateOptions(),
    progress: Progress = lambda _stage, _fraction: None,
) -> Report:
    """Checks a model; see `bngrad.validate`, which also issues the warnings of the report.

    Args:
        model: A forward model or a training graph; it is not modified.
        options: See `bngrad.validate`.
        progress: Called with the stage and its completed fraction (None if unknown).

    Raises:
        BngradError: See `bngrad.validate`.
    """
    require_available(options.device)
    if options.against == "torch":
        load_autograd()  # before the work, if PyTorch is missing
    implementations, notes = available_implementations(options.implementation, options.device)
    rtol, atol = options.rtol, options.atol
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
    progress("reading the model", None)
    own = as_ir(model)
    source, loss, more, warnings = with_loss(own, options)
    options = replace(options, loss=loss, loss_fn=None, prediction=None)
    notes += more
    with ExitStack() as stack:
        oracle = _Lazy(stack, progress)
        name = str(model) if isinstance(model, str | Path) else "model"
        warnings += model_warnings(source, options, wrt=options.wrt, default_wrt=not options.wrt)
        notes += mode_notes(source, options)
        if isinstance(options.rewritten, str | Path):
            notes.append(f"the training graph that was validated is {str(options.rewritten)!r}")
        progress("building the training graph", None)
        subject = find_subject(name, source, options, oracle)
        implementations, unsupported = _supported_implementations(implementations, subject.tested)
        report = Report(
            model=name,
            batch_norms=_batch_norms(subject.original),
            against=subject.against,
            implementations=list(implementations),
            seed=options.seed,
            inputs={name: list(value.shape) for name, value in subject.feeds.items()},
            notes=notes + subject.notes + unsupported,
            warnings=warnings,
            identity=identity(own, model if isinstance(model, str | Path) else None),
            environment=environment(options.device),
            instead_of=options.against if subject.against != options.against else "",
            other_references=_other_references(options.against, subject),
            nodes=graph_nodes(subject.original),
        )
        if (inside := batch_norms_inside(subject.original)) and subject.against in ("ort", "reference"):
            report.notes.append(
                f"{len(inside)} batch norms are in subgraphs or functions, where lock-step cannot check them: "
                f"{inside[0]!r}"
            )
        checks = Checks(subject, implementations, options, tolerance, oracle, progress)
        report.checks += checks.run()
        report.notes += checks.notes
    return report


class _Lazy:
    """The oracle, started on first use and stopped at the end of the validation."""

    def __init__(self, stack: ExitStack, progress: Progress) -> None:
        self._stack = stack
        self._progress = progress
        self._oracle: Oracle | None = None

    def __call__(self) -> Oracle:
        if self._oracle is None:
            from bngrad.oracle import Oracle  # noqa: PLC0415 - rarely needed

            try:
                self._oracle = self._stack.enter_context(Oracle(progress=self._progress))
            except OracleError as error:
                raise OracleError(f"{error}; --against numeric and reference need no oracle") from error
        return self._oracle


def _supported_implementations(
    implementations: Sequence[Implementation], model: ir.Model
) -> tuple[Sequence[Implementation], list[str]]:
    """Drops the implementations that cannot run a model, each with a note; refuses if none is left."""
    unsupported: dict[str, str] = {}
    if has_type(model, SIXTEEN_BITS):
        unsupported["python"] = "does not support float16 and bfloat16"
    if any(is_collective(node) for node in all_nodes(model)):
        unsupported["function"] = "does not support the collectives of a model built with --sync"
    supported = tuple(implementation for implementation in implementations if implementation not in unsupported)
    if not supported:
        (implementation,) = implementations
        raise InputError(f"the {implementation} implementation {unsupported[implementation]}; use native")
    left_out = [implementation for implementation in implementations if implementation in unsupported]
    return supported, [f"the {name} implementation was not checked: it {unsupported[name]}" for name in left_out]


def _other_references(against: str, subject: Subject) -> list[str]:
    """Returns the references that compare gradients otherwise, and accept the model."""
    if against == "torch":
        return ["reference", "ort"]
    if subject.forward is None:
        return ["ort"]
    by_ort = against != "ort" and not any(stop_nodes(with_recorded_stops(subject.forward)))
    return ["torch", *(["ort"] if by_ort else [])]


def _batch_norms(model: ir.Model) -> dict[str, int]:
    """Returns the number of batch-norm nodes of a training graph, by op type."""
    counts: dict[str, int] = {}
    for node in all_nodes(model):
        own = node.domain == DOMAIN and node.op_type.startswith("BatchNormalization")
        if own or (node.domain, node.op_type) in BATCH_NORMS:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts
