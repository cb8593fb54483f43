"""PyTorch's batch norms, as ATen nodes."""
