"""Derivatives of a model as models: products with vectors, and Jacobians. They need no loss."""
