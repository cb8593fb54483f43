"""The ops of ``bngrad`` that `functions` has not. Most of their nodes name their function by an overload."""

from __future__ import annotations

from bngrad.opset import conv_channels_last, conv_grad, group_updates, max_pool_grad

SIGNATURES = {
    conv_grad.NAME: conv_grad.SIGNATURE,
    conv_channels_last.NAME: conv_channels_last.SIGNATURE,
    **group_updates.SIGNATURES,
    max_pool_grad.NAME: max_pool_grad.SIGNATURE,
}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""

WITHOUT_OVERLOAD = frozenset({max_pool_grad.NAME})
"""Those with one function for all nodes."""
