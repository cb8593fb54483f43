"""Passes that rewrite the batch norms of other systems as ops of ``bngrad``: one module or package per system."""
