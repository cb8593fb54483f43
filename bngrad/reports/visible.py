"""Escapes control characters, so that names in a model cannot affect terminals, logs and reports."""

from __future__ import annotations

LINES = "\n\r\t"
"""The control characters that a text of several lines keeps."""


def visible(text: str, keep: str = "") -> str:
    r"""Returns a text with escapes, such as ``\x1b``, for control, bidirectional and other format characters.

    Args:
        text: The text.
        keep: Characters that stay, such as `LINES`.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)
