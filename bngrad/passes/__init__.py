"""The compiler passes, one a file; `pipeline` puts them in order."""
