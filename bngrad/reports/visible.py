"""Texts for terminals, logs and reports: a name in a model may have any characters, is shown, and does nothing."""

from __future__ import annotations

LINES = "\n\r\t"
"""What a text of several lines keeps."""


def visible(text: str, keep: str = "") -> str:
    r"""Returns a text with escapes, such as ``\x1b``, for control, bidirectional and other format characters.

    Args:
        text: The text.
        keep: Characters that stay, such as `LINES`.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else ascii(one)[1:-1] for one in text)
