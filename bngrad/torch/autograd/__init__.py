"""Runs and differentiates ONNX models in PyTorch: the reference of ``validate --against torch``.

`ops` has a function for each op, built from PyTorch's own; all gradients are those of its autograd.
`bngrad.autodiff.rules` is not used.
"""
