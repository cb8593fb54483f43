"""The files of a training step: STEP.onnx, its evaluation graph and its initial state beside it.

=================== ===============================================
file                holds
=================== ===============================================
STEP.onnx           the step
STEP.eval.onnx      the evaluation graph
STEP.safetensors    the initial state, a tensor each
=================== ===============================================
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError, ModelError
from bngrad.io import files, writing
from bngrad.io.tensor_files import read_tensors, write_tensors
from bngrad.training.state_origin import KEY as ORIGIN
from bngrad.training.state_origin import check_origin, differences, is_record, origin_of, state_document
from bngrad.training.step import Step
from bngrad.training.step_info import KEY, StepInfo, read_step_info

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    import onnx_ir as ir
    from numpy.typing import NDArray

    Array = NDArray[Any]


def evaluation_path(step: Path) -> Path:
    """The file of a step's evaluation graph."""
    return step.with_suffix(".eval.onnx")


def state_path(step: Path) -> Path:
    """The file of a step's initial state."""
    return step.with_suffix(".safetensors")


def check_step_output(
    output: str | os.PathLike[str], source: str | os.PathLike[str] | None = None, model: ir.Model | None = None
) -> Path:
    """Checks that the files of a step can be written, and returns the path of the step; see `check_output`.

    Raises:
        InputError: They cannot, or the step has the name of its initial state.
    """
    path = writing.check_output(output, source, model)
    for beside in (evaluation_path(path), state_path(path)):
        if beside == path:
            raise InputError(f"output {path} has the name of the initial state; expected another suffix, as .onnx")
        writing.check_output(beside, source, model)
    return path


def save_step(step: Step, path: Path) -> list[Path]:
    """Writes the files of a step, each atomically, the step last; returns their paths.

    Raises:
        InputError: A file cannot be written.
    """
    paths = [evaluation_path(path), state_path(path), path]
    files.save(step.evaluation, paths[0])
    write_state(paths[1], step.state, step.info)
    files.save(step.model, paths[2])
    return paths


def load_step(path: Path) -> Step:
    """Reads the files of a step.

    Raises:
        InputError: A file is missing or cannot be read, or the state is not that of the step.
        ModelError: A file is not a training step, or belongs to another step than the others.
    """
    model = files.load(path)
    try:
        info = read_step_info(model.metadata_props)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    _require_interface(model, info, path)
    for beside in (evaluation_path(path), state_path(path)):
        if not beside.exists():
            raise InputError(f"{beside} does not exist; expected it beside {path}, as bngrad step wrote it")
    evaluation = files.load(evaluation_path(path))
    of_evaluation = read_step_info(evaluation.metadata_props)
    if (of_evaluation.model, of_evaluation.fingerprint) != (info.model, info.fingerprint):
        raise ModelError(f"{evaluation_path(path)} belongs to another step than {path}; make both again")
    state, extra = read_state(state_path(path), info)
    origin = extra.get(ORIGIN)
    if is_record(origin) and differences(origin, origin_of(info)):
        raise ModelError(f"{state_path(path)} belongs to another step than {path}; make both again")
    return Step(model, evaluation, state, info, [], [])


def _require_interface(model: ir.Model, info: StepInfo, path: Path) -> None:
    """Checks that a graph has the inputs and outputs that its metadata name.

    Raises:
        ModelError: It lacks one.
    """
    flat = info.flat
    inputs = [info.learning_rate, *info.data, *(info.state if flat is None else [flat.input])]
    new = [entry.new for entry in info.state.values()] if flat is None else [flat.output]
    outputs = [info.loss, *info.outputs, *new]
    for what, named, values in (("input", inputs, model.graph.inputs), ("output", outputs, model.graph.outputs)):
        has = {value.name for value in values}
        for name in named:
            if not isinstance(name, str) or name not in has:
                raise ModelError(
                    f"{path}: its metadata name the {what} {name!r}, which it does not have; make it again"
                )


