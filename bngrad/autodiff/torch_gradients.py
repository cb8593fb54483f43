"""Gradients that PyTorch's exporter records, but whose nodes have other gradients.

Restored are a detach that is an Identity, the padding of an embedding that is a Gather, and the Dropout of
attention, whose mode the exporter leaves out. Others are refused, by `LostGradients` where a gradient passes them.
So are buffers that the forward pass changes, because the exporter leaves out their new values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.forward_info import KEY as FORWARD_INFO
from bngrad.autodiff.stop_gradient import DOMAIN, NAME
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed
from bngrad.graph.node_makers import NodesAfter, NodesBefore
from bngrad.graph.nodes import all_nodes, describe, owner
from bngrad.graph.torch_calls import named_op, recorded_call
from bngrad.graph.torch_records import batch_norm_call, is_folded_batch_norm, recorded_names, updated_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.graph.torch_calls import TorchCall

_DETACHED = re.compile(r"%(detach(?:_\d+)?)\b")
_OTHERWISE = "export the module with bngrad.torch"
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def with_torch_gradients(model: ir.Model) -> ir.Model:
    """Returns a model whose nodes have the gradients that PyTorch's exporter recorded: itself, or a copy.

    Raises:
        ModelError: The forward pass changes a buffer that is not a running statistic of a batch norm.
        UnsupportedNodeError: An embedding has a max_norm, which changes the weight itself.
    """
    for node in all_nodes(model):
        if (call := recorded_call(node)) is not None and call.op == "embedding_renorm":
            raise UnsupportedNodeError(
                f"{describe(node)} is of an embedding with max_norm, which changes the weight in the forward "
                "pass; expected max_norm=None"
            )
    if FORWARD_INFO not in model.metadata_props:  # this package's exporter outputs the new values
        _refuse_lost_updates(model.graph)
    if not any(_is_changed(node) for node in all_nodes(model)):
        return model
    model = model.clone()
    names = Names(model)
    for node in [node for node in all_nodes(model) if _is_changed(node)]:
        if node.op_type == "Identity":
            node.domain, node.op_type, node.version = DOMAIN, NAME, None
        elif node.op_type == "Dropout":
            training = NodesBefore(node, names, node.name or "Dropout").constant(True, ir.DataType.BOOL)
            node.resize_inputs(3)
            node.replace_input_with(2, training)
        else:
            _pad(node, names)
    return model


def _refuse_lost_updates(graph: ir.Graph) -> None:
    """Refuses recorded changes of buffers that the graph lacks.

    Raises:
        ModelError: There is such a change.
    """
    names, kept, lost = recorded_names(graph), set(), updated_tensors(graph)
    for node in graph:
        call, norm = recorded_call(node), batch_norm_call(node)
        if is_folded_batch_norm(node):  # the folded one is not recorded; `refuse_folded` decides
            kept |= {name for name in lost if name.endswith(_STATISTICS)}
        elif norm is not None and norm.is_training is not False:
            statistics = [names[argument] for argument in norm.arguments[3:5] if argument in names]
            kept |= {*statistics, *(re.sub(r"running_mean$", "num_batches_tracked", name) for name in statistics)}
        elif call is not None and call.op == "instance_norm" and call.argument(5, "use_input_stats") == "True":
            lost += [names[argument] for argument in call.arguments[3:5] if argument in names]
    if lost := list(dict.fromkeys(name for name in lost if name not in kept)):
        raise ModelError(
            f"the forward pass changes {listed(lost)}, of which PyTorch's exporter leaves out the new values; use "
            "bngrad.torch.training_step, which has them as state, or leave the change out of forward"
        )


def _is_changed(node: ir.Node) -> bool:
    return _is_detach(node) or _padding(node) is not None or _is_dropout_of_attention(node)


def _is_detach(node: ir.Node) -> bool:
    if (node.domain, node.op_type) != ("", "Identity"):
        return False
    call = recorded_call(node)
    return (named_op(node)[0] if call is None else call.op) == "detach"


def _is_dropout_of_attention(node: ir.Node) -> bool:
    """Returns whether a Dropout is one of attention in training mode, whose mode the exporter leaves out."""
    if (node.domain, node.op_type) != ("", "Dropout") or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return False
    call = recorded_call(node)
    return call is not None and call.op == "scaled_dot_product_attention"


def _embedding(node: ir.Node) -> TorchCall | None:
    call = recorded_call(node) if (node.domain, node.op_type) == ("", "Gather") else None
    return call if call is not None and call.op == "embedding" else None


def _padding(node: ir.Node) -> int | None:
    """Returns the row of an embedding that gets no gradient; None if there is none, or for another node."""
    call = _embedding(node)
    written = "" if call is None else call.argument(2, "padding_idx")
    return int(written) if re.fullmatch(r"\d{1,18}", written) else None


def _pad(node: ir.Node, names: Names) -> None:
    """Converts Gather(table, ids) to Where(ids == padding, StopGradient(rows), rows)."""
    (rows,), ids = node.outputs, node.inputs[1]
    assert ids is not None, "a Gather has indices"  # noqa: S101
    readers, name = list(rows.uses()), str(rows.name)
    rows.name = names.fresh(f"{name}_rows")
    make = NodesAfter(node, names, name)
    is_padding = make.op("Equal", ids, make.constant(_padding(node), ids.dtype or ir.DataType.INT64))
    (stopped,) = make.outputs_of(NAME, rows, outputs=["stopped"], domain=DOMAIN)
    result = make.op("Where", make.op("Unsqueeze", is_padding, make.int64([-1])), stopped, rows)
    result.name = name
    for value in (stopped, result):
        value.type, value.shape = rows.type, rows.shape
    for reader, index in readers:
        reader.replace_input_with(index, result)
    outputs = owner(node).outputs
    for index, value in enumerate(outputs):
        if value is rows:
            outputs[index] = result


class LostGradients:
    """Recorded gradients of a model that its nodes do not have, and that are refused.

    Args:
        model: The forward model, as `with_torch_gradients` returns it.
    """

    def __init__(self, model: ir.Model) -> None:
        self._by_name = {str(value.name): node for node in model.graph for value in node.outputs if value.name}
        self._is_whole = FORWARD_INFO in model.metadata_props  # this package's exporter optimizes nothing away

    def reason(self, node: ir.Node) -> str | None:
        """Returns the reason why the gradient of a node would not be PyTorch's; None if the record shows none."""
        call = recorded_call(node)
        if call is None:
            return None
        if _embedding(node) is not None and call.argument(3, "scale_grad_by_freq") == "True":
            return "PyTorch's embedding had scale_grad_by_freq=True, which is unsupported; expected False"
        if call.op == "cross_entropy_loss" and _is_smoothed(call) and node.op_type == "SoftmaxCrossEntropyLoss":
            return f"PyTorch's exporter left out its label_smoothing={_smoothing(call)}; {_OTHERWISE}"
        if lost := None if self._is_whole else next(self._lost_stops(call), None):
            return (
                f"PyTorch's {call.op} read {lost!r}, a detached value, but an optimizer has removed the detach; "
                f"export with torch.onnx.export(..., dynamo=True, optimize=False), or {_OTHERWISE}"
            )
        return None

    def _lost_stops(self, call: TorchCall) -> Iterator[str]:
        for argument in call.arguments:
            for name in _DETACHED.findall(argument):
                maker = self._by_name.get(name)
                if maker is None or maker.op_type not in ("Identity", NAME):
                    yield name


def _smoothing(call: TorchCall) -> str:
    return call.argument(5, "label_smoothing")


def _is_smoothed(call: TorchCall) -> bool:
    return _smoothing(call) not in ("", "0", "0.0")
