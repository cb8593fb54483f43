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
from typing import TYPE_CHECKING, Literal

from bngrad.errors import InputError, LibraryError, OracleError
from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.nodes import all_nodes
from bngrad.inspection.identity import identity
from bngrad.inspection.model_warnings import mode_notes, model_warnings
from bngrad.io.files import as_ir
from bngrad.opset.functions import DOMAIN
from bngrad.option_fields import takes_keywords
from bngrad.passes.distribute.collectives import is_collective
from bngrad.runtime import native_library
from bngrad.runtime.environment import environment
from bngrad.runtime.session import PROVIDERS
from bngrad.validation.autograd import load_autograd
from bngrad.validation.checks import Checks, has_type
from bngrad.validation.find_subject import find_subject
from bngrad.validation.lockstep import Tolerance
from bngrad.validation.loss_of_model import with_loss
from bngrad.validation.options import ValidateOptions
from bngrad.validation.report import Report
from bngrad.validation.sites import BATCH_NORMS, batch_norms_inside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import onnx_ir as ir

    from bngrad.io.files import AnyModel
    from bngrad.options import Provider
    from bngrad.oracle import Oracle
    from bngrad.validation.checks import Progress
    from bngrad.validation.options import ValidateKeywords


@takes_keywords(ValidateOptions)
def validate(
    model: AnyModel,
    *,
    progress: Progress = lambda _stage, _fraction: None,
    **options: Unpack[ValidateKeywords],
) -> Report:
    """Checks that the training graph of a model computes the right gradients.

    Args:
        model: A forward model with a loss, as `differentiate` accepts it; or a training graph from ORT's gradient
            builder; or, for ``numeric``, any training graph for stock ONNX Runtime. It is not modified.
        against: ``ort``, ``reference``, ``numeric`` or ``torch``. If ORT's builder does not support the model,
            ``ort`` becomes ``reference``, with a note in the report.
        provider: The implementations of the ops to check.
        builder: The builder of a forward model's training graph: ``bngrad``, or ``ort`` followed by `rewrite`.
        rewritten: The training graph to check. By default, it is made by `differentiate` or `rewrite`.
        inputs: Arrays by input name; other inputs are random.
        dims: Sizes of symbolic dimensions by name.
        batch_size: Size of the first dimension of the inputs, whatever its name, where it is symbolic; a fixed one
            stays.
        seed: Seed of all random values.
        rtol: Relative tolerance of the lock-step check, instead of the derived bounds; 0 if only ``atol`` is
            given.
        atol: Absolute tolerance of the lock-step check; 0 if only ``rtol`` is given.
        loss: The name of the float scalar to differentiate; needed if a forward model has more than one.
        loss_fn: A loss function to append to a model without a loss, see `differentiate`; another model keeps its
            own, with a note.
        prediction: What the loss function is computed of; by default, the only float output.
        wrt: Names of the values to differentiate a forward model with respect to. By default, its weights, and,
            except for ``ort``, its float inputs that are data.
        frozen: Names of batch-norm nodes of a forward model, or patterns such as ``layer1.*``, that use their
            running statistics. Batch norms that are not matched follow the model, see `differentiate`.
        training: Names or patterns of batch-norm nodes that use the statistics of the batch. If both ``frozen``
            and ``training`` match, the more specific one wins. ``"auto"``: see `differentiate`.
        running_variance: The batch variance that updates the running variance, ``biased`` or ``unbiased``. By
            default, as in `differentiate`, or as in the graph in ``rewritten``.
        shared_statistics: How batch norms that read the same running statistic update it, ``separate`` or
            ``chain``. By default, as in `differentiate`.
        progress: Called with the stage and its completed fraction (None if unknown).

    Raises:
        InputError: An argument is invalid.
        ModelError: The model cannot be differentiated; or, for ``torch``, it is a training graph.
        UnsupportedNodeError: For ``torch``, an op has no equivalent in PyTorch.
        VersionError: For ``torch``, PyTorch is missing.
        OracleError: The oracle is needed, but cannot be installed or failed.
        LibraryError: The provider is ``native``, and its library is missing.

    Warns:
        BngradWarning: The model is probably not suitable for training; see `bngrad.differentiate`.
    """
    return _validate(model, ValidateOptions(**options), progress)


def _validate(model: AnyModel, options: ValidateOptions, progress: Progress) -> Report:
    if options.against == "torch":
        load_autograd()  # before the work, if PyTorch is missing
    providers, notes = _providers(options.provider)
    rtol, atol = options.rtol, options.atol
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
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
        subject = find_subject(name, source, options, oracle)
        providers, unsupported = _supported_providers(providers, subject.tested)
        report = Report(
            model=name,
            batch_norms=_batch_norms(subject.original),
            against=subject.against,
            providers=list(providers),
            seed=options.seed,
            inputs={name: list(value.shape) for name, value in subject.feeds.items()},
            notes=notes + subject.notes + unsupported,
            warnings=warnings,
            identity=identity(own, model if isinstance(model, str | Path) else None),
            environment=environment(),
        )
        if (inside := batch_norms_inside(subject.original)) and subject.against in ("ort", "reference"):
            report.notes.append(
                f"{len(inside)} batch norms are in subgraphs or functions, where lock-step cannot check them: "
                f"{inside[0]!r}"
            )
        checks = Checks(subject, providers, options.seed, tolerance, oracle, progress)
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


def _providers(provider: Provider | Literal["all"]) -> tuple[Sequence[Provider], list[str]]:
    if provider == "all":
        try:
            native_library.library_path()
        except LibraryError as error:
            return ("python", "function"), [f"the native provider was not checked: {error}"]
        return PROVIDERS, []
    if provider == "native":
        native_library.library_path()
    return (provider,), []


def _supported_providers(providers: Sequence[Provider], model: ir.Model) -> tuple[Sequence[Provider], list[str]]:
    """Drops the providers that cannot run a model, each with a note; refuses if none is left."""
    unsupported: dict[str, str] = {}
    if has_type(model, SIXTEEN_BITS):
        unsupported["python"] = "does not support float16 and bfloat16"
    if any(is_collective(node) for node in all_nodes(model)):
        unsupported["function"] = "does not support the collectives of a model made with --sync"
    supported = tuple(provider for provider in providers if provider not in unsupported)
    if not supported:
        (provider,) = providers
        raise InputError(f"the {provider} provider {unsupported[provider]}; use native")
    left_out = [provider for provider in providers if provider in unsupported]
    return supported, [f"the {each} provider was not checked: it {unsupported[each]}" for each in left_out]


def _batch_norms(model: ir.Model) -> dict[str, int]:
    """Returns the number of batch-norm nodes of a training graph, by op type."""
    counts: dict[str, int] = {}
    for node in all_nodes(model):
        if node.domain == DOMAIN or (node.domain, node.op_type) in BATCH_NORMS:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts
