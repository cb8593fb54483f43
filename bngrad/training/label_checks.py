"""The class labels of each batch: the check of their range, and the number with the highest score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.training.class_labels import find_class_labels, program_of
from bngrad.training.data_inputs import not_finite
from bngrad.training.step_errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import onnx_ir as ir
    import onnxruntime
    from numpy.typing import NDArray

    from bngrad.runtime.device_arrays import DeviceArray
    from bngrad.training.class_labels import ClassLabels

    Array = NDArray[Any]


class LabelChecks:
    """Finds the labels of a training step among its data.

    Args:
        evaluation: The evaluation graph of the step; its types are inferred.
        data: The data inputs.
        loss: The name of the loss.
        session: Creates a session for a model.
    """

    def __init__(
        self,
        evaluation: ir.Model,
        data: Collection[str],
        loss: str,
        session: Callable[[ir.Model], onnxruntime.InferenceSession],
    ) -> None:
        InferTypesPass()(evaluation)
        labels = find_class_labels(evaluation, data, loss)
        self.checked: list[ClassLabels] = [entry for entry in labels if entry.range.unchecked is None]
        """The labels that are checked."""
        program = program_of(evaluation, self.checked)
        self._session = None if program is None else session(program)
        of_losses = {(entry.range.value, entry.scores): entry for entry in self.checked if entry.of_loss}
        self._scored = next(iter(of_losses.values())) if len(of_losses) == 1 else None

    def require(self, data: Mapping[str, Array | DeviceArray]) -> None:
        """Checks the labels of a batch.

        Raises:
            InputError: A label is not the number of a class, or data that labels are computed from are not finite.
        """
        if not self.checked:
            return
        values = self._values(data)
        for entry in self.checked:
            entry.require_in_range(values[entry.range.value])

    def correct(self, data: Mapping[str, Array], outputs: Mapping[str, Array]) -> tuple[int, int]:
        """Returns how many labels of a batch have the highest score, and how many labels there are.

        Both are 0 if there are no labels of a single loss, or no output has their scores.
        """
        scored = self._scored
        scores = None if scored is None else outputs.get(str(scored.scores))
        if scored is None or scores is None:
            return 0, 0
        labels = self._values(data)[scored.range.value]
        if labels.shape != (*scores.shape[:1], *scores.shape[2:]):
            return 0, 0
        return scored.correct(labels, scores)

    def left_out(self, data: Mapping[str, Array]) -> str | None:
        """Returns the name of labels of a loss that are all to be left out; None if there are none."""
        values = self._values(data) if self.checked else {}
        for entry in self.checked:
            name, ignored = entry.range.value, entry.range.ignored
            if entry.of_loss and ignored is not None and (values[name] == ignored).all():
                return name
        return None

    def _values(self, data: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
        """The labels by their names, on the host."""
        labels = {entry.range.value for entry in self.checked}
        values = {name: np.asarray(data[name]) for name in labels if name in data}
        if self._session is None:
            return values
        feeds = {value.name: np.asarray(data[value.name]) for value in self._session.get_inputs()}
        if names := not_finite(feeds):
            raise InputError(f"the data {listed(names)}, from which labels are computed, are not finite")
        outputs = [value.name for value in self._session.get_outputs()]
        try:
            results = self._session.run(outputs, feeds)
        except Exception as error:
            raise refused(error) from error
        return {**values, **dict(zip(outputs, results, strict=True))}
