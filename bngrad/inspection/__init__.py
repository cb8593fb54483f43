"""The inspection of models: batch norms, ops, versions, files, and warnings."""
