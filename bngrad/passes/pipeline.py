"""The passes of `rewrite`, in order."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, get_args

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from bngrad.arguments import require_choice
from bngrad.errors import BngradError, InputError, ModelError, UnsupportedNodeError, warn
from bngrad.graph.batch_norms import require_parameters
from bngrad.graph.gc_pause import without_collections
from bngrad.graph.nodes import all_nodes, describe, op_nodes

# Both register schemas with onnx, which shape inference and the checker need.
from bngrad.opset import ort_dialect, schemas  # noqa: F401
from bngrad.opset.functions import DOMAIN, FUNCTIONS, MIN_OPSET
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, stock_ops
from bngrad.opset.overloaded import WITHOUT_OVERLOAD
from bngrad.options import KeptValues, Memory, Target
from bngrad.passes.base import STANDARD
from bngrad.passes.check import infer_and_check
from bngrad.passes.distribute.collectives import is_collective
from bngrad.passes.distribute.synchronize_batch_norms import SynchronizeBatchNormsPass
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.aten.gradients import ImportAtenPass
from bngrad.passes.imports.decomposed.recognize import CANDIDATES, ImportDecomposedPass, candidates_of
from bngrad.passes.imports.directml import ImportDirectmlPass
from bngrad.passes.imports.miopen.activation import ImportMiopenActivationPass
from bngrad.passes.imports.miopen.backward import ImportMiopenBackwardPass
from bngrad.passes.imports.miopen.forward import ImportMiopenForwardPass
from bngrad.passes.imports.ngraph import ImportNgraphPass
from bngrad.passes.imports.onnx import ImportOnnxPass
from bngrad.passes.imports.ort import ImportOrtPass
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from bngrad.passes.imports.tensorflow.gradients import ImportTensorflowGradientsPass
from bngrad.passes.lower import LOWERINGS, lower_training
from bngrad.passes.lower.batched_conv_op import BatchedConvOpPass, weights_of_gradients
from bngrad.passes.lower.conv_grad_op import ConvGradOpPass
from bngrad.passes.lower.conv_transpose_grad_op import ConvTransposeGradOpPass
from bngrad.passes.lower.depthwise_op import DepthwiseOpPass
from bngrad.passes.lower.lower_training import LowerTrainingPass, is_lowered
from bngrad.passes.lower.max_pool_grad_op import MaxPoolGradOpPass
from bngrad.passes.optimize.chain_sums import ChainSumsPass
from bngrad.passes.optimize.channels_last import ChannelsLastPass
from bngrad.passes.optimize.fuse_relu import FuseReluPass
from bngrad.passes.optimize.memory_budget import within
from bngrad.passes.optimize.order_by_depth import OrderByDepthPass
from bngrad.passes.optimize.recompute import RecomputePass
from bngrad.passes.prepare.infer_types import InferTypesPass, require_possible
from bngrad.passes.prepare.inline_functions import ResolveAttributesPass
from bngrad.passes.prepare.raise_opset import raise_opset
from bngrad.passes.prepare.return_state import NOTES, STATE, ReturnStatePass, notes_of, state_of
from bngrad.passes.workarounds.all_axes import AllAxesPass
from bngrad.passes.workarounds.bernoulli import BernoulliPass
from bngrad.passes.workarounds.keep_dropout import KeepDropoutPass
from bngrad.passes.workarounds.matrix_vector import MatrixVectorPass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bngrad.passes.base import RewritePass
    from bngrad.passes.imports.decomposed.candidates import Candidate


IMPORTS: tuple[type[RewritePass], ...] = (
    ImportOrtPass,
    # Before ONNX's: tf2onnx converts TensorFlow's to a BatchNormalization with too many outputs.
    ImportTensorflowPass,
    ImportOnnxPass,
    ImportNgraphPass,
    ImportMiopenBackwardPass,
    ImportMiopenForwardPass,
    ImportMiopenActivationPass,
    ImportDirectmlPass,
    ImportAtenPass,
)
"""The dialects that `rewrite` knows."""

_TENSORFLOW_GRADIENTS = ImportTensorflowGradientsPass()
_MATCHING = tuple(import_pass() for import_pass in IMPORTS)


class Rewritten(NamedTuple):
    """A rewritten model, with a record of the changes."""

    model: ir.Model
    rewritten: dict[str, int]
    """The number of nodes that became each op of the domain."""
    lowered: dict[str, int]
    """By op, the number of other training ops, and of batch norms without a ``bngrad`` op, that became ONNX."""
    state: dict[str, str]
    """The outputs that are new state (running statistics, accumulated gradients), by the input that takes them."""
    notes: list[str]
    """Messages about other changes."""
    candidates: list[Candidate]
    """The batch norms in primitives that were recognized, and the near misses."""


class ForTarget(NamedTuple):
    """A rewritten model."""

    model: ir.Model
    lowered: dict[str, int]
    """The number of nodes of each training op that became standard ONNX."""


def rewrite(
    model: ir.Model,
    *,
    target: Target = "stock",
    functions: bool = True,
    fuse: bool = True,
    conv_grad: bool = False,
    channels_last: bool = False,
    memory: Memory = "full",
    recognize: bool = True,
    sync: bool = False,
    lowered_before: Mapping[str, int] = MappingProxyType({}),
) -> Rewritten:
    """Returns a copy of a training graph that stock ONNX Runtime runs; tensors are shared with it.

    Its batch norms are ``bngrad`` ops, and its other training ops standard ONNX.

    Args:
        model: The training graph; it is not changed.
        target: ``stock``: everything in the result runs on stock ONNX Runtime. ``training``: the training ops
            that a training build has kernels for on a CPU stay, except batch norm.
        functions: Whether to embed the ops' definitions, so that the result runs where nothing is registered.
        fuse: Whether, for ``stock``, to fuse a ReLU gradient with the following batch-norm gradient.
        conv_grad: Whether, for ``stock``, to write the gradients of Conv as ops, see `ConvGradOpPass`.
        channels_last: Whether, for ``stock``, to lay out data with channels last, see `ChannelsLastPass`; implies
            ``conv_grad``.
        memory: ``lean``, for ``stock``: batch norms and activations are computed again, see `RecomputePass`; or a
            number of bytes, see `within`.
        recognize: Whether to convert batch norms that are spelled in primitives to ops.
        sync: Whether batch norms take the statistics of the whole batch, over all ranks of a distributed run.
        lowered_before: By op, the number of training ops that became ONNX before.

    Raises:
        InputError: There is no such target; ``memory`` is wrong, see `within`; ``sync`` is requested with a target
            other than ``stock``, or ``conv_grad`` without functions.
        ModelError: There is nothing to rewrite, or the result does not pass onnx's checker.
        UnsupportedNodeError: A node is a batch norm, or for ``stock`` any training op, that cannot be rewritten.
    """
    require_choice("target", target, get_args(Target))
    require_sync(sync, target=target)
    require_budget_for_stock(memory, target=target)
    before = _count(model)

    def build(kept: KeptValues) -> ForTarget:
        return for_target(
            model,
            target=target,
            functions=functions,
            fuse=fuse,
            conv_grad=conv_grad,
            channels_last=channels_last,
            memory=kept,
            recognize=recognize,
            distribute=[SynchronizeBatchNormsPass()] if sync else [],
        )

    result, lowered = within(memory, build)
    lowered |= lowered_before
    after = _count(result)
    candidates = candidates_of(result)
    taken = any(candidate.taken for candidate in candidates)
    if not after and not lowered and not taken and not foreign_nodes(model):
        raise ModelError(
            "the model has no batch norm in training mode, no batch-norm gradient and no other training op; "
            f"expected a training graph (make one with bngrad differentiate){_near_miss(candidates)}"
        )
    # Splitting a batch norm leaves fewer of the ops that were there before.
    rewritten = {name: max(number - before[name], 0) for name, number in after.items()}
    notes = notes_of(result)
    if sync and not any(map(is_collective, all_nodes(result))):
        notes = [*notes, "the model has no batch norm in training mode; there was nothing to synchronize"]
    return Rewritten(result, rewritten, lowered, state_of(result), notes, candidates)


def require_sync(sync: bool, *, target: str, builder: str = "bngrad") -> None:
    """Refuses options with which batch norms cannot be synchronized.

    Raises:
        InputError: ``sync`` is requested with another target than ``stock``, or another builder than ``bngrad``.
    """
    for name, value, expected in (("target", target, "stock"), ("builder", builder, "bngrad")):
        if sync and value != expected:
            raise InputError(f"--sync (sync=) is given with {name} {value!r}; expected {name} {expected!r}")


def require_budget_for_stock(memory: Memory, *, target: str) -> None:
    """Refuses a number of bytes for another target than ``stock``, whose memory is not known.

    Raises:
        InputError: There is one.
    """
    if target != "stock" and memory not in get_args(KeptValues):
        raise InputError(
            f"memory is {memory!r} with target {target!r}; expected target stock, or memory full or lean"
        )


def _near_miss(candidates: Sequence[Candidate]) -> str:
    """Returns the reason why the first near miss of a batch norm in primitives was not recognized."""
    if not candidates:
        return ""
    others = f" ({len(candidates) - 1} more)" if len(candidates) > 1 else ""
    return f"; node {candidates[0].name!r} looks like a batch norm, but {candidates[0].reason}{others}"


@without_collections()
def for_target(
    model: ir.Model,
    *,
    target: Target,
    functions: bool = True,
    fuse: bool = True,
    conv_grad: bool = False,
    channels_last: bool = False,
    memory: KeptValues = "full",
    recognize: bool = True,
    unbiased_running_var: bool = False,
    source: ir.Model | None = None,
    custom_ops: bool = False,
    distribute: Sequence[ir.passes.PassBase] = (),
    in_place: bool = False,
    last: bool = True,
) -> ForTarget:
    """Like `rewrite`, but accepts a model that needs no changes.

    Args:
        model: As of `rewrite`, unless ``in_place``.
        target: As of `rewrite`.
        functions: As of `rewrite`.
        fuse: As of `rewrite`.
        conv_grad: As of `rewrite`.
        channels_last: As of `rewrite`.
        memory: As of `rewrite`, but no number of bytes.
        recognize: As of `rewrite`.
        unbiased_running_var: Whether ONNX's and ORT's batch norms are to give the running variance the unbiased
            variance of the batch, against their own rule.
        source: The user's model, if the training graph was built from it.
        custom_ops: Whether a library that the user registers may have kernels for ops of other domains than ONNX
            Runtime's.
        distribute: Passes of `bngrad.passes.distribute`; they run once the batch norms are ops of ``bngrad``.
        in_place: Whether the model may be changed, as nothing else needs it.
        last: Whether nothing is added to the result; else its types have to be inferred, and it has to be checked,
            with `infer_and_check`.

    """
    for chosen, option in ((conv_grad, "conv_grad"), (channels_last, "channels_last")):
        if chosen and not functions:
            flag = f"--{option.replace('_', '-')} ({option}=)"
            raise InputError(f"{flag} needs the functions of the ops; leave out --no-functions")
    source = model if source is None else source
    of_tensorflow = any(map(_TENSORFLOW_GRADIENTS.matches, op_nodes(model)))
    lower = of_tensorflow or any(_lowerable(model, target))
    result = raise_opset(model if in_place else model.clone(), lower_training.OPSET if lower else MIN_OPSET)
    for key in (STATE, NOTES, STANDARD, CANDIDATES):  # of an earlier rewrite
        result.meta.pop(key, None)
    result = _run(
        result,
        ResolveAttributesPass(reads_attribute),
        InferTypesPass(),
    )
    require_parameters(result)
    result = _run(
        result,
        # Before the batch norms become ops that update nothing in place.
        ReturnStatePass(),
        *(import_pass(unbiased_running_var=unbiased_running_var) for import_pass in IMPORTS),
        ImportTensorflowGradientsPass(),
        # The gradients of TensorFlow become primitives, whose types the next pass needs.
        *([InferTypesPass()] if recognize and of_tensorflow else []),
        *([ImportDecomposedPass()] if recognize else []),
        *([FuseReluPass()] if fuse and target == "stock" else []),
        *distribute,
    )
    require_possible(result)
    if target == "stock":
        for_gpu = (ConvTransposeGradOpPass(), ConvGradOpPass()) if conv_grad or channels_last else ()
        result = _run(result, *for_gpu, MaxPoolGradOpPass())
    if memory == "lean" and target == "stock" and not RecomputePass()(result).modified:
        warn(["memory 'lean' keeps as much as 'full': the model has no value that is cheap to compute again"])
    # Not for a GPU, which has kernels of Conv.
    native = functions and not (conv_grad or channels_last) and target == "stock"
    weights = weights_of_gradients(result) if native else {}
    result = _run(
        result,
        # After the passes that look for Conv.
        *([DepthwiseOpPass()] if native else []),
        *([LowerTrainingPass(for_training_build=target == "training", ordered=memory == "lean")] if lower else []),
        *([BatchedConvOpPass(weights)] if weights else []),
        KeepDropoutPass(),
        BernoulliPass(),
        *([MatrixVectorPass(), ChainSumsPass()] if target == "stock" else []),
        *([InferTypesPass(), ChannelsLastPass()] if channels_last and target == "stock" else []),
        *([AllAxesPass()] if target == "stock" else []),
        *([OrderByDepthPass()] if target == "stock" else []),
        EmbedFunctionsPass(functions),
        # ORT's builder imports every domain that it knows, in versions that an older release refuses.
        RemoveUnusedOpsetsPass(process_functions=False),
    )
    if target == "stock":
        _require_stock(result, custom_ops=custom_ops)
    if last:
        infer_and_check(result, source)
    return ForTarget(result, dict(result.meta.get(STANDARD, {})))


def _count(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(model) if node.domain == DOMAIN)


def _run(model: ir.Model, *passes: ir.passes.PassBase) -> ir.Model:
    try:
        return ir.passes.Sequential(*passes)(model).model
    except ir.passes.PassError as error:
        # onnx-ir wraps the error of a pass; the user needs the original one.
        if isinstance(error.__cause__, BngradError):
            raise error.__cause__ from None
        raise


def _lowerable(model: ir.Model, target: Target) -> Iterator[str]:
    """The op types of the nodes that lowering takes."""
    for_training_build = target == "training"
    return (n.op_type for n in op_nodes(model) if is_lowered(n, for_training_build=for_training_build))


def foreign_nodes(model: ir.Model) -> list[ir.Node]:
    """The batch norms of a model that are another system's, and that `rewrite` converts."""
    return [node for node in op_nodes(model) if is_foreign(node)]


