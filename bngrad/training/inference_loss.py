"""The loss of a forward model in inference mode, which `evaluate` takes in place of a trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.runtime.session import session
from bngrad.training.evaluation import evaluation_graph
from bngrad.training.label_checks import LabelChecks
from bngrad.training.loss_of_batches import LossOfBatches
from bngrad.training.ranks import Ranks
from bngrad.training.step_errors import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.training.step_info import DataInput

    Array = NDArray[Any]


class InferenceLoss:
    """The loss of a forward model, in one process.

    Args:
        model: The forward model, with its loss; it is not changed.
        data: The data inputs.
        loss: The name of the loss.

    Raises:
        ModelError: The loss depends on values that only training mode has.
    """

    def __init__(self, model: ir.Model, data: Mapping[str, DataInput], loss: str) -> None:
        evaluation = evaluation_graph(model, {}, loss, batch_statistics=True)
        self.ranks = Ranks()
        self.labels = LabelChecks(evaluation.clone(), data, loss, session)
        self.loss_of_batches = LossOfBatches(evaluation, data, loss)
        self._session = session(evaluation)

    def evaluate_parts(self, /, **data: Array) -> tuple[dict[str, Array], Array]:
        """Returns the outputs of the model for a batch, and its part in the loss of several.

        Raises:
            InputError: A label is not one of the classes, or ONNX Runtime refuses the data.
        """
        self.labels.require(data)
        names = [value.name for value in self._session.get_outputs()]
        feeds = {value.name: np.asarray(data[value.name]) for value in self._session.get_inputs()}
        try:
            outputs = dict(zip(names, self._session.run(names, feeds), strict=True))
        except Exception as error:
            raise refused(error) from error
        return outputs, outputs.pop(self.loss_of_batches.output)
