"""Messages about names that a graph lacks."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def unknown_name(name: str, candidates: Iterable[str], what: str) -> str:
    """Returns a message such as "'wieght' is not an input of this model; did you mean 'weight'?"."""
    names = sorted(candidates)
    if near := near_names(name, names):
        return f"{name!r} is not {what} of this model; did you mean {listed(near, 'or')}?"
    return f"{name!r} is not {what} of this model, which has {listed(names)}"


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Returns up to three names that are spelled like one."""
    return difflib.get_close_matches(name, names, n=3, cutoff=0.6)


def listed(names: Iterable[str], last: str = "and", most: int = 6) -> str:
    """Returns names in quotes as a phrase, cut after `most`: "'a', 'b' and 4 more"."""
    words = [repr(name) for name in names]
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return phrase(words, last) if words else "none"


def phrase(words: Sequence[str], last: str = "and") -> str:
    """Returns one or more words as a phrase: "a, b and c"."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0]
