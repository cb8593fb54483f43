"""Quantization-aware training: rounding where the deployed model rounds, and the deployed model in int8."""
