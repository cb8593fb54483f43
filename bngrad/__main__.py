"""Entry point of the command ``bngrad`` and of ``python -m bngrad``.

The package is imported inside `main`, so that Ctrl-C during the imports, which take most of a short command's
time, also exits without a traceback.
"""

import _thread
import gc
import io
import os
import signal
import sys
import threading

_RESERVE = 1 << 20
"""Bytes reserved for reporting an out-of-memory error."""


def main() -> None:
    """Runs the command line and exits, with code 130 if interrupted, even if a library hid the interrupt."""
    interrupts = []

    def interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    # A background job ignores SIGINT; leave that as it is.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = _repeat_interrupt
    code, has_memory = 130, True
    reserve: list[bytearray] = []
    if sys.stdout is None:  # closed by the caller, as by `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open until the end
    elif isinstance(sys.stdout, io.TextIOWrapper):
        # Names in models may have characters that the encoding lacks: a pipe's is seldom UTF-8 on Windows.
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open until the end
    try:
        reserve.append(bytearray(_RESERVE))
        from bngrad import cli  # noqa: PLC0415 - see above
        from bngrad.cli import deferred_imports  # noqa: PLC0415 - see above
        from bngrad.runtime import crash_handler  # noqa: PLC0415 - see above

        deferred_imports.install()
        crash_handler.install(sys.argv[1:])
        code = cli.run(sys.argv[1:])
    except MemoryError:
        # Not enough memory even to print the error: release the reserve, and print after the exception is gone.
        reserve.clear()
        code, has_memory = 2, False
    except BaseException:
        # A library interrupted during its import may raise any exception.
        if not interrupts:
            raise
    if not has_memory:
        os.write(2, b"bngrad: error: out of memory\n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
    _discard_unwritten_output()
    gc.freeze()  # Python would search all objects for cycles at exit, a sixth of a short command's time
    sys.exit(130 if interrupts else code)


def _repeat_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Sends an interrupt again that was raised where Python ignores exceptions, as in ``__del__``.

    Out-of-memory errors are dropped: the allocation that follows raises one as well.
    """
    if unraisable.exc_type is MemoryError:
        return
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    # os.kill ends the process on Windows. The signal goes to the main thread, which may be blocked.
    if sys.platform == "win32":
        timer = threading.Timer(0.01, _thread.interrupt_main)
    else:
        timer = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.daemon = True
    timer.start()


def _discard_unwritten_output() -> None:
    """Discards what could not be written to stdout; Python would try again at exit and return 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
