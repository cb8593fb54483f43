"""`TrainingStep`: a training step with its models as protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bngrad.io.files import as_ir, to_proto
from bngrad.training.evaluation import with_state
from bngrad.training.step import Step
from bngrad.training.step_files import check_step_output, load_step, save_step

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import onnx
    from numpy.typing import NDArray

    from bngrad.training.step_info import StepInfo

    Array = NDArray[Any]


@dataclass(frozen=True)
class TrainingStep:
    """A training step: forward pass, backward pass and optimizer as one ONNX model."""

    model: onnx.ModelProto
    """Inputs: the data, the learning rate and the state. Outputs: the loss, the outputs asked for, and the new
    state."""
    evaluation: onnx.ModelProto
    """The forward model in inference mode. Inputs: the data, and the weights and running statistics (flat: the
    whole vector of the state). Outputs: those of the forward model, and the loss."""
    state: dict[str, Array]
    """The initial state, by the names of the named layout."""
    info: StepInfo
    """The metadata of both models: their data, their state, and how outputs of one call feed the next."""

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Writes the step, and beside it its evaluation graph and its initial state.

        Args:
            path: The file of the step, such as ``step.onnx``. The others are ``step.eval.onnx`` and
                ``step.safetensors``. Existing files are replaced, each atomically.

        Returns:
            The files.

        Raises:
            InputError: A file cannot be written.
        """
        step = Step(as_ir(self.model), as_ir(self.evaluation), self.state, self.info, [], [])
        return save_step(step, check_step_output(path))

    def finalize(self, state: Mapping[str, Array], *, averages: bool = True) -> onnx.ModelProto:
        """Returns the inference model with a state of this step: without the loss, and without inputs for weights.

        Args:
            state: A state, in the named layout; see `StepInfo.unflatten`.
            averages: Whether moving averages, if the step has them, take the place of weights and statistics.

        Raises:
            InputError: The state is not that of this step.
            ModelError: The forward model has no output but the loss, or one depends on a random node.
        """
        return to_proto(with_state(as_ir(self.evaluation), self.info, state, averages=averages))


def training_step_of(step: Step) -> TrainingStep:
    """Returns a step with its models as `onnx.ModelProto`."""
    return TrainingStep(to_proto(step.model), to_proto(step.evaluation), step.state, step.info)


def read_training_step(path: str | os.PathLike[str]) -> TrainingStep:
    """Reads a training step and the files beside it, as `TrainingStep.save` writes them.

    Args:
        path: The file of the step.

    Raises:
        InputError: A file is missing or cannot be read, or the state is not that of the step.
        ModelError: A file is not of a training step.
    """
    return training_step_of(load_step(Path(path)))
