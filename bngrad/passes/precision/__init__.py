"""Mixed precision: the ops of a forward model that compute in 16 bits."""
