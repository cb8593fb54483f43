"""``python -m bngrad``."""

from bngrad.cli import main

main()
