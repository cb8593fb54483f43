"""Checks that a training graph computes the right gradients; see `bngrad.validate`."""
