"""The command ``bngrad``, also as ``python -m bngrad``.

Nothing is imported outside of `main`: Ctrl-C ends the imports, most of a short command, as quietly as it ends the
work.
"""

import sys


def main() -> None:
    """Runs the command line, and exits."""
    try:
        from bngrad import cli  # noqa: PLC0415 - see above

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
