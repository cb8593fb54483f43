"""`validate`: a model in, a report out.

A forward model is differentiated by our builder, and for `ort` by ONNX Runtime's own gradient builder too; a
training graph that ORT's builder made is taken as it is, and rewritten. What stock ONNX Runtime runs is compared:

========== ==============================================================================================
ort        lock-step with the values that ORT's kernels had, the whole graph against the noise floor, and
           small models in float64
reference  lock-step of the ops of ``bngrad`` with values that NumPy computed in float64, the whole graph in
           float64, and what `numeric` does
numeric    the outputs of the user's forward model in float64, and every gradient against central
           differences of its loss
========== ==============================================================================================

Only `ort` needs the oracle. What its builder cannot be asked is compared as `reference` does, with a note.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import onnx_ir as ir

from bngrad.arguments import require_choice, require_names
from bngrad.autodiff.running_statistics import SharedStatistics
from bngrad.errors import InputError, LibraryError, OracleError
from bngrad.graph.nodes import all_nodes
from bngrad.inspection.model_warnings import model_warnings
from bngrad.io.files import as_ir
from bngrad.opset.functions import DOMAIN
from bngrad.runtime import native_library
from bngrad.runtime.session import PROVIDERS, Provider
from bngrad.training.differentiate import Builder, RunningVariance
from bngrad.validation.checks import Checks, has_type
from bngrad.validation.lockstep import Tolerance
from bngrad.validation.report import Report
from bngrad.validation.sites import BATCH_NORMS, batch_norms_inside
from bngrad.validation.subject import Against, Given, Options, find_subject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.io.files import AnyModel
    from bngrad.oracle import Oracle
    from bngrad.validation.checks import Progress

    Array = NDArray[Any]

_SIXTEEN_BITS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


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
    frozen: Sequence[str] = (),
    training: Sequence[str] = (),
    running_variance: RunningVariance | None = None,
    shared_statistics: SharedStatistics | None = None,
    progress: Progress = lambda _stage, _fraction: None,
) -> Report:
    """Validates the training graph of a model.

    Args:
        model: A forward model with a loss, whatever `differentiate` takes; or a training graph that ORT's
            gradient builder made, or for ``numeric`` any that stock ONNX Runtime runs. It is not changed.
        against: ``ort``, ``reference`` or ``numeric``. Where ORT's builder does not take the model, ``ort``
            becomes ``reference``, and the report says so.
        provider: Which implementations the lock-step runs.
        builder: Whose training graph of a forward model to validate: ours, or ORT's after `rewrite`.
        rewritten: The training graph to validate; by default what `differentiate` or `rewrite` makes.
        inputs: Arrays by input name; the others are drawn.
        dims: Sizes of symbolic dimensions.
        seed: For everything drawn.
        rtol: With ``atol``, a plain tolerance for the lock-step instead of the derived bounds.
        atol: See ``rtol``; either alone counts the other as zero.
        loss: The float scalar to differentiate, where a forward model has more than one.
        wrt: What to differentiate a forward model with respect to; by default its weights, and, but for ``ort``,
            the float inputs that are data.
        frozen: Names of batch-norm nodes of a forward model, or patterns such as ``layer1.*``, that are to use
            their running statistics; the others do what their attribute training_mode says.
        training: The same for those that are to use the batch's statistics; the narrower of two matches decides.
        running_variance: Which variance of the batch the running variance takes in, ``biased`` or ``unbiased``;
            by default what `differentiate` takes, or what the graph in ``rewritten`` has.
        shared_statistics: What batch norms get that read the same running statistic, ``separate`` or ``chain``.
        progress: Called with what is being done, and the fraction of it or None.

    Raises:
        InputError: An argument is wrong.
        ModelError: The model cannot be differentiated.
        OracleError: The oracle is needed, and cannot be installed, or fails.
        LibraryError: The native provider was asked for, and its library is missing.

    Warns:
        BngradWarning: The model is probably not what is to be trained, see `bngrad.differentiate`.
    """
    require_choice("against", against, get_args(Against))
    require_choice("builder", builder, get_args(Builder))
    if running_variance is not None:
        require_choice("running variance", running_variance, get_args(RunningVariance))
    if shared_statistics is not None:
        require_choice("shared statistics", shared_statistics, get_args(SharedStatistics))
    require_names(wrt=wrt, frozen=frozen, training=training)
    providers, notes = _providers(provider)
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
    given = Given(inputs or {}, dims or {}, seed)
    options = Options(
        loss=loss,
        wrt=wrt,
        frozen=frozen,
        training=training,
        running_variance=running_variance,
        shared_statistics=shared_statistics,
    )
    with ExitStack() as stack:
        oracle = _Lazy(stack, progress)
        name = str(model) if isinstance(model, str | Path) else "model"
        source = as_ir(model)
        warnings = model_warnings(source, wrt=wrt, default_wrt=not wrt, frozen=frozen, training=training)
        subject = find_subject(name, source, against, builder, rewritten, given, options, oracle)
        providers, unfit = _fit_providers(providers, subject.tested)
        report = Report(
            model=name,
            batch_norms=_batch_norms(subject.original),
            against=subject.against,
            providers=list(providers),
            seed=seed,
            inputs={name: list(value.shape) for name, value in subject.feeds.items()},
            notes=notes + subject.notes + unfit,
            warnings=warnings,
        )
        if (inside := batch_norms_inside(subject.original)) and subject.against != "numeric":
            report.notes.append(
                f"{len(inside)} batch norms are in subgraphs or functions, lock-step cannot look there: "
                f"{inside[0]!r}"
            )
        checks = Checks(subject, providers, seed, tolerance, oracle, progress)
        report.checks += checks.made()
        report.notes += checks.notes
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

            try:
                self._oracle = self._stack.enter_context(Oracle(progress=self._progress))
            except OracleError as error:
                raise OracleError(f"{error}; --against numeric and reference need no oracle") from error
        return self._oracle


def _providers(provider: Provider | Literal["all"]) -> tuple[Sequence[Provider], list[str]]:
    if provider == "all":
        try:
            native_library.library_path()
        except LibraryError as error:
            return ("python", "function"), [f"the native provider was not validated: {error}"]
        return PROVIDERS, []
    require_choice("provider", provider, ("all", *PROVIDERS))
    if provider == "native":
        native_library.library_path()
    return (provider,), []


def _fit_providers(providers: Sequence[Provider], model: ir.Model) -> tuple[Sequence[Provider], list[str]]:
    """Leaves out the python provider for models with 16-bit types, which onnxruntime-extensions does not carry."""
    if "python" not in providers or not has_type(model, _SIXTEEN_BITS):
        return providers, []
    if len(providers) == 1:
        raise InputError("the python provider takes no float16 and no bfloat16; use native or function")
    left = tuple(provider for provider in providers if provider != "python")
    return left, ["the python provider was not validated: it takes no float16 and no bfloat16"]


def _batch_norms(model: ir.Model) -> dict[str, int]:
    """How many batch-norm nodes a training graph has, by op type."""
    counts: dict[str, int] = {}
    for node in all_nodes(model):
        if node.domain == DOMAIN or (node.domain, node.op_type) in BATCH_NORMS:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts
