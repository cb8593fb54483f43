"""This file makes the modules of the folder importable in its subfolders."""
