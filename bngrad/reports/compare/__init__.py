"""Comparisons of training runs, and of reports of `validate` and `bench`."""
