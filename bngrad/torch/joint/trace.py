"""Traces the forward and the backward pass of a module as one program of ATen ops.

`make_fx` records the ops that run when autograd differentiates the loss. So gradients that a module defines, such
as those of `torch.autograd.Function`, are part of the program, and there are none through `torch.no_grad`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from bngrad.errors import BngradError, ModelError
from bngrad.opset.gradient_names import gradient_name
from bngrad.torch.batch_norm import cumulative_averages
from bngrad.torch.capture import first_line, quiet
from bngrad.torch.dynamic_shapes import read_dynamic
from bngrad.torch.forward import user_name
from bngrad.torch.joint.decompositions import decompositions
from bngrad.torch.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch.export import ExportedProgram

    from bngrad.torch.example import Example
    from bngrad.torch.forward import Forward

_SIZES = (*range(2, 258), 1000, 4096)
"""Sizes of a batch for which conditions on it are evaluated."""


class Joint(NamedTuple):
    """A traced step."""

    program: ExportedProgram
    """Takes ``tensors`` and the example's tensors, and returns ``outputs``."""
    tensors: dict[str, torch.Tensor]
    """The parameters and buffers, by their names in `Forward`."""
    outputs: list[str]
    """The outputs of `Forward`, and the gradients."""


def trace_joint(
    forward: Forward, example: Example, trained: Collection[str], *, dynamic_batch: bool = True
) -> Joint:
    """Traces a step in the mode that the module is in.

    Args:
        forward: The module and its loss. It is not changed.
        example: The arguments.
        trained: The parameters to differentiate with respect to, by the user's names.
        dynamic_batch: Whether the size of the batch stays symbolic. It is fixed at that of the example if the
            module runs other ops for other sizes.

    Raises:
        InputError: The size of the batch cannot be symbolic, or the loss is not a scalar.
        ModelError: PyTorch cannot trace the module.
    """
    read_dynamic(example, None, dynamic_batch=dynamic_batch)
    named = (*forward.named_parameters(), *forward.named_buffers())
    tensors = {name: tensor.detach() for name, tensor in named}
    with quiet():
        try:
            recorded, dynamic = _record_general(forward, example, tensors, trained, dynamic_batch=dynamic_batch)
            batch: Any = {0: torch.export.Dim.AUTO}
            shapes: Any = ([{} for _ in tensors], [batch if follows else {} for follows in dynamic])
            arguments = (list(tensors.values()), [tensor.detach() for tensor in example.flat])
            program = torch.export.export(recorded.module, arguments, dynamic_shapes=shapes, strict=False)
        except BngradError:
            raise
        except Exception as error:
            raise ModelError(
                f"PyTorch cannot trace the module's forward and backward pass: {first_line(error)}"
            ) from error
    return Joint(program, tensors, recorded.names)


class _Recorded(NamedTuple):
    """The ops, and the names of the outputs."""

    module: torch.fx.GraphModule
    names: list[str]
    sizes: list[int] | None
    """Sizes of the batch for which a condition that was met has the other value; None if it has to be fixed."""


def _record_general(
    forward: Forward,
    example: Example,
    tensors: dict[str, torch.Tensor],
    trained: Collection[str],
    *,
    dynamic_batch: bool,
) -> tuple[_Recorded, list[bool]]:
    """A recorded step, and for each of the example's tensors whether its first dimension is symbolic in it."""
    size = example.batch if dynamic_batch else None
    dynamic = [tensor.shape[:1] == (size,) for tensor in example.flat]

    def record(follows: list[bool], batch: int | None = None) -> _Recorded:
        data = [
            tensor if batch is None or not symbolic else tensor.new_empty((batch, *tensor.shape[1:]))
            for tensor, symbolic in zip(example.flat, follows, strict=True)
        ]
        return _record(_step(forward, example, list(tensors), trained), forward, tensors, data, follows)

    recorded = record(dynamic)
    # PyTorch compares the size of the batch where it chooses kernels, too, so a condition need not change the ops.
    others = recorded.sizes if recorded.sizes is None else [record(dynamic, batch) for batch in recorded.sizes]
    if others is not None and all(other.module.code == recorded.module.code for other in others):
        return recorded, dynamic
    fixed = [False for _ in dynamic]
    return record(fixed), fixed


def _record(
    step: tuple[Callable[..., list[torch.Tensor]], list[str]],
    forward: Forward,
    tensors: dict[str, torch.Tensor],
    data: list[torch.Tensor],
    dynamic: list[bool],
) -> _Recorded:
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor, *, follows: bool = False) -> torch.Tensor:
        sizes = [DimDynamic.STATIC] * tensor.ndim
        if follows:
            sizes[0] = DimDynamic.DUCK
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor.detach(), symbolic_context=context)

    function, names = step
    values = [fake(tensor) for tensor in tensors.values()]
    batches = [fake(tensor, follows=follows) for tensor, follows in zip(data, dynamic, strict=True)]
    size = next((batch.shape[0] for batch, follows in zip(batches, dynamic, strict=True) if follows), None)
    with ExitStack() as stack:
        stack.enter_context(untouched(forward))
        stack.enter_context(cumulative_averages(forward))
        stack.enter_context(torch.enable_grad())
        # Without the backends whose ops have no decomposition, or that are chosen by the size of the batch.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(torch.backends.nnpack.flags(enabled=False))
        traced = make_fx(
            function,
            decomposition_table=decompositions(),
            tracing_mode="symbolic",
            _allow_non_fake_inputs=True,
        )(values, batches)
    return _Recorded(traced, names, [] if size is None else _other_sizes(environment, size))


def _step(
    forward: Forward, example: Example, tensors: list[str], trained: Collection[str]
) -> tuple[Callable[..., list[torch.Tensor]], list[str]]:
    """A function of the values of tensors and of the example's, and the names of its results once it has run."""
    leaves, structure = pytree.tree_flatten(example.arguments)
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    names: list[str] = []

    def step(values: list[torch.Tensor], data: list[torch.Tensor]) -> list[torch.Tensor]:
        state = {
            # Detached, an input is a leaf; copied, writes to a buffer do not change the input.
            name: value.detach().requires_grad_(True) if user_name(name) in trained else value.clone()
            for name, value in zip(tensors, values, strict=True)
        }
        arguments = list(leaves)
        for place, tensor in zip(places, data, strict=True):
            arguments[place] = tensor
        outputs = torch.func.functional_call(forward, state, pytree.tree_unflatten(arguments, structure))
        # A checkpoint runs batch norms again in the backward pass; a step updates their statistics once.
        outputs = (outputs[0], *(output.clone() for output in outputs[1:]))
        weights = [name for name in tensors if user_name(name) in trained]
        gradients = torch.autograd.grad(outputs[0], [state[name] for name in weights], allow_unused=True)
        pairs = zip(weights, gradients, strict=True)
        named = {gradient_name(user_name(name)): grad.to_dense() for name, grad in pairs if grad is not None}
        names[:] = [*forward.output_names, *named]
        return [tensor.detach() for tensor in (*outputs, *named.values())]

    return step, names


def _other_sizes(environment: ShapeEnv, size: Any) -> list[int] | None:  # noqa: ANN401 - a torch.SymInt
    """Sizes for which conditions that held while recording do not hold; None if they hold for only one size."""
    symbol = size.node.expr
    if symbol.is_number:
        return None
    conditions = [guard.expr for guard in environment.guards if guard.expr.free_symbols == {symbol}]
    violations = (next((n for n in _SIZES if not condition.subs(symbol, n)), None) for condition in conditions)
    return sorted({n for n in violations if n is not None})
