"""`Trainer`: runs a training step, and keeps its state between the calls."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from bngrad.arguments import renamed_keyword, require_choice, require_names, require_number
from bngrad.errors import BngradError, InputError, TrainingError, warn
from bngrad.io.files import as_ir
from bngrad.io.files import save as save_model
from bngrad.io.writing import check_output
from bngrad.options import RunningVariance
from bngrad.runtime.device import CPU, CUDA, WEBGPU, Device
from bngrad.runtime.session import session
from bngrad.training.data_inputs import not_finite, require_data, require_data_for
from bngrad.training.gpu_advice import advice_for_gpu
from bngrad.training.history import History, described, pages
from bngrad.training.label_checks import LabelChecks
from bngrad.training.prefetch import sent_ahead
from bngrad.training.ranks import Ranks
from bngrad.training.same_step import require_alone, require_same_step
from bngrad.training.schedules import as_schedule
from bngrad.training.state_buffers import StateBuffers, calls_of
from bngrad.training.state_origin import StateDict, check_origin, state_document
from bngrad.training.statistics_of_step import StatisticsOfStep
from bngrad.training.step_errors import (
    not_finite_message,
    refused,
    require_finite_state,
    require_useful_scale,
)
from bngrad.training.step_evaluation import StepEvaluation
from bngrad.training.step_files import read_state_of_step, write_state
from bngrad.training.step_session import StepSession
from bngrad.training.to_inference import random_nodes
from bngrad.training.training_step import TrainingStep, read_training_step

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import onnx
    import onnxruntime
    from mpi4py import MPI
    from numpy.typing import ArrayLike, NDArray

    from bngrad.autodiff.size_conditions import Condition
    from bngrad.distributed import Communicator
    from bngrad.options import Implementation
    from bngrad.runtime.device_arrays import DeviceArray
    from bngrad.training.loss_of_batches import LossOfBatches
    from bngrad.training.reestimated import ReestimatedStatistics
    from bngrad.training.schedules import Schedule
    from bngrad.training.step_info import StepInfo

    Array = NDArray[Any]


class Trainer:
    """Trains a model by running its training step.

    The state stays in buffers on the device between the calls: only the loss is copied.

    With a communicator, all ranks create a trainer and call the same methods in the same order: `step`, with rows
    of their own, and `save`, `load`, `load_state_dict` and `finalize`, whose files rank 0 reads and writes. All
    start with the state of rank 0, and have the same state after each step.

    Args:
        step: A training step, or the path of one.
        learning_rate: A number, or a function of the number of updates, such as `CosineSchedule`.
        implementation: The implementation of the ops; see `session`.
        device: The device to run on; see `session`. A warning tells of a step that is slow on a GPU.
        threads: The number of intra-op threads; 0 lets ONNX Runtime choose.
        tf32: See `session`. Evaluations round as steps do.
        cuda_graph: Whether steps run as CUDA graphs, which spare the launches of single kernels. All batches have
            one size, and every node of the step has to be on the device.
        comm: The ranks that train together; None for a single process. Several ranks need a synchronized step.

    Raises:
        InputError: An argument is invalid, or the files of the step cannot be read.
        DeviceError: See `session`. Methods raise it, too, if the device fails or is out of memory; the state is
            unchanged then.
        ModelError: The path is not of a training step.
        DistributedError: The ranks do not have the same step, versions or learning rate, or one failed; so do all
            methods that the ranks call together.
        LibraryError: See `session`.
    """

    @renamed_keyword("provider", "implementation")
    def __init__(
        self,
        step: TrainingStep | str | os.PathLike[str],
        *,
        learning_rate: float | Schedule,
        implementation: Implementation = "native",
        device: str = CPU,
        threads: int = 0,
        tf32: bool = False,
        cuda_graph: bool = False,
        comm: Communicator | MPI.Intracomm | None = None,
    ) -> None:
        self.ranks = Ranks(comm)
        """The ranks that train together, with the ``rank`` of this one and their number, the ``size``."""
        make_session = partial(session, implementation=implementation, device=device, threads=threads, tf32=tf32)
        self._make_session = make_session
        with self.ranks.together("training step"):
            self.device = Device.of(device)
            """The device."""
            self.cuda_graph = cuda_graph
            """True if steps run as CUDA graphs, for which all data are copied from the host."""
            self._schedule = as_schedule(learning_rate)
            step = step if isinstance(step, TrainingStep) else read_training_step(step)
            if cuda_graph and random_nodes(as_ir(step.model)):
                raise InputError(
                    "the step has random nodes, such as Dropout, which would draw the same numbers in every "
                    "replay of a CUDA graph; leave out cuda_graph"
                )
            if self.device.kind == WEBGPU and step.info.loss_scale is not None:
                raise InputError(
                    "the step has precision mixed, which finds infinite and NaN gradients, and arithmetic on "
                    f"{device!r} need not have those; expected a step without it, or another device"
                )
        if comm is None:
            require_alone(step)
        elif self.ranks.size > 1:
            require_same_step(self.ranks, step, implementation, self._schedule(0))
        self._training_step = step
        self.ranks.attach()  # before the session is made, which may compute constants with collectives
        with self.ranks.alone(), self.ranks.errors():
            step_session = make_session(step.model, cuda_graph=cuda_graph)
            self._session = StepSession(step, step_session, self.device, cuda_graph=cuda_graph)
        if self.device.kind == CUDA:
            warn(advice_for_gpu(as_ir(step.model), as_ir(step.evaluation)))
        self.labels = LabelChecks(as_ir(step.evaluation), step.info.data, step.info.loss, session)
        """The class labels among the data."""
        self._calls = 0
        """The state is in the buffers numbered by the remainder by 2."""
        self.outputs: dict[str, Array] = {}
        """The further outputs of the last step, by name."""
        self.history = History(step.model, described(step.info, implementation, device), device)
        """The losses of the steps; `History.add` adds validations, which `report` shows, too."""
        self.uses_averages = bool(step.info.averages)
        """True if `evaluate`, `estimate_statistics` and `finalize` take the averages of the step; False to
        take the weights and running statistics themselves."""
        self._evaluation = StepEvaluation(step, make_session, self.device)
        self.load_state_dict(self._training_step.state)

    @property
    def info(self) -> StepInfo:
        """The metadata of the step."""
        return self._training_step.info

    @property
    def is_random(self) -> bool:
        """True if a step has random nodes, such as Dropout; every session draws other numbers."""
        return bool(random_nodes(as_ir(self._training_step.model)))

    @property
    def calls(self) -> int:
        """The number of calls of `step` that the state has seen, also before it was loaded."""
        return self._calls

    @property
    def updates(self) -> int:
        """The number of updates of the weights; the learning rate is a function of it.

        Updates that mixed precision skipped count.
        """
        return self._calls // self.info.accumulate

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step. A number or a schedule can be assigned."""
        number, dtype = self._schedule(self.updates), np.dtype(self.info.learning_rate_dtype)
        what = f"the learning rate of update {self.updates}"
        rate = require_number(what, number)
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(dtype.type(rate))
        if not is_finite or rate < 0:
            raise InputError(f"{what} is {rate}; expected a finite {dtype}, at least 0")
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float | Schedule) -> None:
        self._schedule = as_schedule(rate)

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the gradients in the last step, if the step clips them."""
        clips = self.info.clip_norm is not None and "gradient_norm" in self.outputs
        return float(self.outputs["gradient_norm"]) if clips else None

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes the history as a web page; rank 0 does.

        Args:
            path: The file. An existing file is replaced as a whole or not at all.

        Raises:
            InputError: The file cannot be written.
        """
        self.ranks.on_first("report", lambda: pages().write_history(check_output(path), self.history))

    def step(self, /, **data: ArrayLike) -> float:
        """Runs one training step, and returns the loss before the update.

        The further outputs of the step are in `outputs`. With several ranks the loss is that of the rows of all
        ranks, and `outputs` has what this rank computes from its own rows.

        Args:
            data: An array for each data input, of its type and shape; at least one row on each rank. An array on
                the device, as an `onnxruntime.OrtValue` or by DLPack, is not copied.

        Raises:
            InputError: An array is missing, superfluous, of another type or shape, or on another device, a label
                is not one of the classes, or ONNX Runtime refuses the data.
            DeviceError: The device failed or is out of memory. The state is unchanged.
            TrainingError: The loss is not finite, or with precision mixed no gradients are, whatever the scale of
                the loss. The state is unchanged.
        """
        rate = self.learning_rate
        with self.ranks.together(f"step {self._calls + 1} with learning rate {rate!r}"):
            arrays = self._require_data(data, self.info.size_conditions)
        with self.ranks.alone():
            try:
                with self.ranks.errors():
                    loss, outputs = self._session.run(self._calls, arrays, rate)
            except BngradError:
                raise
            except Exception as error:
                raise refused(error) from error
        if not math.isfinite(loss):
            raise self._diagnosis(loss, arrays)
        if self.info.loss_scale is not None:
            require_useful_scale(float(outputs[self.info.loss_scale]), self._calls + 1)
        self.outputs = outputs
        self._calls += 1
        self.history.add_step(self._calls, loss, rate, self.gradient_norm)
        return loss

    def evaluate(self, /, **data: ArrayLike) -> dict[str, Array]:
        """Runs the forward model in inference mode with the present state, only on this rank.

        Args:
            data: An array for each data input, of its type and shape.

        Returns:
            The loss and the other outputs of the forward model.

        Raises:
            InputError: An array is missing, superfluous, or of another type or shape, a label is not one of the
                classes, or ONNX Runtime refuses the data.
        """
        outputs, _ = self.evaluate_parts(**data)
        return outputs

    def evaluate_parts(self, /, **data: ArrayLike) -> tuple[dict[str, Array], Array]:
        """Runs `evaluate`, and returns also the part of the batch in the loss of several, see `LossOfBatches`.

        Args:
            data: See `evaluate`.

        Raises:
            InputError: See `evaluate`.
        """
        arrays = self._require_data(data, self.info.evaluation_size_conditions)
        outputs = self._evaluated(self._evaluation.session, arrays)
        return outputs, outputs.pop(self.loss_of_batches.output)

    def prefetch(self, batches: Iterable[Mapping[str, ArrayLike]]) -> Iterator[Mapping[str, Any]]:
        """Yields batches for `step`, each fetched and copied to the device while the step before it runs.

        On the CPU the batches are yielded as they are.

        Args:
            batches: Batches, as `step` takes them; a thread of its own fetches them.

        Raises:
            DeviceError: The device is out of memory.
        """
        pairs = ((None, batch) for batch in batches)
        return (batch for _, batch in sent_ahead(self.device, pairs, send=not self.cuda_graph))

    def estimate_statistics(
        self,
        batches: Iterable[Mapping[str, ArrayLike]],
        *,
        batch_norms: Sequence[str] | None = None,
        running_variance: RunningVariance | None = None,
    ) -> list[ReestimatedStatistics]:
        """Replaces running statistics by those of the inputs of the batch norms over all batches, in one pass.

        In this pass the batch norms use the statistics of each batch, as in a step, and everything else is in
        inference mode. Each rank passes batches of its own, which are normalized apart from those of other ranks.

        Args:
            batches: Batches, as `step` takes them, of any sizes; the labels may be left out.
            batch_norms: Names of batch norms, or patterns such as ``layer1.*``. By default, all whose running
                statistics are in the state; the others use their running statistics.
            running_variance: The variance of the elements that a running variance is, ``biased`` or ``unbiased``;
                by default the rule of the step.

        Returns:
            How far the old statistics of each batch norm were off.

        Raises:
            InputError: An array is missing, unknown, or of another type or shape; there is no batch; a batch norm
                has one value for each channel of a batch; or what it reads is not finite. The state is unchanged.
            ModelError: The step has no such batch norm, or a batch norm shares its statistics with one that is not
                chosen.
        """
        with self.ranks.together("statistics"):
            if running_variance is not None:
                require_choice("running variance", running_variance, get_args(RunningVariance))
            require_names(batch_norms=batch_norms)
            estimate = StatisticsOfStep(self._training_step, batch_norms, running_variance)
            session = self._make_session(estimate.model)
            for batch in batches:
                arrays = require_data_for(estimate.inputs, batch, self.info, self.device)
                estimate.add(self._evaluated(session, arrays))
            estimate.moments.require_batches()
        state = self.state_dict()
        averages = self.info.averages if self.uses_averages else {}
        new, results = estimate.state(self.ranks, self.info.averaged(state) if averages else state)
        state.update({averages.get(name, name): array for name, array in new.items()})
        self.load_state_dict(state)
        return results

    @property
    def loss_of_batches(self) -> LossOfBatches:
        """The loss of several batches, from the parts that `evaluate_parts` returns for each."""
        return self._evaluation.loss_of_batches

    def state_dict(self) -> dict[str, Array]:
        """Returns a copy of the state: weights, running statistics, optimizer state, and counters.

        It also records the training step, which `load_state_dict` compares; a copy by ``dict`` does not.
        """
        return StateDict(self._current.read(), state_document(self.info))

    def state_values(self) -> dict[str, onnxruntime.OrtValue]:
        """Returns the state on the device without a copy: the tensors of the step's layout, by its inputs' names.

        The step after the next one writes to this memory.
        """
        return dict(self._current.inputs)

    def load_state_dict(self, state: Mapping[str, Array], *, anyway: bool = False) -> None:
        """Replaces the state, on all ranks by that of rank 0; the arrays are copied.

        Args:
            state: All tensors of the state, as `state_dict` returns them.
            anyway: Whether the state may be one of another model or optimizer, if its tensors fit; a warning then
                names the differences.

        Raises:
            InputError: An array is missing, superfluous, or of another type or shape; or `state_dict` of another
                training step returned the state.
        """
        lines = []
        with self.ranks.together("state"):
            if isinstance(state, StateDict):
                lines = check_origin("the state", state.origin, self.info, anyway=anyway)
            state = self.info.require_state(state)
            calls = calls_of(state, self.info)
        if self.ranks.size > 1:
            state = self.ranks.from_first("state", state)
            calls = calls_of(state, self.info)
        self._session.buffers[calls % 2].write(state)
        self._calls = calls
        self._evaluation.forget()
        warn(lines)

    def save(self, path: str | os.PathLike[str], **notes: Any) -> None:  # noqa: ANN401 - anything that JSON has
        """Writes the state to a file, from which `load` continues bit-identically.

        Args:
            path: The file, in the format of safetensors. An existing file is replaced as a whole or not at all.
            notes: Further contents of the file, such as the epoch; anything that JSON can hold.

        Raises:
            InputError: The file cannot be written.
            TrainingError: The state is not finite; the file is as it was.
        """

        def write() -> None:
            state = self.state_dict()
            require_finite_state(state, str(path))
            write_state(check_output(path), state, self.info, notes=notes)

        self.ranks.on_first("save", write)

    def load(self, path: str | os.PathLike[str], *, anyway: bool = False) -> dict[str, Any]:
        """Reads the state from a file that `save` wrote, and returns its notes.

        A file that does not record which training step wrote it is accepted with a warning if its tensors fit.

        Args:
            path: The file.
            anyway: Whether the file may be of another model or optimizer, if its tensors fit; a warning then names
                the differences.

        Raises:
            InputError: The file cannot be read, or is of another model or optimizer.
        """
        loaded: dict[str, Array] = {}

        def read() -> list[Any]:
            state, extra, lines = read_state_of_step(path, self.info, anyway=anyway)
            loaded.update(state)
            return [dict(extra.get("notes", {})), lines]

        notes, lines = self.ranks.on_first("load", read)
        self.load_state_dict(loaded or dict(self._current.read()))
        if self.ranks.is_first:
            warn(lines)
        return dict(notes)

    def finalize(self, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """Returns the inference model: the forward model with the present state, without the loss.

        Args:
            path: A file to write it to, too.

        Raises:
            InputError: The file cannot be written.
            ModelError: See `TrainingStep.finalize`.
            TrainingError: The state is not finite; the file is as it was.
        """
        state = self.state_dict()
        require_finite_state(state, "the inference model" if path is None else str(path))
        model = self._training_step.finalize(state, averages=self.uses_averages)
        if path is not None:
            self.ranks.on_first("finalize", lambda: save_model(as_ir(model), check_output(path)))
        return model

    def _require_data(
        self, data: Mapping[str, Any], conditions: Sequence[Condition]
    ) -> dict[str, Array | DeviceArray]:
        arrays = require_data(data, self.info.data, conditions, self.device)
        self.labels.require(arrays)
        return arrays

    def _evaluated(
        self, session: onnxruntime.InferenceSession, data: Mapping[str, Array | DeviceArray]
    ) -> dict[str, Array]:
        return self._evaluation.run(session, data, self._current, calls=self._calls, averages=self.uses_averages)

    @property
    def _current(self) -> StateBuffers:
        return self._session.buffers[self._calls % 2]

    def _diagnosis(self, loss: float, data: Mapping[str, Array | DeviceArray]) -> TrainingError:
        arrays = {name: np.asarray(array) for name, array in data.items()}
        texts = self.ranks.texts("not finite", json.dumps(not_finite(arrays)))
        what = f"the loss is {loss} in call {self._calls + 1}"
        if self.ranks.size == 1 and (void := self.labels.left_out(arrays)):
            return TrainingError(f"{what}: the loss leaves out every label of {void!r}; the state is unchanged")
        error = TrainingError(
            not_finite_message(
                what,
                [json.loads(names) for names in texts],
                not_finite(self.state_dict()),
                self.learning_rate,
                in_float16=self.info.loss_scale is not None,
            )
        )
        error.on_all_ranks = True
        return error
