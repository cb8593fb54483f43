"""SVG pictures of matplotlib that follow the light or dark mode of the page that shows them."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import matplotlib as mpl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
svg { color: #1f2328 }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }
"""


def themed(svg: str) -> str:
    """Makes black the text color of the mode and white transparent, and leaves metadata out."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", svg)
    svg = re.sub(r"fill: #ffffff", "fill: none", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"(<svg[^>]*?)>", r'\1 fill="currentColor">' + f"\n<style>{STYLE}</style>", svg, count=1)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def as_svg(figure: Figure) -> str:
    """Returns a figure as SVG with text as text, the same bytes in each run."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bngrad"}), io.StringIO() as file:
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
        return themed(file.getvalue())
