"""`bngrad.validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.arguments import renamed_keyword
from bngrad.errors import warn
from bngrad.option_fields import takes_keywords
from bngrad.validation.options import ValidateOptions
from bngrad.validation.validate import validate as report_of

if TYPE_CHECKING:
    from typing import Unpack

    from bngrad.io.files import AnyModel
    from bngrad.validation.checks import Progress
    from bngrad.validation.options import ValidateKeywords
    from bngrad.validation.report import Report


@renamed_keyword("provider", "implementation")
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
            ``ort`` becomes ``reference``, with a note in the report, whose `instead_of` is ``ort`` then.
        implementation: The implementations of the ops to check.
        device: The device that the checked graph runs on, see `session`.
        builder: The builder of a forward model's training graph: ``bngrad``, or ``ort`` followed by `rewrite`.
        rewritten: The training graph to check. By default, `differentiate` or `rewrite` builds it.
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
        prediction: The value that is passed to the loss function; by default, the only float output.
        wrt: Names of the values to differentiate a forward model with respect to. By default, its weights, and,
            except for ``ort``, its float inputs that are data.
        stop_gradient: Names of values of a forward model that no gradient flows through, see `differentiate`.
            Differences of the loss do not show them, so that central differences are skipped.
        straight_through: Whether roundings of a forward model have the gradient of the identity within the range
            of the integers, see `differentiate`. Differences of the loss do not show that either.
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
        DeviceError: See `session`.
        OracleError: The oracle is needed, but cannot be installed or failed.
        LibraryError: The implementation is ``native``, and its library is missing.

    Warns:
        BngradWarning: The model is probably not suitable for training; see `bngrad.differentiate`.
    """
    report = report_of(model, ValidateOptions(**options), progress)
    warn(report.warnings)
    return report
