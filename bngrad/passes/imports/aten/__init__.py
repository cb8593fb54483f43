"""PyTorch's batch-norm gradients as ATen nodes."""
