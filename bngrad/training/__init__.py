"""Training steps: losses, optimizers, state, Trainer, finalize."""
