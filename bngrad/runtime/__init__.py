"""The library and the sessions that use it."""
