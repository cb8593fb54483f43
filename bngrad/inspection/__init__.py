"""What is in a model."""
