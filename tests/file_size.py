"""A full disk, as a limit on the size of files: Python ignores the signal, so that a write beyond it fails."""

from __future__ import annotations

import contextlib


@contextlib.contextmanager
def file_size_limit(size):
    """Lets this process write no file of more than ``size`` bytes."""
    import resource  # only on POSIX

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
