"""The command ``bngrad``, also as ``python -m bngrad``.

Nothing is imported outside of `main`: Ctrl-C ends the imports, most of a short command, as quietly as it ends the
work.
"""

import _thread
import os
import signal
import sys
import threading

_RESERVE = 1 << 20
"""Bytes, kept back for the end of a command that has no memory left."""


def main() -> None:
    """Runs the command line, and exits: with 130 if it was interrupted, whatever became of the interrupt."""
    interrupts = []

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as in the background
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = _hand_on
    code, has_memory = 130, True
    reserve: list[bytearray] = []
    try:
        reserve.append(bytearray(_RESERVE))
        from bngrad import cli  # noqa: PLC0415 - see above
        from bngrad.runtime import crash_handler as last_words  # noqa: PLC0415 - see above

        last_words.prepare(sys.argv[1:])
        code = cli.run(sys.argv[1:])
    except MemoryError:
        # There was none left even to say so: what held it goes with the error.
        reserve.clear()
        code, has_memory = 2, False
    except BaseException:
        # A library that is interrupted while it is imported may raise anything.
        if not interrupts:
            raise
    if not has_memory:
        os.write(2, b"bngrad: error: out of memory\n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is done is done
    _forget_unwritten()
    sys.exit(130 if interrupts else code)


def _hand_on(what: "sys.UnraisableHookArgs") -> None:
    """Python passes over what is raised where nothing can catch it: an interrupt comes there once more.

    A want of memory does so by itself, and needs no lines of its own.
    """
    if what.exc_type is MemoryError:
        return
    if what.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(what)
        return
    # Not os.kill, which on Windows ends the process; and to the main thread, which may be waiting for something.
    if sys.platform == "win32":
        again = threading.Timer(0.01, _thread.interrupt_main)
    else:
        again = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    again.daemon = True
    again.start()


def _forget_unwritten() -> None:
    """Drops what stdout did not take, which is an error already: Python would try again, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
