"""Proves that a rewritten training graph computes what the original did; `validate` says how."""
