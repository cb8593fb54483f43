"""A node that others are made for: what it has, read, and the nodes that its rule makes, placed."""

from __future__ import annotations

from bngrad.graph.builder import NodeMaker
from bngrad.graph.node_reader import NodeView


class NodeSite(NodeMaker, NodeView):
    """Reads one node and makes others for it; `autodiff` and `passes` say where those go and what they replace."""
