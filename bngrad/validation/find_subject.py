"""Determines what kind of model `validate` got, and prepares it for the checks."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from bngrad.errors import InputError, ModelError
from bngrad.graph.nodes import all_nodes
from bngrad.io.files import as_ir, in_memory
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.options import ForwardOptions
from bngrad.passes.lower import LOWERINGS
from bngrad.passes.pipeline import for_target, rewrite, unknown_to_stock
from bngrad.training.differentiate import default_running_variance
from bngrad.validation.forward_subject import forward_model_subject
from bngrad.validation.gradients import described_training_graph, gradients_of
from bngrad.validation.inputs import bind_dimensions, draw_inputs, symbolic_dimensions
from bngrad.validation.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from bngrad.io.files import AnyModel
    from bngrad.oracle import Oracle
    from bngrad.validation.options import ValidateOptions


_UPDATES_STATISTICS = (
    (DOMAIN, "BatchNormalizationTraining"),
    (DOMAIN, "BatchNormalizationMergeMoments"),
)


def find_subject(
    name: str,
    model: AnyModel,
    options: ValidateOptions,
    oracle: Callable[[], Oracle],
) -> Subject:
    """Determines whether a model is a forward model or a training graph, and prepares it for the checks.

    Args:
        name: The name of the model in messages.
        model: A forward model or a training graph. It is not modified.
        options: The options of the validation.
        oracle: Returns ONNX Runtime's training build, started on first use.

    Raises:
        InputError: An argument is invalid.
        ModelError: The model cannot be validated.
        OracleError: The oracle is needed, but cannot be installed.
    """
    source = in_memory(as_ir(model))
    tested = None if options.rewritten is None else _for_stock(in_memory(as_ir(options.rewritten)))
    described = described_training_graph(source)
    is_rewritten = described is not None or any(n.domain == DOMAIN for n in all_nodes(source))
    if is_rewritten or any(_is_training_op(node) for node in all_nodes(source)):
        if options.against == "torch":
            raise ModelError(
                f"{name} is a training graph; expected a forward model, which PyTorch can differentiate: pass it, "
                "and this graph with --rewritten, or use --against reference or numeric"
            )
        for field in fields(ForwardOptions):
            if getattr(options, field.name) not in (field.default, None, [], ()) and field.name != "loss":
                option = field.name.replace("_", "-")
                raise InputError(f"{name} is a training graph; --{option} applies to forward models only")
        loss = options.loss or (None if described is None else described.loss)
        return _training_graph_subject(source, tested, replace(options, loss=loss, loss_fn=None))
    if tested is not None:
        options = _with_options_of(tested, options)
    if options.running_variance is None:
        options = replace(options, running_variance=default_running_variance(source))
    return forward_model_subject(source, tested, options, oracle)


def _with_options_of(tested: ir.Model, options: ValidateOptions) -> ValidateOptions:
    """Completes the options with those that a training graph was built with, as far as they can be read."""
    if options.wrt is None:
        options = replace(options, wrt=list(gradients_of(tested)) or None)
    nodes = [node for node in all_nodes(tested) if node.op_identifier()[:2] in _UPDATES_STATISTICS]
    if options.running_variance is None and nodes:
        unbiased = all(node.attributes.get_int("unbiased_running_var", 0) for node in nodes)
        options = replace(options, running_variance="unbiased" if unbiased else "biased")
    return options


def _for_stock(model: ir.Model) -> ir.Model:
    """Lowers a training graph for a training build; returns others unchanged."""
    return for_target(model, target="stock", functions=True)[0] if unknown_to_stock(model) else model


def _is_training_op(node: ir.Node) -> bool:
    """Returns whether a node is an op of ORT's training dialect."""
    key = (node.domain, node.op_type)
    return key in (BATCH_NORM_INTERNAL, BATCH_NORM_GRAD) or key in LOWERINGS


def _training_graph_subject(model: ir.Model, tested: ir.Model | None, options: ValidateOptions) -> Subject:
    inputs, dims, batch_size = options.inputs or {}, options.dims or {}, options.batch_size
    original = model.clone()
    bind_dimensions(original, dims, inputs, batch_size)
    if not any(_is_training_op(node) for node in all_nodes(model)):
        if options.against != "numeric":
            raise ModelError(
                "the model is rewritten already; pass the original model, and this one with --rewritten, or "
                "validate this one by itself with --against numeric"
            )
        tested = tested or model
    tested = tested or rewrite(model).model
    # With the shapes inferred by the rewrite: random labels need the number of classes.
    shapes = tested.clone()
    symbols = symbolic_dimensions(shapes)
    bind_dimensions(shapes, {name: size for name, size in dims.items() if name in symbols}, inputs, batch_size)
    feeds = draw_inputs(shapes, arrays=inputs, seed=options.seed)
    return Subject(
        forward=None,
        original=original,
        tested=tested,
        feeds=feeds,
        loss=options.loss,
        gradients=gradients_of(model),
        against=options.against,
        other_builder=False,
        options=ForwardOptions(),
        notes=[],
    )
