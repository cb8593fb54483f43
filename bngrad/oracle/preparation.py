"""What a forward model needs before ORT's gradient builder takes it, and gets it right.

The steps, in order: local functions are inlined, the opset and IR version are brought to what ORT 1.19.2 reads,
ops that have no gradient there are respelled (repairs.py), the loss and the names to differentiate by are found
(targets.py), weights become graph inputs (inputs.py), and what the builder gets wrong is refused (dropped.py,
refusals.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import external_data_helper, inliner, version_converter

from bngrad.errors import ModelError
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.oracle import dims
from bngrad.oracle.dropped import refuse_dropped
from bngrad.oracle.graph import Differentiation, label, opset, types
from bngrad.oracle.inputs import make_inputs
from bngrad.oracle.refusals import refuse_old_batch_norms, refuse_path, refuse_shared_statistics
from bngrad.oracle.repairs import repair, spell_out_frozen, state_permutations
from bngrad.oracle.targets import find_loss, find_wrt, running_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.oracle.session import Array

_OPSET = 21
_IR_VERSION = 10


class Prepared(NamedTuple):
    """A forward model that ORT's gradient builder takes."""

    model: onnx.ModelProto
    loss: str
    """A float32 scalar, an output of the graph."""
    wrt: list[str]
    """Graph inputs that the loss depends on."""
    values: dict[str, Array]
    """The values of the initializers that have become graph inputs; to be fed with the data."""
    notes: list[str]
    """What was changed, in words."""


def prepare_forward(
    model: onnx.ModelProto,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Prepared:
    """Prepare a forward model for `Oracle.build_gradient`.

    Args:
        model: with its weights in it; left as it is.
        loss: the value to differentiate; by default the graph's only float32 scalar output.
        wrt: graph inputs and initializers to differentiate by; by default the weights that the loss depends on,
            as for our own builder, see `autodiff.weights`.
        sizes: numbers for symbolic dimensions; the builder does more, and gets more right, with numbers.

    Raises:
        ModelError: a name is unknown, or the oracle would fail on the model or answer wrongly.
    """
    model, notes = _readable(model)
    for name in sizes or {}:
        if name not in (known_names := dims.names(model.graph)):
            raise ModelError(unknown_name(name, known_names, "a symbolic dimension"))
    dims.bind(model.graph, sizes or {})
    refuse_old_batch_norms(model)
    notes += repair(model.graph)
    known = types(model)
    notes += state_permutations(model.graph, known)
    statistics = running_statistics(model.graph)
    notes += spell_out_frozen(model.graph, known)
    known = types(model)
    loss = find_loss(model.graph, loss, known)
    differentiation = Differentiation(model, loss, known)
    wrt = find_wrt(model.graph, wrt, loss, known, differentiation, statistics)
    refuse_dropped(differentiation, wrt)
    values = make_inputs(model.graph, wrt)
    refuse_shared_statistics(model.graph)
    refuse_path(differentiation.nodes(wrt), known, differentiation.reaching)
    return Prepared(model, loss, wrt, values, notes)


def _readable(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """A copy of the model that ORT 1.19.2 can read, and what that took."""
    if any(external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer):
        raise ModelError(
            "the model's weights are in other files: load them with onnx.load_external_data_for_model"
        )
    gradients = [label(node) for node in model.graph.node if node.op_type.endswith("Grad")]
    if gradients:
        raise ModelError(f"the model is a training graph already ({listed(gradients)}): give the forward model")
    notes = []
    if model.functions:
        notes.append(f"inlined the model's functions {listed(sorted({f.name for f in model.functions}))}")
        model = inliner.inline_local_functions(model)
    if (version := opset(model)) > _OPSET:
        try:
            model = version_converter.convert_version(model, _OPSET)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"the oracle takes opsets up to {_OPSET}, the model has {version}, and onnx cannot convert it: "
                f"{' '.join(str(error).split())}"
            ) from error
        notes.append(f"converted from opset {version} to {_OPSET}")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if copy.ir_version > _IR_VERSION:
        notes.append(f"IR version {copy.ir_version} stated as {_IR_VERSION}")
        copy.ir_version = _IR_VERSION
    return copy, notes
