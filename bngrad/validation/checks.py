"""The checks that `validate` runs on a subject, in order."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import InputError, UnsupportedNodeError
from bngrad.graph.nodes import all_nodes
from bngrad.validation.autograd import PYTORCH, against_autograd, load_autograd
from bngrad.validation.common_values import CommonValues
from bngrad.validation.double import forward_in_float64, too_large, whole_in_float64
from bngrad.validation.float64 import Evaluator, KeptEvaluation
from bngrad.validation.forward import Forward, forward_of, forward_part
from bngrad.validation.inputs import feeds_of
from bngrad.validation.lockstep import EXACT, lock_step
from bngrad.validation.noise import noise_floor
from bngrad.validation.numeric import central_differences
from bngrad.validation.report import Check
from bngrad.validation.sites import find_sites, output_kinds
from bngrad.validation.steps import find_steps
from bngrad.validation.stock import on_stock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from bngrad.options import Implementation
    from bngrad.oracle import Oracle
    from bngrad.validation.lockstep import Tolerance
    from bngrad.validation.options import ValidateOptions
    from bngrad.validation.sites import Site
    from bngrad.validation.steps import Step
    from bngrad.validation.subject import Subject

    Array = NDArray[Any]
    Progress = Callable[[str, float | None], None]

CAPTURE_BYTES = 512 << 20
"""The most bytes of intermediate values of the original in memory at a time."""


class Checks:
    """The checks of one validation.

    Args:
        subject: The training graph and what it is compared with.
        implementations: The implementations of the ops of ``bngrad`` to run.
        options: The options of the validation.
        tolerance: Replaces the derived error bounds of the lock-step check.
        oracle: Returns ONNX Runtime's training build, started on first use.
        progress: Called with the stage and its completed fraction (None if unknown).
    """

    def __init__(
        self,
        subject: Subject,
        implementations: Sequence[Implementation],
        options: ValidateOptions,
        tolerance: Tolerance | None,
        oracle: Callable[[], Oracle],
        progress: Progress,
    ) -> None:
        self._subject, self._implementations = subject, implementations
        self._options, self._tolerance, self._oracle, self._progress = options, tolerance, oracle, progress
        self._kinds = output_kinds(subject.original, subject.gradients.values())
        self.notes: list[str] = []

    def run(self) -> Iterator[Check]:
        """Runs the checks that apply to the subject."""
        nodes = enumerate(self._subject.original.graph)
        positions = {str(value.name): index for index, node in nodes for value in node.outputs if value.name}
        for check in self._run():
            check.rows = [replace(row, position=positions.get(row.tensor)) for row in check.rows]
            yield check

    def _run(self) -> Iterator[Check]:
        against = self._subject.against
        if against == "torch":
            yield from self._autograd()
            return
        if against != "numeric":
            yield self._lock_step()
        if against == "ort":
            yield self._noise()
        try:
            tested = self._tested
        except UnsupportedNodeError as error:
            yield Check("float64", unit="relative", limit=0.0, skipped=str(error), required=against != "ort")
            return
        if against != "numeric":
            self._progress("whole graphs in float64", None)
            yield whole_in_float64(self._subject.original, tested, self._subject.feeds, self._kinds)
        if against == "numeric" or (against == "reference" and self._subject.forward is not None):
            yield from self._numeric()
        if against != "ort":
            yield self._on_stock()

    @cached_property
    def _tested(self) -> KeptEvaluation:
        """The graph under test in float64."""
        return KeptEvaluation(ir.to_proto(self._subject.tested))

    def _shown(self, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: self._progress(stage, done / total)

    def _lock_step(self) -> Check:
        subject = self._subject
        common = CommonValues(subject.original, subject.tested, same_builder=not subject.other_builder)
        sites = find_sites(subject.original, common)
        targets: list[Site | Step] = [*sites]
        if subject.against == "ort":
            targets += find_steps(subject.original, common, {site.node for site in sites})
        check = Check("lock-step", unit="of its bound", limit=1.0)
        if not targets and subject.against == "reference":
            check.skipped = "no op of bngrad is in the main graph"
            return check
        if has_type(subject.tested, (ir.DataType.BFLOAT16,)):
            check.skipped = "the model has bfloat16 values, which ONNX Runtime does not accept as arrays in Python"
            return check
        original, feeds = ir.to_proto(subject.original), feeds_of(subject.original, subject.feeds)
        nodes = [*subject.original.graph]
        types = {str(v.name): v.dtype for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}

        def from_ort(names: Sequence[str]) -> Iterator[dict[str, Array]]:
            return self._oracle().capture(original, feeds, names, CAPTURE_BYTES)

        def from_numpy(names: Sequence[str]) -> Iterator[dict[str, Array]]:
            for name, value in Evaluator(original).as_computed(feeds, names):
                yield {name: value.astype(_narrow(types.get(name), value))}

        by_ort = subject.against == "ort"
        self._progress(f"the original graph {'on its training build' if by_ort else 'in float64'}", None)
        try:
            return lock_step(
                subject.tested,
                targets,
                from_ort if by_ort else from_numpy,
                implementations=self._implementations,
                against="ort" if by_ort else EXACT,
                device=self._options.device,
                tolerance=self._tolerance,
                progress=self._shown("nodes in lock-step"),
            )
        except UnsupportedNodeError as error:  # NumPy has no implementation of the op
            check.skipped = str(error)
            return check

    def _noise(self) -> Check:
        return noise_floor(
            self._oracle(),
            self._subject.original,
            self._subject.tested,
            self._subject.feeds,
            kinds=self._kinds,
            implementations=self._implementations,
            seed=self._options.seed,
            device=self._options.device,
            progress=self._shown("whole graphs against the noise floor"),
        )

    def _autograd(self) -> Iterator[Check]:
        subject = self._subject
        assert subject.forward is not None and subject.loss is not None, "see find_subject"  # noqa: PT018, S101
        reference = load_autograd()(subject.forward, subject.loss, subject.gradients, subject.options)
        if reference.note:
            self.notes.append(reference.note)
        self._progress("PyTorch in float64", None)
        kinds = {name: kind for name, kind in self._kinds.items() if name in reference.outputs}
        try:
            tested: KeptEvaluation | str = too_large(subject.feeds) or self._tested
        except UnsupportedNodeError as error:
            tested = str(error)
        check = against_autograd(
            reference,
            subject.tested,
            tested,
            subject.feeds,
            kinds=kinds,
            gradients=subject.gradients,
            loss=subject.loss,
            seed=self._options.seed,
        )
        yield check
        yield on_stock(
            subject.tested,
            reference,
            subject.feeds,
            kinds={name: kind for name, kind in kinds.items() if name not in check.undecided},
            implementations=self._implementations,
            seed=self._options.seed,
            against=PYTORCH,
            device=self._options.device,
            progress=self._shown("stock ONNX Runtime against PyTorch"),
        )

    def _numeric(self) -> Iterator[Check]:
        subject = self._subject
        loss = subject.loss or _only_scalar(subject.original)
        self._progress("the forward model in float64", None)
        try:
            forward = self._forward(loss)
        except UnsupportedNodeError as error:
            yield Check("central differences", unit="relative", limit=0.0, skipped=str(error), required=True)
            return
        if forward.outputs:
            yield forward_in_float64(forward, self._tested, subject.feeds, self._kinds, loss)
        self._progress("central differences", None)
        yield central_differences(
            self._tested,
            subject.feeds,
            gradients=subject.gradients,
            forward=forward,
            loss=loss,
            seed=self._options.seed,
            progress=self._shown("central differences"),
        )

    def _forward(self, loss: str) -> Forward:
        """Returns the user's forward model if it can be evaluated, else the forward part of the training graph."""
        subject = self._subject
        if subject.forward is None:
            return forward_part(subject.tested, loss)
        try:
            forward = forward_of(subject.forward, subject.feeds, subject.gradients, loss, subject.options)
        except UnsupportedNodeError as error:
            self.notes.append(f"the loss is taken from the training graph, because the forward model {error}")
            return forward_part(subject.tested, loss)
        if forward.note:
            self.notes.append(forward.note)
        return forward

    def _on_stock(self) -> Check:
        tested = self._subject.tested
        names = [str(value.name) for value in tested.graph.outputs]
        return on_stock(
            tested,
            self._tested,
            self._subject.feeds,
            kinds={name: self._kinds.get(name, "other output") for name in names},
            against=EXACT,
            skipped=too_large(self._subject.feeds),
            implementations=self._implementations,
            seed=self._options.seed,
            device=self._options.device,
            progress=self._shown("stock ONNX Runtime against float64"),
        )


def has_type(model: ir.Model, dtypes: Sequence[ir.DataType]) -> bool:
    """Returns whether any value of a model has one of the types."""
    values = [*model.graph.inputs, *(value for node in all_nodes(model) for value in node.outputs)]
    return any(value.dtype in dtypes for value in values)


def _narrow(dtype: ir.DataType | None, value: Array) -> np.dtype[Any]:
    """Returns the model's type of a value that was computed in float64."""
    if value.dtype.kind != "f":
        return value.dtype
    return np.dtype(np.float32) if dtype is None else dtype.numpy()


def _only_scalar(model: ir.Model) -> str:
    """Returns the loss of a training graph without a name for it: its only scalar output."""
    scalars = [v for v in model.graph.outputs if v.shape is not None and len(v.shape) == 0]
    if len(scalars) != 1:
        names = ", ".join(str(value.name) for value in model.graph.outputs)
        raise InputError(f"the model has {len(scalars)} scalar outputs; name the loss with --loss, one of {names}")
    return str(scalars[0].name)
