"""Search an exception's causes and contexts."""

from __future__ import annotations


def is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Returns whether an exception, or any exception that led to it, is of a kind."""
    return any(isinstance(cause, kind) for cause in _chain(error))


def notes_of(error: BaseException) -> list[str]:
    """Returns the notes of an exception, and of those that led to it."""
    return [note for cause in _chain(error) for note in getattr(cause, "__notes__", ())]


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    for cause in chain:
        # Add each once: an exception may be both cause and context of another, and chains may have cycles.
        chain += {e for e in (cause.__cause__, cause.__context__) if e is not None} - set(chain)
    return chain
