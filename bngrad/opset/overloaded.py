"""The ops of ``bngrad`` whose nodes name a function of their own by an overload."""

from __future__ import annotations

from bngrad.opset import conv_channels_last, conv_grad, group_updates

SIGNATURES = {
    conv_grad.NAME: conv_grad.SIGNATURE,
    conv_channels_last.NAME: conv_channels_last.SIGNATURE,
    **group_updates.SIGNATURES,
}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""
