"""Writes results as HTML: one self-contained page, which fetches nothing and also reads without JavaScript."""
