"""Generators of the networks that tests, benchmarks and the demo train."""
