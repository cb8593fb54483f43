"""The call of PyTorch's op that a node was made from, as `torch_records` says where it is recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

CALL = "pkg.torch.onnx.fx_node"
"""Of ``NodeProto.metadata_props``."""

_CLASSES = "pkg.torch.onnx.class_hierarchy"
_WRITTEN = re.compile(
    r"target=(?:torch\.ops\.)?(\w+)\.(\w+)\.(\w+)\]\(args = \((.*)\), kwargs = \{(.*)\}\)", re.DOTALL
)
_NAMED = re.compile(r"node_([a-z]\w*?)(?:_\d+)?(__\d+)?")
_NUMBER = re.compile(r"%scalar_tensor_default(_\d+)?")
_LONGEST = 1 << 16
"""Of what is read, in characters."""


class TorchCall(NamedTuple):
    """A call of an op of PyTorch's."""

    op: str
    """Its name, such as ``clamp``."""
    overload: str
    """Such as ``Tensor``."""
    arguments: tuple[str, ...]
    """As they are written: ``%x`` for a tensor, else ``0.5``, ``None``, ``[0, 1]``."""
    keywords: Mapping[str, str]

    def argument(self, index: int, name: str) -> str:
        """Returns an argument, by its place or its name; an empty text if it is left out."""
        return self.arguments[index] if index < len(self.arguments) else self.keywords.get(name, "")

    def is_number(self, index: int) -> bool:
        """Whether an argument is a number of the module, which PyTorch's exporter may write as a tensor."""
        written = self.arguments[index] if index < len(self.arguments) else "None"
        return not written.startswith("%") or _NUMBER.fullmatch(written) is not None


def recorded_call(node: ir.Node) -> TorchCall | None:
    """Returns the call that a node was made from; None if it is not recorded."""
    found = _WRITTEN.search(node.metadata_props.get(CALL, "")[:_LONGEST])
    if found is None:
        return None
    keywords = dict(part.split(": ", 1) for part in _parts(found[5]) if ": " in part)
    return TorchCall(found[2], found[3], tuple(_parts(found[4])), keywords)


def named_op(node: ir.Node) -> tuple[str, bool]:
    """The op of PyTorch's in the name of a node, as tools keep it that drop the record; else an empty text.

    Returns:
        The op, and whether the node has the number of an output of it: an op with several outputs.
    """
    found = _NAMED.fullmatch(node.name or "")
    return ("", False) if found is None else (found[1], found[2] is not None)


def recorded_classes(node: ir.Node) -> str:
    """The classes of the modules that a node was exported from, as one text; empty if unknown."""
    return node.metadata_props.get(_CLASSES, "")


def _parts(written: str) -> Iterator[str]:
    """The parts of a list between commas that are in no brackets."""
    depth, start = 0, 0
    for index, character in enumerate(written):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            if part := written[start:index].strip():
                yield part
            start = index + 1
    if part := written[start:].strip():
        yield part
