"""PyTorch's instance norm with running statistics, in smaller ops: its exporter drops their update.

Each channel of each sample has a mean and a variance. With the means over the samples of a batch::

    running_mean = (1 - momentum) running_mean + momentum mean of means
    running_var = (1 - momentum) running_var + momentum mean of unbiased variances
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def instance_norm(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Any:  # noqa: ANN401 - a tensor, or NotImplemented
    """Computes `torch.nn.functional.instance_norm`; NotImplemented without running statistics."""
    if running_mean is None or running_var is None:
        return NotImplemented
    if not use_input_stats:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training=False, eps=eps)
    # In a block that ran without gradients, the exported program could not write to a buffer a second time.
    with torch.enable_grad():
        axes = list(range(2, input.dim()))
        variance, mean = torch.var_mean(input.detach(), axes, correction=1)
        for running, new in ((running_mean, mean), (running_var, variance)):
            running.mul_(1 - momentum).add_(new.mean(0).to(running.dtype), alpha=momentum)
    return functional.instance_norm(input, None, None, weight, bias, use_input_stats=True, eps=eps)
