"""Captures a module as an ONNX model with PyTorch's exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import re
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir
import torch
from onnxscript import optimizer

from bngrad.errors import BngradError, ModelError, UnsupportedNodeError
from bngrad.graph.constant_value import RANDOM_OPS, constant_value
from bngrad.graph.framework import record_framework
from bngrad.graph.fresh_names import Names
from bngrad.passes.prepare.resolve_sequences import resolve_sequences
from bngrad.torch.draws import unvalidated_distributions
from bngrad.torch.in_ops import InOps
from bngrad.torch.no_grad import detach_no_grad
from bngrad.torch.onnx_ops import op
from bngrad.torch.sizes import Sizes, TrainingChecks, exact_sizes, read_sizes
from bngrad.torch.translations import translations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.export import ExportedProgram

    from bngrad.torch.dynamic_shapes import Dynamic
    from bngrad.torch.example import Example

OPSET = 18
"""The opset that the exporter's own translations are written for."""

_NO_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'")
_TRANSLATED = re.compile(r"Error when translating node .*target=torch\.ops\.([\w.]+)\]")
_SYMBOLIC = "SymbolicTensor"
"""The exporter's type of a symbolic size, where it expects a number of Python."""
_REASON = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Warning)\b:?\s*(.*)$")


class Captured(NamedTuple):
    """An exported module."""

    model: ir.Model
    sizes: Sizes


def capture(
    module: torch.nn.Module, example: Example, dynamic: Dynamic, missing: list[BngradError] | None = None
) -> Captured:
    """Exports a module, without optimizations.

    Args:
        module: A module that takes ``example.arguments``.
        example: The arguments.
        dynamic: The dimensions that stay symbolic.
        missing: As `write_onnx` takes it.

    Returns:
        The ONNX model, whose parameters and buffers are initializers under their names in ``module``, and the
        sizes for which it is right.

    Raises:
        ModelError: PyTorch cannot trace the module.
        UnsupportedNodeError: PyTorch cannot write an op of it as ONNX.
    """
    checks = TrainingChecks()
    with quiet():
        try:
            with InOps(), unvalidated_distributions(), checks.collected(), exact_sizes():
                program = torch.export.export(
                    module, example.arguments, dynamic_shapes=dynamic.shapes(example), strict=False
                )
        except BngradError:
            raise
        except Exception as error:
            raise ModelError(f"torch.export cannot trace the module: {first_line(error)}") from error
        sizes = read_sizes(program, example, dynamic, checks)
        detach_no_grad(program)
    model = write_onnx(program, translations(), missing)
    record_framework(model, "pytorch")
    _turn_on_dropout(model.graph)
    return Captured(model, sizes)


def write_onnx(
    program: ExportedProgram,
    table: Mapping[Callable[..., Any], Callable[..., Any]],
    missing: list[BngradError] | None = None,
) -> ir.Model:
    """Writes a program as ONNX, without optimizations.

    Args:
        program: The program.
        table: Translations of ops that take precedence over the exporter's.
        missing: Receives an error for each op that cannot be written, which becomes a copy of its first operand;
            None to raise the first error.

    Raises:
        ModelError: PyTorch's exporter fails.
        UnsupportedNodeError: It cannot write an op as ONNX.
    """
    with quiet():
        try:
            exported = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                opset_version=OPSET,
                custom_translation_table=dict(table),
                verbose=False,
            )
        except Exception as error:
            for cause in _causes(error):
                if isinstance(cause, BngradError):
                    raise cause from None
            match = _NO_FUNCTION.search("\n".join(map(str, _causes(error))))
            if match:
                refused = UnsupportedNodeError(
                    f"PyTorch's exporter cannot write {match[1]} as ONNX; expected ops that torch.onnx.export "
                    "supports"
                )
                packet = operator.attrgetter(match[1].replace("::", "."))(torch.ops)
                overload = getattr(packet, match[2], None)
                if missing is None or overload is None or overload in table:
                    raise refused from error
                missing.append(refused)
                copies = _copy_of_first(len(overload._schema.returns))
                return write_onnx(program, {**table, overload: copies}, missing)
            reason = first_line(error)
            match = _TRANSLATED.search("\n".join(map(str, _causes(error))))
            if match and _SYMBOLIC in reason:
                raise UnsupportedNodeError(
                    f"PyTorch's exporter cannot write {match[1]} with a symbolic size as an argument; fix the "
                    "size (dynamic_batch=False for that of the batch), or compute with ops of tensors"
                ) from error
            raise ModelError(f"torch.onnx.export cannot write the module: {reason}") from error
        assert exported is not None, "it was not asked to write a file"  # noqa: S101
        model: ir.Model = exported.model
        return model


def _copy_of_first(outputs: int) -> Callable[..., Any]:
    """A translation whose outputs are copies of the first operand."""

    def copy(first: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - of onnxscript's
        copies = tuple(op.Identity(first) for _ in range(outputs))
        return copies if outputs > 1 else copies[0]

    return copy


def _turn_on_dropout(graph: ir.Graph) -> None:
    """Puts the Dropout of attention in training mode: the exporter leaves the mode out, so it is off."""
    for node in graph:
        if node.op_type == "Dropout" and (len(node.inputs) < 3 or node.inputs[2] is None):
            node.resize_inputs(3)
            training = ir.node("Constant", [], {"value": ir.tensor(True)})
            graph.insert_before(node, training)
            node.replace_input_with(2, training.outputs[0])


def clean_up(model: ir.Model) -> None:
    """Computes constant values, which the exporter wrote as nodes, and removes unused nodes.

    Initializers that are graph inputs are neither computed with nor merged with equal ones.
    """
    # onnxscript fails to fold a split into parts of a computed size.
    resolve_sequences(model.graph, Names(model))
    with quiet():
        # By default onnxscript folds a Dropout of a constant.
        optimizer.fold_constants(model, should_fold=lambda node: False if node.op_type in RANDOM_OPS else None)
        _remove_zero_biases(model.graph)
        optimizer.remove_unused_nodes(model)


def _remove_zero_biases(graph: ir.Graph) -> None:
    """Removes the zeros that the exporter adds to convolutions without bias; those of conv3d have a wrong rank."""
    for node in graph:
        bias = node.inputs[2] if node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) > 2 else None
        if bias is None or bias.is_graph_input():
            continue
        constant = constant_value(bias)
        if constant is not None and not constant.numpy().any():
            node.resize_inputs(2)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the exporters' own logging and warnings."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """The first line of the innermost cause's message, with its type."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else ""
    return f"{type(error).__name__}: {line}"[:400]
