"""Runs and differentiates ONNX models in PyTorch: the reference of ``validate --against torch``.

`ops` has a function for each op, made of PyTorch's own; all gradients are those of its autograd. Nothing of
`bngrad.autodiff.rules` takes part.
"""
