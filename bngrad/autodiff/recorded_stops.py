"""The stops of gradients that exporters record, and the custom gradients that they do not.

tf2onnx drops `tf.stop_gradient`, or writes a StopGradient in a domain of the user's choice (``custom_ops``).

jax2onnx writes `jax.lax.stop_gradient` as an Identity, and calls the output ``stop_out_<number>``. An output of
the model has a name of its own, so that such an Identity may be one. `jax.custom_vjp` and `jax.custom_jvp` leave
no trace: an exporter that knows there is none records that in the model's metadata::

    bngrad.custom_gradients: none
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bngrad.autodiff.stop_gradient import DOMAIN, NAME
from bngrad.errors import ModelError
from bngrad.graph.framework import framework_of
from bngrad.graph.nodes import all_nodes, describe

if TYPE_CHECKING:
    import onnx_ir as ir

NO_CUSTOM_GRADIENTS = "bngrad.custom_gradients"
"""The key in ``ModelProto.metadata_props``; the value is ``none``."""

_STOP_OUTPUT = re.compile(r"(.*/)?stop_out_\d+")


def with_recorded_stops(model: ir.Model) -> ir.Model:
    """Returns a model in which recorded stops are StopGradient nodes: itself, or a copy."""
    if not _recorded_stops(model):
        return model
    model = model.clone()
    for node in _recorded_stops(model):
        node.domain, node.op_type, node.version = DOMAIN, NAME, None
        node.attributes.clear()
    model.opset_imports.setdefault(DOMAIN, 1)
    return model


def _recorded_stops(model: ir.Model) -> list[ir.Node]:
    of_tensorflow = [node for node in all_nodes(model) if node.op_type == NAME and node.domain != DOMAIN]
    return [*of_tensorflow, *filter(_is_recorded_stop, _nodes_of_jax(model))]


def refuse_hidden_stops(model: ir.Model) -> None:
    """Refuses an Identity of jax2onnx that may be a stop of gradients.

    Raises:
        ModelError: There is one: its output is an output of the model that other nodes read.
    """
    for node in _nodes_of_jax(model):
        value = node.outputs[0]
        if _is_recorded_stop(node):
            continue
        if value.is_graph_output() and value.uses() and (value.dtype is None or value.dtype.is_floating_point()):
            raise ModelError(
                f"{describe(node)} may be jax.lax.stop_gradient, which jax2onnx records only in the names of "
                "values that are not outputs; leave this output out, or return another value in its place"
            )


def loses_custom_gradients(model: ir.Model) -> bool:
    """Returns whether a model may have had custom gradients that its file does not record."""
    return framework_of(model) == "jax" and model.metadata_props.get(NO_CUSTOM_GRADIENTS) != "none"


def _nodes_of_jax(model: ir.Model) -> list[ir.Node]:
    """Returns the Identity nodes of a model of jax2onnx."""
    if framework_of(model) != "jax":
        return []
    return [node for node in all_nodes(model) if (node.domain, node.op_type) == ("", "Identity")]


def _is_recorded_stop(node: ir.Node) -> bool:
    return _STOP_OUTPUT.fullmatch(node.outputs[0].name or "") is not None
