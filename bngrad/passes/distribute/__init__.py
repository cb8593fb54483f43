"""Passes that make a graph one rank of a data-parallel run."""
