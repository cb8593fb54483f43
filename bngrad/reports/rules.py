"""Rules of `validate` and `inspect`: an id, a text and a page for each kind of finding.

Ids and names are stable: code scanning tracks a finding by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from typing import Literal

Level = Literal["error", "warning", "note"]
"""``error``: it fails a validation; ``warning``: a hazard or a warning; ``note``: nothing was compared."""


@dataclass(frozen=True)
class Rule:
    """A kind of finding."""

    id: str
    summary: str
    """The fault, in one line."""
    description: str
    """The consequences, or the method of the check."""
    remedy: str
    """The action to take."""
    page: str
    """The page of the documentation, relative to its address, with an anchor or none."""
    level: Level

    @property
    def name(self) -> str:
        """The id in Pascal case, as SARIF has it."""
        return "".join(map(str.capitalize, self.id.split("-")))

    @property
    def url(self) -> str | None:
        """The address of the page; None if the installed metadata has no address of the documentation."""
        base = project_url("Documentation")
        return base and f"{base.rstrip('/')}/{self.page}"


def project_url(label: str) -> str | None:
    """Returns an address from the package's metadata, by its label in pyproject.toml; None if it has none."""
    try:
        entries = metadata("bngrad").get_all("Project-URL", [])
    except PackageNotFoundError:
        return None
    return dict(entry.split(", ", 1) for entry in entries).get(label)


_GRADIENT_REMEDY = (
    "Do not train with this graph. Report the model if bngrad built the graph; correct the graph if it was given "
    "with --rewritten."
)


def _check(identifier: str, summary: str, description: str, remedy: str = _GRADIENT_REMEDY) -> Rule:
    return Rule(identifier, summary, description, remedy, "explanation/validate.html", "error")


CHECKS = {
    "lock-step": _check(
        "lock-step",
        "A node computes a wrong value.",
        "The node got the inputs that it has in the original graph. An output differs from the reference by more "
        "than the rounding errors of the node's arithmetic.",
    ),
    "whole graph": _check(
        "whole-graph",
        "A training graph differs from ONNX Runtime's training build.",
        "An output on stock ONNX Runtime differs from that of the training build by more than the noise floor: "
        "the change of the original's output if its inputs change by one unit in the last place.",
    ),
    "float64": _check(
        "float64",
        "A training graph in float64 differs from the original.",
        "Both graphs were computed in float64, where rounding errors cannot explain the difference.",
    ),
    "forward in float64": _check(
        "forward-in-float64",
        "A training graph computes other outputs than the forward model.",
        "Both were computed in float64, with the batch norms in the mode that was asked for.",
    ),
    "central differences": _check(
        "central-differences",
        "A gradient is not the slope of the loss.",
        "The gradient was compared with central differences of the forward model's loss in float64.",
    ),
    "PyTorch's autograd": _check(
        "pytorch-autograd",
        "A value differs from that of PyTorch's autograd.",
        "PyTorch ran and differentiated the forward model in float64.",
    ),
    "on stock ONNX Runtime": _check(
        "stock-onnx-runtime",
        "A training graph on stock ONNX Runtime differs from itself in float64.",
        "An output differs by more than the noise floor: its change if the inputs change by one unit in the last "
        "place. The implementation of an op is wrong, or the graph is numerically unstable.",
        "Look at the lock-step check, which names the node. If it passes, compare the implementations: an error "
        "that all have in common is in ONNX Runtime or in the graph.",
    ),
    "hard batch norms": _check(
        "hard-batch-norms",
        "A system computes a wrong value for a case of the suite.",
        "The result differs from float64 by more than the rounding errors of a careful implementation.",
        "Read what the case is about in the documentation, and correct the system.",
    ),
    "all results": _check(
        "all-results",
        "A file lacks results of the suite.",
        "A system that has no result for a case does not pass.",
        "Add the arrays.",
    ),
}
"""The rule of each check, by `bngrad.validation.report.Check.name`."""

NOTHING_COMPARED = _check(
    "nothing-compared",
    "Nothing was compared.",
    "A validation that compared nothing does not pass: it proves nothing about the gradients.",
    "Read the reasons in the report: the model may be too large, or have no gradient that the check supports. "
    "Choose another reference with --against.",
)


def _hazard(identifier: str, summary: str, description: str, remedy: str) -> Rule:
    return Rule(identifier, summary, description, remedy, "reference/warnings.html#hazards", "warning")


