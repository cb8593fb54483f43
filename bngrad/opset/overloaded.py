"""The ops of ``bngrad`` whose nodes name a function of their own by an overload."""

from __future__ import annotations

from bngrad.opset import conv_channels_last, conv_grad

SIGNATURES = {op.NAME: op.SIGNATURE for op in (conv_grad, conv_channels_last)}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""
