"""Gradients of If, Loop and Scan: their bodies are differentiated by the same rules as the main graph.

A backward node has a copy of each body, which computes the forward values again, with the gradient nodes after
them. So only the states before each step of a loop have to be kept.
"""
