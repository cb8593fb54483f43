"""Reading and writing models and their external data, and checks that a model is well formed."""
