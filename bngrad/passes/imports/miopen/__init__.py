"""MIOpen's batch norms."""
