"""Writes results: as text, as JUnit XML and as HTML."""
