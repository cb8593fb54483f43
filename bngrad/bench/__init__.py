"""Timing of the native kernels: what is timed, beside what, and where the shapes come from."""
