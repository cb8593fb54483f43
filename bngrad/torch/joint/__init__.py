"""Training graphs whose backward pass PyTorch's autograd computes."""
