"""Texts for terminals and logs: a name in a model, which may have any characters, is shown and does nothing."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""Returns a text with escapes, such as ``\x1b``, for what is not printable: control and format characters."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
