"""The batch norms of other systems, one module or package a system."""
