"""Passes that bring a model into the form that the others take."""
