"""Lists a model's batch norms, and the nodes that stock ONNX Runtime cannot run, or runs wrongly."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_per_element, is_training_batch_norm, says_both_modes
from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.node_paths import node_name, node_paths
from bngrad.graph.nodes import default_opset, op_nodes
from bngrad.graph.torch_records import recorded_mode
from bngrad.inspection.diagnostic import Diagnostic
from bngrad.inspection.graph_nodes import typed_copy
from bngrad.inspection.model_warnings import mode_notes, model_warnings
from bngrad.inspection.placement import PlacedNode  # noqa: TC001 - the schema of --json resolves the types
from bngrad.inspection.trainability import GraphValue, Trainability

# Both register schemas with onnx, which shape inference needs.
from bngrad.opset import ort_dialect, schemas  # noqa: F401
from bngrad.opset.functions import DOMAIN, MIN_OPSET
from bngrad.opset.known_shapes import known_shape, size_text
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.imports.tensorflow.gradients import ImportTensorflowGradientsPass
from bngrad.passes.pipeline import foreign_nodes, unknown_to_stock
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass

_SYNCHRONIZED = (DOMAIN, "BatchNormalizationApply")
_FORWARD = {
    ("", "BatchNormalization"),
    BATCH_NORM_INTERNAL,
    (DOMAIN, "BatchNormalizationTraining"),
    _SYNCHRONIZED,
}
_GRADIENT = {
    BATCH_NORM_GRAD: 1,
    **{(DOMAIN, f"BatchNormalizationGrad{part}"): 1 for part in ("", "Sums", "Apply")},
    **{(DOMAIN, f"BatchNormalizationReluGrad{part}"): 2 for part in ("", "Sums", "Apply")},
}
"""Which input of a gradient X is; scale and the saved mean come next."""


@dataclass(frozen=True)
class BatchNorm:
    """A forward batch norm, or a gradient whose forward node is not in the model."""

    name: str
    """The name of the node, or of its first output."""
    path: str
    """The name after those of the nodes or the function around it; `node_paths` builds it."""
    op: str
    """The op, with its domain if that is not ai.onnx."""
    mode: str
    """The statistics that it uses.

    ``training``: those of the batch, in the file or, as the file records, in PyTorch; ``synchronized``: those of
    the whole batch of a distributed run; ``frozen``: given ones; ``gradient``: the forward node is not in the
    model; ``foreign``: an op of another system that `rewrite` replaces; ``unknown``: an attribute of the function
    that it is in decides, or the node, of an opset below 7, states both.
    """
    axes: list[int] | None
    """The reduction axes; None where neither they nor the rank are known."""
    dtype: str
    """The element type of X; ``unknown`` if it is not known."""
    shape: str
    """The shape of X, as in ``Nx64x56x56``; ``unknown`` if its rank is not known."""
    gradient: str
    """The op that computes its gradient; empty if nothing does."""
    hazards: list[Diagnostic] = field(default_factory=list)
    """Errors of stock ONNX Runtime that affect it."""
    position: int = 0
    """Its position among all nodes, not counting constants, in graph order."""

    @property
    def axes_text(self) -> str:
        """The reduction axes, ``0,2,3``; ``?`` where they are not known."""
        return "?" if self.axes is None else ",".join(map(str, self.axes))


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`."""

    opset: int
    """The version of ai.onnx; 0 if it is not imported."""
    ir_version: int
    """The IR version of the model."""
    batch_norms: list[BatchNorm]
    """The batch norms, in the order of the graph."""
    not_in_stock: dict[str, int]
    """The number of nodes of each op that stock ONNX Runtime lacks."""
    in_primitives: dict[str, int] = field(default_factory=dict)
    """The number of batch norms of each kind in primitives, such as Sub and ReduceMean."""
    warnings: list[Diagnostic] = field(default_factory=list)
    """Warnings of probable faults in a forward model that will be trained."""
    notes: list[str] = field(default_factory=list)
    """Changes that differentiation makes to a forward model."""
    nodes: int = 0
    """The number of nodes, including those of subgraphs and functions, not counting constants."""
    on_cpu: list[PlacedNode] | None = None
    """The nodes that a session on the device of ``--device`` runs on the CPU; None without a device."""
    inputs: list[GraphValue] = field(default_factory=list)
    """The inputs without a default value."""
    outputs: list[GraphValue] = field(default_factory=list)
    """The outputs."""
    training: Trainability | None = None
    """The result of a dry run of `step`; None for a training graph, a training step or its evaluation graph."""

    def to_dict(self) -> dict[str, Any]:
        """Returns what ``--json`` prints."""
        return asdict(self)