def is_foreign(node: ir.Node) -> bool:
    """Returns whether a node is a batch norm, or a gradient of one, that `rewrite` converts to a ``bngrad`` op."""
    return any(import_pass.matches(node) for import_pass in _MATCHING)


def reads_attribute(node: ir.Node, name: str) -> bool:
    """Returns whether the rewrite of a node depends on an attribute, which then must not refer to a function's."""
    if (node.domain, node.op_type) in (BATCH_NORM_INTERNAL, ("", "BatchNormalization")):
        return name not in ("epsilon", "momentum")
    if (node.domain, node.op_type) in LOWERINGS or _TENSORFLOW_GRADIENTS.matches(node):
        return True
    return node.op_type == "ATen" or is_foreign(node)


def unknown_to_stock(model: ir.Model) -> list[ir.Node]:
    """The nodes of a model that stock ONNX Runtime cannot run, even with this library registered."""
    ops = {(domain, name) for domain, name, _ in model.functions} | stock_ops()
    ops |= {(DOMAIN, name) for name in (*FUNCTIONS, *WITHOUT_OVERLOAD)}
    return [node for node in all_nodes(model) if (node.domain, node.op_type) not in ops]


_OPTIMIZERS = ("AdamOptimizer", "LambOptimizer", "SGDOptimizer")
"""Ops of com.microsoft that update weights, and that only ONNX Runtime's old trainer wrote."""


def _require_stock(model: ir.Model, *, custom_ops: bool) -> None:
    domains = {domain for domain, _ in stock_ops()} | {DOMAIN}
    unknown = [node for node in unknown_to_stock(model) if not custom_ops or node.domain in domains]
    for node in unknown:
        if node.op_type in _OPTIMIZERS:
            raise UnsupportedNodeError(
                f"{describe(node)} is an optimizer that bngrad does not rewrite; expected AdamWOptimizer or "
                "SGDOptimizerV2, or only the training graph"
            )
    if unknown:
        types = ", ".join(sorted({node.op_type for node in unknown}))
        others = f", nor can {len(unknown) - 1} more ({types})" if len(unknown) > 1 else ""
        raise UnsupportedNodeError(
            f"{describe(unknown[0])} cannot run on stock ONNX Runtime{others}; "
            "keep a training build and pass --target training"
        )
