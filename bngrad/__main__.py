"""The command ``bngrad``, also as ``python -m bngrad``.

Nothing is imported outside of `main`: Ctrl-C ends the imports, most of a short command, as quietly as it ends the
work.
"""

import os
import signal
import sys


def main() -> None:
    """Runs the command line, and exits: with 130 if it was interrupted, whatever became of the interrupt."""
    interrupts = []

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as in the background
        signal.signal(signal.SIGINT, interrupt)
    code = 130
    try:
        from bngrad import cli  # noqa: PLC0415 - see above

        code = cli.run(sys.argv[1:])
    except BaseException:
        # A library that is interrupted while it is imported may raise anything.
        if not interrupts:
            raise
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is done is done
    _forget_unwritten()
    sys.exit(130 if interrupts else code)


def _forget_unwritten() -> None:
    """Drops what stdout did not take, which is an error already: Python would try again, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