def inspect(model: ir.Model) -> Inspection:
    """Lists the batch norms of a model, its subgraphs and its functions.

    Args:
        model: Any model; it is not changed.
    """
    warnings, notes = model_warnings(model), mode_notes(model)
    model = typed_copy(model)
    nodes, paths = list(op_nodes(model)), node_paths(model)
    counted = [node for node in nodes if node.op_type != "Constant"]
    places = {node: (paths[node], index) for index, node in enumerate(counted)}
    gradients = [node for node in nodes if _key(node) in _GRADIENT]
    batch_norms = []
    for node in nodes:
        if _key(node) in _FORWARD:
            matching = [g for g in gradients if _belongs(g, node)]
            gradients = [g for g in gradients if g not in matching]
            batch_norms.append(_describe(node, *places[node], matching))
    batch_norms += [_describe(gradient, *places[gradient], [gradient]) for gradient in gradients]
    foreign = [node for node in foreign_nodes(model) if _key(node) not in (*_FORWARD, *_GRADIENT)]
    batch_norms += [_describe_foreign(node, *places[node]) for node in foreign]
    unknown: dict[str, int] = {}
    for node in unknown_to_stock(model):
        op = _op(node)
        unknown[op] = unknown.get(op, 0) + 1
    graph = model.graph
    return Inspection(
        opset=default_opset(model) or 0,
        ir_version=model.ir_version,
        batch_norms=batch_norms,
        not_in_stock=unknown,
        in_primitives=_in_primitives(model),
        warnings=warnings,
        notes=notes,
        nodes=len(counted),
        inputs=[_value(value) for value in graph.inputs if not value.is_initializer()],
        outputs=[_value(value) for value in graph.outputs],
    )


def _in_primitives(model: ir.Model) -> dict[str, int]:
    """Counts the batch norms that `rewrite` recognizes, by kind; the model is rewritten."""
    try:
        gradients = ImportTensorflowGradientsPass()
        foreign = any(map(gradients.matches, op_nodes(model)))
        model = RaiseOpsetPass(gradients.minimum if foreign else MIN_OPSET)(model).model
        for run_pass in (InferTypesPass(), gradients, InferTypesPass(), ImportDecomposedPass()):
            run_pass(model)
    except (ModelError, ir.passes.PassError):  # what rewrite refuses has a message of its own there
        return {}
    return dict(Counter(candidate.kind for candidate in candidates_of(model) if candidate.taken))


def _describe(node: ir.Node, path: str, position: int, gradients: list[ir.Node]) -> BatchNorm:
    x = _input(node, _GRADIENT.get(_key(node), 0))
    shape = x.shape if x is not None else None
    return BatchNorm(
        name=node_name(node),
        path=path,
        op=_op(node),
        mode=_mode(node),
        axes=_axes(node, None if shape is None else len(shape)),
        dtype=_dtype(x),
        shape=_shape(x),
        gradient=", ".join(sorted({_op(gradient) for gradient in gradients})),
        hazards=_hazards(node),
        position=position,
    )


def _describe_foreign(node: ir.Node, path: str, position: int) -> BatchNorm:
    """Only the pass of the system knows the roles of its inputs; the first output is Y or dX, which is like X."""
    like_x = node.outputs[0] if node.outputs else None
    dtype, shape = _dtype(like_x), _shape(like_x)
    return BatchNorm(
        node_name(node), path, _op(node), "foreign", None, dtype, shape, gradient="", position=position
    )


def _value(value: ir.Value) -> GraphValue:
    return GraphValue(str(value.name), _dtype(value), _shape(value))


def _dtype(value: ir.Value | None) -> str:
    return "unknown" if value is None or value.dtype is None else value.dtype.name.lower()


def _shape(value: ir.Value | None) -> str:
    shape = known_shape(value)
    return "unknown" if shape is None else "x".join(map(size_text, shape))


def _mode(node: ir.Node) -> str:
    if _key(node) in _GRADIENT:
        return "gradient"
    if _key(node) == _SYNCHRONIZED:
        return "synchronized"
    training_mode = node.attributes.get("training_mode")
    if training_mode is not None and training_mode.is_ref():
        return "unknown"
    if says_both_modes(node):
        return "unknown"
    training = is_training_batch_norm(node) or node.op_type != "BatchNormalization" or recorded_mode(node)
    return "training" if training else "frozen"


def _axes(node: ir.Node, rank: int | None) -> list[int] | None:
    if node.domain == DOMAIN:
        value = _input(node, -1)
        axes = None if value is None else constant_tensor(value)
        if axes is None or axes.dtype != ir.DataType.INT64 or len(axes.shape) != 1:
            return None
        return [int(axis) for axis in axes.numpy()]
    if is_per_element(node):
        return [0]
    return None if rank is None else [0, *range(2, rank)]


def _hazards(node: ir.Node) -> list[Diagnostic]:
    """The ways in which stock ONNX Runtime's kernel fails on a training-mode BatchNormalization."""
    if not is_training_batch_norm(node):
        return []
    running = [value for value in node.outputs[1:3] if value.name]
    if len(running) < 2:
        text = "a running output is left out: stock ONNX Runtime crashes"
        return [Diagnostic(text, "running-output-missing")]
    if not all(value.is_graph_output() for value in running):
        text = "a running output is not a graph output: stock ONNX Runtime overwrites running_mean and running_var"
        return [Diagnostic(text, "running-output-internal")]
    return []


def _belongs(gradient: ir.Node, forward: ir.Node) -> bool:
    """Tests whether a gradient is that of a forward node: they share the saved mean, or X and scale."""
    first = _GRADIENT[_key(gradient)]
    saved_mean = _input(gradient, first + 2)
    if saved_mean is not None and saved_mean in forward.outputs[3:4]:
        return True
    x, scale = _input(gradient, first), _input(gradient, first + 1)
    return x is not None and x is _input(forward, 0) and scale is _input(forward, 1)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node that may be malformed: inspecting is for models of any kind."""
    return node.inputs[index] if -len(node.inputs) <= index < len(node.inputs) else None


def _key(node: ir.Node) -> tuple[str, str]:
    return node.domain, node.op_type


def _op(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
