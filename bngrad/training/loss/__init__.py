"""Loss functions, a file for each; `loss_functions` has them by name."""
