"""Passes that make a training graph faster and change no result."""
