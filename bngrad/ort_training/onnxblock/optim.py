"""Optimizers as blocks: models of ops of ``com.microsoft``, which `bngrad.ort_training.api.Optimizer` can run.

Their inputs are, in this order, ``learning_rate`` float [1], ``step`` int64 [1], and the sequences ``params``,
``gradients``, ``first_order_moments`` and, for AdamW, ``second_order_moments``. Their output is a bool [1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx

from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.ort_training.errors import OrtTrainingError
from bngrad.ort_training.onnxblock import _graph_utils
from bngrad.ort_training.onnxblock.block import Block
from bngrad.ort_training.onnxblock.onnxblock import ForwardBlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    Parameters = tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]


class ClipGradNorm(Block):
    """Scales gradients by min(max_norm / (norm + 1e-6), 1), where the norm is the L2 norm of all of them.

    Args:
        max_norm: The largest norm.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        """Appends the node, which reads and returns a sequence of float tensors."""
        output = _graph_utils.append_node(
            self.base,
            "InplaceClipGradNorm",
            [gradients_name],
            domain=MICROSOFT,
            output="clip_grad_norm_output",
            max_norm=float(self._max_norm),
        )
        self.base.graph.value_info.append(_sequence(output, onnx.TensorProto.FLOAT))
        return output


class AdamWOptimizer(Block):
    """Only the AdamW op; `AdamW` describes the arguments."""

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__()
        self._attributes: dict[str, Any] = {
            "alpha": float(betas[0]),
            "beta": float(betas[1]),
            "epsilon": float(eps),
            "weight_decay": float(weight_decay),
            "correct_bias": int(bias_correction),
            "adam_mode": 1,
        }

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        """Appends the node."""
        inputs = [
            learning_rate_name,
            step_name,
            parameter_sequence_name,
            gradient_sequence_name,
            first_order_moment_sequence_name,
            second_order_moment_sequence_name,
        ]
        return _graph_utils.append_node(
            self.base,
            "AdamWOptimizer",
            inputs,
            domain=MICROSOFT,
            output="adamw.updated_flag",
            **self._attributes,
        )


class SGDOptimizer(Block):
    """Only the SGD op: w -= learning_rate gradient."""

    def build(self, learning_rate_name: str, gradients_name: str, params_name: str) -> str:
        """Appends the node. It takes the parameters second, so 1.19.2 passes them as ``gradients_name``."""
        inputs = [learning_rate_name, gradients_name, params_name]
        return _graph_utils.append_node(
            self.base, "SGDOptimizerV2", inputs, domain=MICROSOFT, output="update_completed"
        )


class _Optimizer(ForwardBlock):
    """A model of an optimizer.

    Args:
        clip_grad: A block that clips the gradients, such as `ClipGradNorm`.
    """

    _moments: tuple[str, ...]

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(self, parameters: Parameters) -> str:
        """Appends the inputs and the nodes.

        Args:
            parameters: The trainable and the frozen parameters, as `TrainingBlock.parameters` returns them.

        Raises:
            OrtTrainingError: No parameter is trainable, or they differ in type.
        """
        dtype = _dtype(parameters[0])
        graph = self.base.graph
        graph.input.extend(
            [
                _graph_utils.float_info("learning_rate", [1]),
                onnx.helper.make_tensor_value_info("step", onnx.TensorProto.INT64, [1]),
                *(_sequence(name, dtype) for name in ("params", "gradients", *self._moments)),
            ]
        )
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        output = self._update(gradients)
        graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.BOOL, [1]))
        return output

    def _update(self, gradients: str) -> str:
        raise NotImplementedError


class AdamW(_Optimizer):
    """AdamW, with the decay after the update: w -= rate m / (sqrt(v) + eps), then w -= learning_rate decay w.

    The rate is learning_rate sqrt(1 - beta2^step) / (1 - beta1^step) with the bias correction.

    Args:
        bias_correction: Whether to correct the bias of the moments m and v.
        betas: Their decay rates beta1 and beta2.
        eps: The term of the denominator.
        weight_decay: The decay.
        clip_grad: A block that clips the gradients, such as `ClipGradNorm`.
    """

    _moments = ("first_order_moments", "second_order_moments")

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: Block | None = None,
    ) -> None:
        super().__init__(clip_grad)
        self._adamw = AdamWOptimizer(bias_correction, betas, eps, weight_decay)

    def _update(self, gradients: str) -> str:
        return str(self._adamw("learning_rate", "step", "params", gradients, *self._moments))


class SGD(_Optimizer):
    """Stochastic gradient descent without momentum: w -= learning_rate gradient.

    Args:
        clip_grad: A block that clips the gradients, such as `ClipGradNorm`.
    """

    _moments = ("first_order_moments",)  # 1.19.2 feeds it, and its op does not read it.

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__(clip_grad)
        self._sgd = SGDOptimizer()

    def _update(self, gradients: str) -> str:
        return str(self._sgd("learning_rate", "params", gradients))


def _dtype(trainable: Sequence[onnx.TensorProto]) -> int:
    """The type of all trainable parameters."""
    types = {tensor.data_type: tensor.name for tensor in trainable}
    if not types:
        raise OrtTrainingError(
            "no parameter is trainable, so an optimizer has nothing to update; name parameters in requires_grad, "
            "or leave the optimizer out"
        )
    if len(types) > 1:
        types_text = " and ".join(
            f"{name!r} is {onnx.TensorProto.DataType.Name(dtype).lower()}" for dtype, name in types.items()
        )
        raise OrtTrainingError(f"trainable parameters differ in type: {types_text}; expected one type for all")
    return next(iter(types))


def _sequence(name: str, dtype: int) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_sequence_value_info(name, dtype, None)
