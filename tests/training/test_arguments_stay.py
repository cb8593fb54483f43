"""No public function changes the model that it is given, nor the tensors that it shares with it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import BngradError
from bngrad.graph.nodes import all_nodes
from bngrad.inspection.inspect import inspect
from pairwise import every_value
from training.training_cases import CASES

# Shared and aliased weights are what these models are about.
pytestmark = pytest.mark.filterwarnings("ignore::bngrad.BngradWarning")


def finalize(model, _options):
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    tensors = [t for t in proto.graph.initializer if t.name not in ("one", "zero")]
    bngrad.finalize(model, {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}, outputs=["z"])


def differentiate(model, options, **others):
    bngrad.differentiate(model, loss="loss", **options, **others)


FUNCTIONS = {
    "differentiate": differentiate,
    "differentiate-for-training-build": lambda m, o: differentiate(m, o, target="training"),
    "finalize": finalize,
    "rewrite": lambda m, _: bngrad.rewrite(m),
    "inspect": lambda m, _: inspect(m if isinstance(m, ir.Model) else ir.from_proto(m)),
}
VALIDATED = ("shared", "constants", "aliased")


def tensors_of(model):
    """Everything that a clone of a model shares with it, with its name and data."""
    held = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    attributes = [attribute for node in all_nodes(model) for attribute in node.attributes.values()]
    held += [attribute.value for attribute in attributes if attribute.type == ir.AttributeType.TENSOR]
    return [(tensor, tensor.name, tensor.tobytes()) for tensor in held]


def require_unchanged(call, proto):
    """Calls a function, which may refuse the model, with both kinds of a model, which it must not change."""
    before = proto.SerializeToString()
    model = ir.from_proto(onnx.ModelProto.FromString(before))
    tensors = tensors_of(model)
    for argument in (proto, model):
        try:
            call(argument)
        except (BngradError, onnx.checker.ValidationError):
            assert proto.SerializeToString() == before
    assert proto.SerializeToString() == before
    assert [(tensor.name, tensor.tobytes()) for tensor, *_ in tensors] == [tuple(rest) for _, *rest in tensors]
    assert ir.to_proto(model).SerializeToString() == ir.to_proto(ir.from_proto(proto)).SerializeToString()


@every_value(name=list(CASES), function=list(FUNCTIONS))
def test_forward_models(function, name):
    case = CASES[name]
    require_unchanged(lambda model: FUNCTIONS[function](model, case.options), case.model())


@pytest.mark.parametrize("name", CASES)
def test_training_graphs(name):
    case = CASES[name]
    training = bngrad.differentiate(case.model(), loss="loss", target="training", **case.options)
    require_unchanged(bngrad.rewrite, training)
    require_unchanged(
        lambda model: inspect(model if isinstance(model, ir.Model) else ir.from_proto(model)), training
    )


@pytest.mark.parametrize("name", VALIDATED)
def test_validate(name):
    proto = CASES[name].model()
    require_unchanged(lambda model: bngrad.validate(model, against="reference", implementation="function"), proto)


@pytest.mark.parametrize("name", CASES)
def test_the_values_of_finalize(name):
    case = CASES[name]
    values = {t.name: onnx.numpy_helper.to_array(t) for t in case.model().graph.initializer if t.name in "sb"}
    before = {name: np.array(array) for name, array in values.items()}
    bngrad.finalize(case.model(), values)
    assert all(np.array_equal(values[name], array) for name, array in before.items())
