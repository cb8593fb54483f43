"""MIOpen's batch-norm functions as nodes."""