HAZARDS = [
    _hazard(
        "running-output-missing",
        "Stock ONNX Runtime crashes on a batch norm in training mode.",
        "The BatchNormalization node has training_mode = 1 and leaves out an output for the running mean or "
        "variance.",
        "Name both outputs, or convert the model with bngrad differentiate, step or rewrite.",
    ),
    _hazard(
        "running-output-internal",
        "Stock ONNX Runtime overwrites the running statistics of a batch norm in training mode.",
        "The new running mean or variance of a BatchNormalization node with training_mode = 1 is not a graph "
        "output: ONNX Runtime then writes it into the node's input.",
        "Make both outputs graph outputs, or convert the model with bngrad differentiate, step or rewrite.",
    ),
]
"""Errors of stock ONNX Runtime that affect a batch norm."""


def _warning(identifier: str, summary: str, description: str, remedy: str) -> Rule:
    return Rule(identifier, summary, description, remedy, "reference/warnings.html", "warning")


WARNINGS = [
    _warning(
        "folded-batch-norms",
        "Batch norms were folded into layers.",
        "PyTorch's exporter, or a tool, folded batch norms into the preceding Conv or Gemm nodes, so that "
        "they are not trained.",
        "Export with torch.onnx.export(..., dynamo=True, optimize=False), or with dynamo=False, "
        "training=TrainingMode.TRAINING, do_constant_folding=False. Pass --frozen if this is intended.",
    ),
    _warning(
        "frozen-batch-norms",
        "Batch norms are in inference mode.",
        "Their running statistics are used and not updated, because the model was exported for inference.",
        "Export the model in training mode, or pass --training; --frozen '*' if this is intended.",
    ),
    _warning(
        "running-statistics-not-updated",
        "Running statistics are not updated.",
        "A FusedBatchNorm has exponential_avg_factor 1.",
        "Set the factor.",
    ),
    _warning(
        "shared-running-statistics",
        "Batch norms read the same running statistic.",
        "The file does not record whether one module was called several times, or a tool merged equal values.",
        "Pass --shared-statistics chain for one module, or separate to confirm.",
    ),
    _warning(
        "custom-gradients-not-recorded",
        "Custom gradients of JAX are not recorded.",
        "jax2onnx leaves no trace of jax.custom_vjp and jax.custom_jvp: the functions are differentiated as they "
        "are written.",
        "Export with to_onnx of docs/examples/jax/known_gradients.py, which refuses them.",
    ),
    _warning(
        "tied-weights",
        "Several layers share one weight with equal elements.",
        "Exporters merge equal initial values, so that layers are trained as one that the network does not share.",
        "Export with optimize=False or training=TrainingMode.TRAINING; ignore the warning if the network shares "
        "the weight.",
    ),
    _warning(
        "untied-weights",
        "A weight is the transpose of another one.",
        "Exporters fold the transpose of a weight that two layers share, such as an embedding and the output "
        "layer. The file has two weights then, which are trained apart.",
        "Export with optimize=False or do_constant_folding=False; ignore the warning if the network has two "
        "weights.",
    ),
    _warning(
        "unlikely-weights",
        "A default weight may not be a weight.",
        "A scalar, or a constant of the exporter, is a float initializer, which is trained by default.",
        "Name the weights with --wrt.",
    ),
    _warning(
        "padding-not-recorded",
        "A table of embeddings may have padding.",
        "One row of it is zeros, as PyTorch makes it with padding_idx. The file does not record that, so the row "
        "is trained.",
        "Export with bngrad.torch, or with torch.onnx.export(..., dynamo=True, optimize=False).",
    ),
    _warning(
        "weights-without-gradient",
        "Weights are not trained.",
        "Every output depends on them only through ops that no gradient passes, such as Round, ArgMax or "
        "QuantizeLinear. By default they keep their values.",
        "Name the weights to train with --wrt.",
    ),
]
"""Warnings of probable faults in a forward model that will be trained."""

NOT_VALIDATED = Rule(
    "not-validated",
    "A model could not be validated.",
    "It cannot be read or differentiated, or an option does not fit it.",
    "Read the message: it says what was expected and what to do.",
    "guides/ci.html#exit-codes",
    "error",
)

UNREADABLE = Rule(
    "unreadable-model",
    "A model could not be inspected.",
    "It does not exist, is not an ONNX model, or is invalid.",
    "Read the message: it says what was expected and what to do.",
    "guides/ci.html#exit-codes",
    "error",
)

BY_KIND = {rule.id: rule for rule in (*HAZARDS, *WARNINGS)}
"""The rule of each `bngrad.inspection.diagnostic.Diagnostic`, by its kind."""
