"""The line of Python that a node was exported from, as PyTorch's exporter records it in the node's metadata."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

TRACE = "pkg.torch.onnx.stack_trace"
"""The key in ``NodeProto.metadata_props``; the frames are those of a traceback, the innermost last."""

_FRAME = re.compile(r'File "([^"]*)", line (\d+), in .*\n\s*(.*)')
_OF_TORCH = re.compile(r"[\\/](torch|torchvision)[\\/]")
_LONGEST = 200


def source_line(node: ir.Node) -> str:
    """Returns the innermost line outside of PyTorch, ``model.py:12: return self.bn(x)``; empty if unknown."""
    frames = _FRAME.findall(node.metadata_props.get(TRACE, ""))
    own = [frame for frame in frames if not _OF_TORCH.search(frame[0])] or frames
    if not own:
        return ""
    path, line, text = own[-1]
    return f"{path}:{line}: {text.strip()}"[:_LONGEST]
