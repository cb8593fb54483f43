"""Prepares a forward model for ORT's gradient builder, so that it accepts the model and computes it right.

The steps of `differentiate` come first: functions are inlined, the opset is raised, and every batch norm
gets its mode and its own running statistics. Then comes what only ORT 1.19.2 needs: the opset and IR version are
lowered to what it reads, ops without a gradient there are respelled (`repairs`), weights and running statistics
become graph inputs (`inputs`), and what the builder gets wrong is refused (`dropped`, `refusals`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir
from onnx import version_converter

from bngrad.autodiff.chosen_stops import with_chosen_stops
from bngrad.autodiff.ghost_batches import refuse_ghost_batches
from bngrad.autodiff.loss_and_wrt import find_loss, find_wrt
from bngrad.autodiff.prepare_forward import with_modes
from bngrad.autodiff.recorded_stops import with_recorded_stops
from bngrad.autodiff.running_statistics import is_given, is_of_onnx
from bngrad.autodiff.stop_gradient import refuse_stops
from bngrad.autodiff.walk import refuse_taken_names
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.node_reader import static_shape
from bngrad.graph.nodes import all_nodes, default_opset
from bngrad.io.files import as_ir, in_memory
from bngrad.opset.functions import MIN_OPSET
from bngrad.options import ForwardOptions
from bngrad.oracle.dropped import refuse_dropped
from bngrad.oracle.inputs import become_plain_inputs
from bngrad.oracle.path import gradient_path
from bngrad.oracle.refusals import (
    refuse_frozen_in_bodies,
    refuse_overwritten,
    refuse_path,
    refuse_running_statistics,
    require_float_scalar,
)
from bngrad.oracle.repairs import repair
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from bngrad.io.files import AnyModel

_OPSET = 21
_IR_VERSION = 10


class Prepared(NamedTuple):
    """A forward model that ORT's gradient builder takes."""

    model: ir.Model
    loss: str
    """A float scalar, an output of the graph."""
    wrt: list[str]
    """Graph inputs that the loss depends on."""
    values: dict[str, NDArray[Any]]
    """The values of the initializers that have become graph inputs; to be fed with the data."""
    notes: list[str]
    """The changes, in words."""


def prepare_forward(
    model: AnyModel,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    *,
    options: ForwardOptions = ForwardOptions(),
    frozen_statistics_as_inputs: bool = False,
) -> Prepared:
    """Prepares a forward model for `Oracle.build_gradient`.

    Args:
        model: The forward model; it is not changed.
        loss: The value to differentiate; by default the only float output of one element.
        wrt: Graph inputs and initializers to differentiate with respect to; by default the weights that the loss
            depends on, see `autodiff.weights`.
        options: The modes of the batch norms, and their shared statistics.
        frozen_statistics_as_inputs: Whether the statistics of frozen batch norms become graph inputs too; ORT
            folds initializers, in float32.

    Raises:
        InputError: The model's external data cannot be read.
        ModelError: A name is unknown, or the oracle would fail on the model or answer wrongly.
    """
    source = as_ir(model)
    stopped = with_recorded_stops(with_chosen_stops(source, options.stop_gradient))
    refuse_stops(stopped, "ONNX Runtime's gradient builder")
    forward, _ = with_modes(in_memory(source), MIN_OPSET, options)
    refuse_ghost_batches(forward.graph, "ONNX Runtime's gradient builder")
    forward, notes = _readable(forward)
    refuse_frozen_in_bodies(forward)
    statistics = [
        value
        for node in forward.graph
        if is_training_batch_norm(node) or (frozen_statistics_as_inputs and is_of_onnx(node))
        for value in node.inputs[3:5]
        if value is not None and is_given(value)
    ]
    stated = {str(value.name): (value.type, value.shape) for value in _values_of_nodes(forward)}
    InferTypesPass()(forward)
    if repairs := repair(forward):
        InferTypesPass()(forward)
    target = find_loss(forward, loss)
    require_float_scalar(target)
    if not target.is_graph_output():
        forward.graph.outputs.append(target)
        stated[str(target.name)] = target.type, ir.Shape([])
    chosen = find_wrt(forward, wrt, target)
    names = [str(value.name) for value in chosen]
    used = (value for node in forward.graph for value in (*node.inputs, *node.outputs))
    refuse_taken_names((str(value.name) for value in used if value is not None), names)
    values = become_plain_inputs(forward.graph, [*chosen, *statistics])
    inputs = {value.name: value for value in forward.graph.inputs}
    path = gradient_path(forward.graph, target, [inputs[name] for name in names])
    refuse_dropped(path)
    refuse_running_statistics(target, [inputs[name] for name in names])
    refuse_overwritten(forward, "--builder bngrad")
    refuse_path(path)
    for value in _values_of_nodes(forward):
        value.type, value.shape = stated.get(str(value.name), (None, None))
        if (node := value.producer()) is not None and node.op_type == "MatMul" and static_shape(value) is None:
            # With the shape, ORT's builder takes batch dimensions of different names for equal.
            value.shape = None
    return Prepared(forward, str(target.name), names, values, notes + repairs)


def _values_of_nodes(model: ir.Model) -> Iterator[ir.Value]:
    """The values that are neither inputs nor initializers, those of bodies included."""
    for node in all_nodes(model):
        yield from node.outputs


def _readable(model: ir.Model) -> tuple[ir.Model, list[str]]:
    """Returns the model at an opset and IR version that ORT 1.19.2 reads, and what was changed for that."""
    notes = []
    version = default_opset(model) or 0
    if version > _OPSET:
        try:
            model = ir.from_proto(version_converter.convert_version(ir.to_proto(model), _OPSET))
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"the oracle takes opsets up to {_OPSET}, the model has {version}, and onnx cannot convert it: "
                f"{' '.join(str(error).split())}; export it with opset {_OPSET} or older"
            ) from error
        notes.append(f"converted from opset {version} to {_OPSET}")
    if model.ir_version is not None and model.ir_version > _IR_VERSION:
        notes.append(f"IR version {model.ir_version} stated as {_IR_VERSION}")
        model.ir_version = _IR_VERSION
    return model, notes