def write_state(path: Path, state: Mapping[str, Array], info: StepInfo, **extra: Any) -> None:  # noqa: ANN401
    """Writes a state atomically as safetensors.

    Args:
        path: The file.
        state: The state, a tensor each.
        info: The metadata of the step.
        extra: Further metadata of the file, beside the record of `state_origin` and the roles of the tensors;
            anything that JSON can hold.

    Raises:
        InputError: The file cannot be written, or JSON cannot hold ``extra``.
    """
    write_document(path, state, {**state_document(info), **extra})


def write_document(path: Path, state: Mapping[str, Array], document: Mapping[str, Any]) -> None:
    """Writes a state with a record as it is; see `write_state`."""
    try:
        metadata = json.dumps(document)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path} cannot hold the notes: {error}; expected what JSON has") from None
    write_tensors(path, state, {KEY: metadata})


def read_state(path: str | os.PathLike[str], info: StepInfo) -> tuple[dict[str, Array], dict[str, Any]]:
    """Reads a state, and the extra metadata of its file.

    Raises:
        InputError: The file cannot be read, or the tensors of the state do not match the step.
    """
    state, metadata = read_tensors(path)
    extra = state_metadata(path, metadata)
    for key in ("roles", "averages", "batch_norms", "quantization"):
        extra.pop(key, None)
    if extra.pop("model", info.model) != info.model:
        raise InputError(
            f"{path} is the state of another model or optimizer than the step: {_difference(state, info)}"
        )
    try:
        return info.require_state(state), extra
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_document(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Reads a state and its record, without the step.

    Raises:
        InputError: The file cannot be read, or does not record the training step and the roles of its tensors.
    """
    state, metadata = read_tensors(path)
    document = state_metadata(path, metadata)
    roles, origin = document.get("roles"), document.get(ORIGIN)
    if (
        not is_record(origin)
        or not isinstance(roles, dict)
        or set(roles) != set(state)
        or not all(isinstance(role, str) for role in roles.values())
    ):
        raise InputError(
            f"{path} does not record the training step that wrote it, or the roles of its tensors; expected a "
            "state as bngrad writes it"
        )
    return state, document


def read_state_of_step(
    path: str | os.PathLike[str], info: StepInfo, *, anyway: bool = False
) -> tuple[dict[str, Array], dict[str, Any], list[str]]:
    """Reads a state that this training step wrote.

    Args:
        path: The file.
        info: The metadata of the step.
        anyway: Whether to read also a state of another step whose tensors fit.

    Returns:
        The state, the extra metadata of the file, and warnings about the step that wrote it.

    Raises:
        InputError: See `read_state`; or the state is of another step.
    """
    state, extra = read_state(path, info)
    return state, extra, check_origin(path, extra.pop(ORIGIN, None), info, anyway=anyway)


def state_metadata(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Returns the metadata of a state file; none if it is not one of a training step.

    Raises:
        InputError: They cannot be read.
    """
    try:
        document = dict(json.loads(metadata.get(KEY, "{}")))
        _require_records(document)
    except (ValueError, TypeError, RecursionError):
        raise InputError(
            f"{path} has metadata {KEY!r} that cannot be read; expected a state of a training step"
        ) from None
    return document


def _require_records(document: Mapping[str, Any]) -> None:
    """Checks the types of the records of a state that other tensors are found by.

    Raises:
        ValueError: One has another type.
        TypeError: One cannot be read at all.
    """
    batch_norms = document.get("batch_norms", [])
    records = [document.get("averages", {}), *batch_norms]
    for record in records:
        if not isinstance(record, dict) or not all(isinstance(name, str | None) for name in record.values()):
            raise ValueError


def _difference(state: Mapping[str, Array], info: StepInfo) -> str:
    try:
        info.require_state(state)
    except InputError as error:
        return str(error)
    return "its fingerprint differs"
