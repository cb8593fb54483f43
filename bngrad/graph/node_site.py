"""A node and the new nodes that a rule makes for it."""

from __future__ import annotations

from bngrad.graph.builder import NodeMaker
from bngrad.graph.node_reader import NodeView


class NodeSite(NodeMaker, NodeView):
    """Reads one node and makes others for it; subclasses in `autodiff` and `passes` decide where those go."""
