"""A forward model differentiated by ONNX Runtime's own gradient builder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.new_statistics import new_statistics, running_statistics
from bngrad.autodiff.prepare_forward import make_inputs
from bngrad.autodiff.training_graph import Training
from bngrad.oracle.client import Oracle
from bngrad.oracle.preparation import prepare_forward

if TYPE_CHECKING:
    from bngrad.options import ForwardOptions


def ort_training_graph(model: ir.Model, options: ForwardOptions) -> tuple[Training, list[str]]:
    """Does what `autodiff.training_graph.training_graph` does, with ORT's builder.

    The arguments are the same. Frozen batch norms are spelled out as arithmetic.

    Returns:
        The training graph, and notes on what was changed in the forward model.

    Raises:
        ModelError: A name is wrong, or ORT's builder gets the model wrong.
        OracleError: It cannot be installed, or fails.
    """
    prepared = prepare_forward(model, options.loss, options.wrt, options=options)
    with Oracle() as oracle:
        result, gradients = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt)
    inputs = {str(value.name): value for value in result.graph.inputs}
    for name, array in prepared.values.items():
        # The builder takes weights as inputs without a value; here the value is their default.
        inputs[name].const_value = ir.tensor(array, name=name)
        result.graph.register_initializer(inputs[name])
    make_inputs(result.graph, [value for value in running_statistics(result) if not value.is_graph_input()])
    outputs, running = set(result.graph.outputs), new_statistics(result)
    for old, new in running.items():
        # The builder gives no types to what nothing reads.
        new.type, new.shape = new.type or old.type, new.shape or old.shape
    result.graph.outputs.extend(value for value in running.values() if value not in outputs)
    names = {str(old.name): str(new.name) for old, new in running.items()}
    return Training(result, prepared.loss, gradients, names), prepared.notes
