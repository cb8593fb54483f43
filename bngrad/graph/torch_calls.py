"""The call of a PyTorch op that a node was exported from; `torch_records` describes the record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

CALL = "pkg.torch.onnx.fx_node"
"""The key in ``NodeProto.metadata_props``."""

_CLASSES = "pkg.torch.onnx.class_hierarchy"
_WRITTEN = re.compile(
    r"target=(?:torch\.ops\.)?(\w+)\.(\w+)\.(\w+)\]\(args = \((.*)\), kwargs = \{(.*)\}\)", re.DOTALL
)
_NAMED = re.compile(r"node_([a-z]\w*?)(?:_\d+)?(__\d+)?")
_NUMBER = re.compile(r"%scalar_tensor_default(_\d+)?")
_LONGEST = 1 << 16
"""The most characters of a record that are read."""


class TorchCall(NamedTuple):
    """A call of a PyTorch op."""

    op: str
    """The name of the op, such as ``clamp``."""
    overload: str
    """The overload, such as ``Tensor``."""
    arguments: tuple[str, ...]
    """The arguments as text: ``%x`` for a tensor, else ``0.5``, ``None``, ``[0, 1]``."""
    keywords: Mapping[str, str]

    def argument(self, index: int, name: str) -> str:
        """Returns an argument, by its index or its name; an empty text if it is left out."""
        return self.arguments[index] if index < len(self.arguments) else self.keywords.get(name, "")

    def is_number(self, index: int) -> bool:
        """Returns whether an argument is a number, which PyTorch's exporter may write as a tensor."""
        written = self.arguments[index] if index < len(self.arguments) else "None"
        return not written.startswith("%") or _NUMBER.fullmatch(written) is not None


def recorded_call(node: ir.Node) -> TorchCall | None:
    """Returns the call that a node was made from; None if it is not recorded."""
    match = _WRITTEN.search(node.metadata_props.get(CALL, "")[:_LONGEST])
    if match is None:
        return None
    keywords = dict(part.split(": ", 1) for part in _parts(match[5]) if ": " in part)
    return TorchCall(match[2], match[3], tuple(_parts(match[4])), keywords)


def named_op(node: ir.Node) -> tuple[str, bool]:
    """Returns the PyTorch op in the name of a node, which tools keep that drop the record; else an empty text.

    Returns:
        The op, and whether the name has the number of an output: an op with several outputs.
    """
    match = _NAMED.fullmatch(node.name or "")
    return ("", False) if match is None else (match[1], match[2] is not None)


def recorded_classes(node: ir.Node) -> str:
    """Returns the classes of the modules that a node was exported from, as one text; empty if unknown."""
    return node.metadata_props.get(_CLASSES, "")


def _parts(written: str) -> Iterator[str]:
    """Yields the parts of a list between the commas outside of brackets."""
    depth, start = 0, 0
    for index, character in enumerate(written):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            if part := written[start:index].strip():
                yield part
            start = index + 1
    if part := written[start:].strip():
        yield part
