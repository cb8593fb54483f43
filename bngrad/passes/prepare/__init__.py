"""Passes that prepare a model for the other passes: its opset, types, functions and state."""
