"""Models and their external data in and out, and what is well formed."""
