"""Blocks that make whole models: a forward model, or a training and an evaluation model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from bngrad.ort_training.errors import OrtTrainingError, as_ort_training_error
from bngrad.ort_training.onnxblock import _graph_utils, model_accessor
from bngrad.ort_training.onnxblock.block import Block
from bngrad.ort_training.training_model import evaluation_model, training_model

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.ort_training.training_model import Target


class ForwardBlock(Block):
    """A block whose outputs become the outputs of the model."""

    _model: onnx.ModelProto | None = None

    def to_model_proto(self) -> onnx.ModelProto:
        """Returns the model.

        Raises:
            OrtTrainingError: The block was not called yet.
        """
        if self._model is None:
            raise OrtTrainingError("the forward model is not built yet; call the block first")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as build
        """Builds the block and the model.

        Raises:
            OrtTrainingError: There is no base model, or it is not valid.
            OrtTrainingLookupError: `build` returned an unknown name.
        """
        model, output = _built(self, *args, **kwargs)
        self._model = model_accessor.current().model = _graph_utils.to_proto(model)
        return output


class TrainingBlock(Block):
    """A block that is differentiated: the first of its outputs is the loss.

    `requires_grad` sets which parameters are trainable; by default no parameter is.
    """

    _target: Target = "stock"

    def __init__(self) -> None:
        super().__init__()
        self._requires_grad: dict[str, bool] = {}
        self._parameters: tuple[list[onnx.TensorProto], list[onnx.TensorProto]] | None = None
        self._models: tuple[ir.Model, ir.Model] | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Says whether a parameter is trainable or frozen.

        A parameter is an initializer that becomes an input of the models, so that its value can change. If neither
        is said of any, all initializers become inputs. The gradient with respect to an input of the model can be
        asked for, too.

        Args:
            argument_name: Its name.
            value: Whether it is trainable.
        """
        self._requires_grad[argument_name] = value

    def parameters(self) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
        """Returns the trainable and the frozen parameters, each in the order of the model's initializers.

        Raises:
            OrtTrainingError: The block was not called yet.
        """
        if self._parameters is None:
            # The text of 1.19.2, which programs look for.
            raise OrtTrainingError(
                "Please build the training model first before trying to retrieve the parameters."
            )
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Returns the training and the evaluation model.

        Raises:
            OrtTrainingError: The block was not called yet.
        """
        train, evaluation = self.to_models()
        return _graph_utils.to_proto(train), _graph_utils.to_proto(evaluation)

    def to_models(self) -> tuple[ir.Model, ir.Model]:
        """Returns the same as `onnx_ir` models.

        Raises:
            OrtTrainingError: The block was not called yet.
        """
        if self._models is None:
            raise OrtTrainingError("the training and evaluation models are not built yet; call the block first")
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as build
        """Builds the block, the training model and the evaluation model.

        Raises:
            OrtTrainingError: There is no base model, it is not valid, or it cannot be differentiated.
            OrtTrainingLookupError: `build` returned an unknown name.
        """
        forward, output = _built(self, *args, **kwargs)
        trainable, frozen = (
            {name for name, is_trainable in self._requires_grad.items() if is_trainable is trained}
            for trained in (True, False)
        )
        initializers = list(self.base.graph.initializer)
        parameters = trainable | frozen or {tensor.name for tensor in initializers}
        with as_ort_training_error():
            self._models = (
                training_model(
                    forward,
                    parameters=parameters,
                    trainable=trainable,
                    target=self._target,
                    custom_ops=model_accessor.has_library(),
                ),
                evaluation_model(forward, parameters=parameters),
            )
        self._parameters = (
            [_copy(tensor) for tensor in initializers if tensor.name in trainable],
            [_copy(tensor) for tensor in initializers if tensor.name in frozen],
        )
        model_accessor.current().model = _graph_utils.to_proto(self._models[0])
        return output


def _built(block: Block, *args: Any, **kwargs: Any) -> tuple[ir.Model, Any]:  # noqa: ANN401 - as build
    """Builds a block, and returns the typed model with its outputs, and what `build` returned."""
    block.base = model_accessor.current().model
    output = block.build(*args, **kwargs)
    model = _graph_utils.typed(block.base)
    _graph_utils.set_outputs(model, _graph_utils.names_of(output))
    return model, output


def _copy(tensor: onnx.TensorProto) -> onnx.TensorProto:
    result = onnx.TensorProto()
    result.CopyFrom(tensor)
    return result
