"""Benchmarks of the native kernels, compared with the memory bandwidth."""
