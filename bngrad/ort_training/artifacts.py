"""`generate_artifacts`: the files that training needs, from a forward model."""

from __future__ import annotations

import contextlib
import enum
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from bngrad.arguments import require_choice, require_names
from bngrad.errors import warn
from bngrad.graph.name_messages import listed
from bngrad.inspection.model_warnings import model_warnings
from bngrad.io import files
from bngrad.options import ForwardOptions
from bngrad.ort_training import onnxblock
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingTypeError, as_ort_training_error
from bngrad.ort_training.onnxblock._graph_utils import names_of
from bngrad.ort_training.ort_format import write_ort_format
from bngrad.ort_training.training_model import Target
from bngrad.passes.lower.lower_training import is_lowered
from bngrad.passes.pipeline import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_PROTO_BYTES = 2**31
"""The limit of protobuf: a larger model has external data, which only its path locates."""


class LossType(enum.Enum):
    """The losses that `generate_artifacts` can append; each is the block of its name in `onnxblock.loss`."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(enum.Enum):
    """The optimizers of `generate_artifacts`; each is the block of its name in `onnxblock.optim`."""

    AdamW = 1
    SGD = 2


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | bytes | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | bytes | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    *,
    target: Target = "stock",
) -> None:
    """Writes the training model, the evaluation model, the checkpoint and the optimizer model of a forward model.

    The files are ``{prefix}training_model.onnx``, ``{prefix}eval_model.onnx``, ``{prefix}checkpoint``, and if they
    are asked for ``{prefix}optimizer_model.onnx`` and ``{prefix}nominal_checkpoint``. Files of these names are
    replaced when all are made.

    Args:
        model: The forward model, or its path. It is not changed.
        requires_grad: The names of the trainable parameters, which are initializers of the model.
        frozen_params: The names of further parameters: those that are not trained, and running statistics, which
            training moves. Without ``requires_grad`` and ``frozen_params`` all initializers become inputs of the
            models, but the checkpoint is empty.
        loss: The loss to append to the model; by default the first output is the loss.
        optimizer: The optimizer; by default there is no optimizer model.
        artifact_directory: The folder of the files, which exists; by default the current one.
        prefix: The beginning of the names of the files.
        ort_format: Whether to write each model in ORT's format, too, as ``.ort`` beside the ``.onnx``.
        custom_op_library: The library of custom ops of the model. They have no gradient.
        additional_output_names: Values that the training and the evaluation model return after the loss.
        nominal_checkpoint: Whether to write a checkpoint that has the names of the parameters only, too.
        loss_input_names: The values that the loss reads; by default all outputs of the model.
        target: ``stock``: the training model runs on any ONNX Runtime. ``ort``: it has the ops of 1.19.2, such as
            ``com.microsoft.InPlaceAccumulatorV2``, for consumers of these.

    Raises:
        OrtTrainingError: An argument or the model is not valid, or the loss cannot be differentiated; it is a
            RuntimeError.
        OrtTrainingLookupError: A name of an output or of an input of the loss is unknown; it is a LookupError.
        OrtTrainingTypeError: The optimizer is neither an `OptimType` nor a block; it is a TypeError.
        FileNotFoundError: There is no such model or folder.
    """
    with as_ort_training_error():
        require_names(
            requires_grad=requires_grad,
            frozen_params=frozen_params,
            additional_output_names=additional_output_names,
            loss_input_names=loss_input_names,
        )
        require_choice("target", target, get_args(Target))
    if ort_format and target == "ort":
        raise OrtTrainingError(
            "ort_format needs target 'stock': ONNX Runtime has no kernels for the ops of target 'ort'"
        )
    loaded, path = _loaded(model)
    folder = _folder(artifact_directory, prefix)
    training = _Training(_loss_block(loss), loss_input_names or (), additional_output_names or (), target)
    optimizer_block = _optimizer_block(optimizer)
    _set_parameters(training, requires_grad or (), frozen_params or ())

    library = None if custom_op_library is None else os.fsdecode(custom_op_library)
    context = contextlib.nullcontext() if library is None else onnxblock.custom_op_library(library)
    with onnxblock.base(loaded, path), context:
        training(*[output.name for output in loaded.graph.output])
    models = dict(zip(("training_model", "eval_model"), training.to_models(), strict=True))
    if optimizer_block is not None:
        models["optimizer_model"] = _optimizer_model(optimizer_block, training, loaded)
    warn(_remarks(loaded, {*(requires_grad or ())}, {*(frozen_params or ())}))

    with tempfile.TemporaryDirectory(prefix=".artifacts-", dir=folder) as name:
        scratch = Path(name)
        stem = Path(f"{prefix}_").name[:-1]
        for what, artifact in models.items():
            _write(artifact, scratch / f"{stem}{what}.onnx", library, ort_format=ort_format)
        onnxblock.save_checkpoint(training.parameters(), scratch / f"{stem}checkpoint")
        if nominal_checkpoint:
            onnxblock.save_checkpoint(training.parameters(), scratch / f"{stem}nominal_checkpoint", True)
        made_files = sorted(scratch.iterdir())
        if obstacle := next((folder / file.name for file in made_files if (folder / file.name).is_dir()), None):
            raise OrtTrainingError(f"{obstacle} is a folder, where a file is to be written; nothing is written")
        for file in made_files:
            file.replace(folder / file.name)


class _Training(onnxblock.TrainingBlock):
    """The loss on the outputs of the model, and the outputs returned beside it."""

    def __init__(
        self, loss: onnxblock.Block, inputs: Sequence[str], outputs: Sequence[str], target: Target
    ) -> None:
        super().__init__()
        self._loss = loss
        self._inputs = inputs
        self._outputs = outputs
        self._target = target

    def build(self, *model_outputs: str) -> tuple[str, ...]:
        """Appends the loss."""
        return (*names_of(self._loss(*(self._inputs or model_outputs))), *self._outputs)


def _loaded(model: Any) -> tuple[onnx.ModelProto, str | None]:  # noqa: ANN401 - checked here
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist; expected an ONNX model file")
        with as_ort_training_error():
            # Not files.to_proto: as long as it is not serialized, it may have more than 2 GB.
            return ir.to_proto(files.in_memory(files.load(path))), path
    if not isinstance(model, onnx.ModelProto):
        raise OrtTrainingError(f"model is {type(model).__name__}; expected an onnx.ModelProto or a path")
    if _is_too_large(model):
        raise OrtTrainingError("the model has more than 2 GB; pass its path")
    return model, None


def _is_too_large(model: onnx.ModelProto) -> bool:
    try:
        return bool(model.ByteSize() > _MAX_PROTO_BYTES)
    except EncodeError:  # protobuf serializes it to find its size
        return True


def _folder(artifact_directory: str | bytes | os.PathLike[str] | None, prefix: str) -> Path:
    """The folder of the files; a prefix may have a folder, too."""
    folder = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))
    folder = (folder / f"{prefix}_").parent
    if not folder.is_dir():
        raise FileNotFoundError(f"artifact_directory {folder} does not exist; create it first")
    return folder


def _loss_block(loss: Any) -> onnxblock.Block:  # noqa: ANN401 - checked here
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        block: onnxblock.Block = getattr(onnxblock.loss, loss.name)()
        return block
    if isinstance(loss, onnxblock.Block):
        return loss
    raise OrtTrainingError(f"loss is {type(loss).__name__}; expected a LossType or an onnxblock.Block")


def _optimizer_block(optimizer: Any) -> onnxblock.Block | None:  # noqa: ANN401 - checked here
    if optimizer is None or isinstance(optimizer, onnxblock.Block):
        return optimizer
    if isinstance(optimizer, OptimType):
        block: onnxblock.Block = getattr(onnxblock.optim, optimizer.name)()
        return block
    raise OrtTrainingTypeError(
        f"optimizer is {type(optimizer).__name__}; expected an OptimType or an onnxblock.Block"
    )


def _set_parameters(training: _Training, trainable: Sequence[str], frozen: Sequence[str]) -> None:
    if both := sorted(set(trainable) & set(frozen)):
        raise OrtTrainingError(f"{listed(both)} cannot be in both requires_grad and frozen_params")
    for name in trainable:
        training.requires_grad(name)
    for name in frozen:
        training.requires_grad(name, value=False)


def _optimizer_model(block: Any, training: _Training, forward: onnx.ModelProto) -> ir.Model:  # noqa: ANN401
    opset = next((entry.version for entry in forward.opset_import if entry.domain in {"", "ai.onnx"}), None)
    with onnxblock.empty_base(opset_version=opset), as_ort_training_error():
        block(training.parameters())
        return files.as_ir(block.to_model_proto())


def _remarks(model: onnx.ModelProto, trainable: set[str], frozen: set[str]) -> Iterator[str]:
    """Warnings about arguments that are probably not intended."""
    names = {tensor.name for tensor in model.graph.initializer}
    if unknown := sorted(frozen - names):
        yield f"frozen_params has {listed(unknown)}, which the model has no initializer of; they are ignored"
    if not trainable | frozen:
        return
    # Training mode, whatever their attribute is.
    options = ForwardOptions(training=["*"])
    yield from model_warnings(files.as_ir(model), options, wrt=sorted(trainable), default_wrt=False)
    statistics = dict.fromkeys(
        name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]
    )
    if idle := [name for name in statistics if name in names - frozen]:
        yield (
            f"the running statistics {listed(idle)} are not in the checkpoint, so that a resumed run begins with "
            "their initial values; name them in frozen_params"
        )


def _write(model: ir.Model, path: Path, library: str | None, *, ort_format: bool) -> None:
    with as_ort_training_error():
        files.save(model, path)
        if ort_format:
            lowers = any(is_lowered(node, for_training_build=False) for node in model.graph)
            write_ort_format(rewrite(model).model if lowers else model, path, library)
