"""Optimizers, a file for each; `optimizers` has them by name."""
