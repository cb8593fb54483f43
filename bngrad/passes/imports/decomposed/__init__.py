"""Batch norm spelled in primitives -> the ops of ``bngrad``."""
