"""Passes that convert a graph to one rank of a data-parallel run."""
