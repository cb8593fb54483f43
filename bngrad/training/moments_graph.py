"""The graph that computes the moments of the inputs of batch norms, which use the statistics of the batch in it.

::

    Y = BatchNormalization(X, scale, bias, running_mean, running_var)
    =>  moments = BatchNormalizationMoments(X)                          a new output, [3, C] in double
        Y       = BatchNormalizationTraining(X, scale, bias, ...)       which the next layers read
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.graph.batch_norms import require_parameters
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAfter
from bngrad.opset.functions import DOMAIN
from bngrad.passes.check import infer_and_check
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.onnx import ImportOnnxPass
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import raise_opset
from bngrad.passes.workarounds.present_keys import remove_unused_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def moments_graph(
    model: ir.Model, batch_norms: Collection[str], source: ir.Model
) -> tuple[ir.Model, dict[str, str]]:
    """Returns a graph whose outputs are moments, and the names of the outputs by those of the batch norms.

    Args:
        model: A model in inference mode; it is changed.
        batch_norms: The unique names of batch norms of its main graph. Those that no output depends on are left
            out.
        source: The user's model, for messages.

    Raises:
        ModelError: The graph is not valid.
        UnsupportedNodeError: A batch norm has a rank, type or parameters that the ops do not take.
    """
    model = raise_opset(model)
    graph, names = model.graph, Names(model)
    for node in graph:
        if node.name in batch_norms and is_of_onnx(node):
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            node.resize_outputs(3)
            for value in node.outputs[1:]:
                value.name = names.fresh(f"{node.name}_new")
    InferTypesPass()(model)
    require_parameters(model)
    ImportOnnxPass()(model)
    outputs = {}
    names = Names(model)
    for node in list(graph):
        if node.name in batch_norms and node.domain == DOMAIN:
            make = NodesAfter(node, names, str(node.name))
            x, axes = node.inputs[0], node.inputs[-1]
            assert x is not None, "the pass refuses missing inputs"  # noqa: S101
            outputs[str(node.name)] = make.bngrad("BatchNormalizationMoments", x, axes=axes)[0]
    return _with_outputs(model, outputs, source)


def moments_of_layers(
    model: ir.Model, layers: Mapping[str, Sequence[int]], source: ir.Model
) -> tuple[ir.Model, dict[str, str]]:
    """Returns a graph of the moments of what layers compute, and the names of its outputs by those of the layers.

    Args:
        model: A model in inference mode; it is changed.
        layers: The axes of the sums for each layer of the main graph, by its unique name.
        source: The user's model, for messages.

    Raises:
        ModelError: The graph is not valid.
    """
    model = raise_opset(model)
    names, outputs = Names(model), {}
    for node in list(model.graph):
        if node.name in layers:
            make = NodesAfter(node, names, str(node.name))
            axes = make.int64(list(layers[str(node.name)]))
            outputs[str(node.name)] = make.bngrad("BatchNormalizationMoments", node.outputs[0], axes=axes)[0]
    return _with_outputs(model, outputs, source)


def _with_outputs(
    model: ir.Model, outputs: Mapping[str, ir.Value], source: ir.Model
) -> tuple[ir.Model, dict[str, str]]:
    """Returns a model with only some outputs, checked, and their names."""
    graph = model.graph
    graph.outputs.clear()
    graph.outputs.extend(outputs.values())
    remove_unused_nodes(model)
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    EmbedFunctionsPass()(model)
    RemoveUnusedOpsetsPass(process_functions=False)(model)
    infer_and_check(model, source)
    return model, {name: str(value.name) for name, value in outputs.items()}
