"""PyTorch's embedding, as ONNX. `torch.onnx.export` ignores what its options say of the gradient."""

from __future__ import annotations

from typing import Any

from bngrad.errors import UnsupportedNodeError
from bngrad.torch.onnx_ops import detach, op


def embedding(
    weight: Any,  # noqa: ANN401 - of onnxscript's
    indices: Any,  # noqa: ANN401
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001 - the gradient is dense, with the same values
) -> Any:  # noqa: ANN401
    """aten.embedding: the row ``padding_idx`` gets no gradient.

    Raises:
        UnsupportedNodeError: The gradient is scaled by the frequency of the indices.
    """
    if scale_grad_by_freq:
        raise UnsupportedNodeError(
            "the module has an embedding with scale_grad_by_freq=True, which is unsupported; expected False"
        )
    rows = op.Gather(weight, indices)
    if padding_idx < 0:
        return rows
    padding = op.Equal(indices, op.CastLike(op.Constant(value_int=padding_idx), indices))
    return op.Where(op.Unsqueeze(padding, op.Constant(value_ints=[-1])), detach(rows), rows)
