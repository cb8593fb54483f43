"""Passes that make a training graph faster without changing its results."""
