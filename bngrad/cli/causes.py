"""What an error came of."""

from __future__ import annotations


def came_of(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is one of a kind, or came of one, whatever was made of it on the way."""
    found = [error]
    for one in found:
        # Each once: one error may be cause and context of the next, and chains may be circles.
        found += {e for e in (one.__cause__, one.__context__) if e is not None} - set(found)
    return any(isinstance(one, kind) for one in found)
