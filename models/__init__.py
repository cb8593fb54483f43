"""Generators of the networks for tests, benchmarks and the training demo."""
