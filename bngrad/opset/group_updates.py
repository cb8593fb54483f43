"""The ops of ``bngrad`` for any number of tensors: the updates of weights, and IsAllFinite of their gradients.

ONNX has no functions of any number of inputs, so there is one for each number of weights and their shapes. A node
names its function by its overload. Importing this module registers the schemas.
"""

from __future__ import annotations

import onnx
from onnx.defs import OpSchema

from bngrad.opset import onnx_registry
from bngrad.opset.domain import DOMAIN, VERSION
from bngrad.opset.quantities import FLOAT_TYPES, QUANTITIES

SGD = "SgdGroupUpdate"
ADAM = "AdamGroupUpdate"
RMSPROP = "RmspropGroupUpdate"
LION = "LionGroupUpdate"
IS_ALL_FINITE = "IsAllFinite"

_FLOATS = {"learning_rate": "Learning rate, a scalar", "gradient_scale": "Factor of all gradients, a scalar"}
_SCALARS = {
    SGD: _FLOATS,
    RMSPROP: _FLOATS,
    LION: _FLOATS,
    ADAM: {"coefficients": QUANTITIES["coefficients"].doc},
}
"""The inputs of the updates before the condition."""
CONDITION = "is_applied"
_SLOTS = {
    SGD: "their momentum buffers, unless momentum is 0",
    RMSPROP: "their square_avg; then their momentum_buffer, unless momentum is 0; their grad_avg, if centered",
    LION: "their exp_avg",
    ADAM: "their exp_avg; then their exp_avg_sq",
}
_L2_PENALTY = "L2 penalty: it times the weight is added to the gradient"
_ATTRIBUTES = {
    SGD: {
        "momentum": "Factor of the old buffers; 0: there are no buffers",
        "nesterov": "1: Nesterov momentum",
        "weight_decay": _L2_PENALTY,
    },
    RMSPROP: {
        "alpha": "Factor of the old square_avg",
        "centered": "1: divided by the standard deviation of gradients, not by their root mean square",
        "eps": "Added to the denominator",
        "momentum": "Factor of the old momentum_buffer; 0: there are none",
        "one_minus_alpha": "1 - alpha, rounded once",
        "weight_decay": _L2_PENALTY,
    },
    LION: {
        "beta1": "Factor of exp_avg in the direction",
        "beta2": "Factor of the old exp_avg",
        "one_minus_beta1": "1 - beta1, rounded once",
        "one_minus_beta2": "1 - beta2, rounded once",
        "weight_decay": "It times the weight is added to the sign of the direction",
    },
    ADAM: {},
}
_FLAGS = frozenset({"nesterov", "centered"})
TYPES = {SGD: ("float",), RMSPROP: ("float",), LION: ("float",), ADAM: ("float", "double")}
"""The types of the tensors of the updates, as ONNX calls them."""
SIGNATURES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    name: (
        {
            **scalars,
            CONDITION: "False: weights and slots stay as they are, a scalar; omitted: True (optional)",
            "tensors": f"All weights; then their gradients; then {_SLOTS[name]} (variadic)",
        },
        {"new_tensors": f"All weights after this step; then {_SLOTS[name]} (variadic)"},
        _ATTRIBUTES[name],
    )
    for name, scalars in _SCALARS.items()
} | {
    IS_ALL_FINITE: (
        {"tensors": "Tensors (variadic)"},
        {"all_finite": "Whether all their elements are, a scalar"},
        {},
    )
}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""

_DOCS = {
    SGD: "An update of any number of weights by SGD.",
    RMSPROP: "An update of any number of weights by RMSprop.",
    LION: "An update of any number of weights by Lion.",
    ADAM: "An update of any number of weights by Adam or AdamW.",
    IS_ALL_FINITE: "Whether every element of any number of tensors is finite.",
}


def schema(name: str) -> OpSchema:
    """Returns the schema of an op.

    Args:
        name: A key of `SIGNATURES`.
    """
    options, types = OpSchema.FormalParameterOption, OpSchema.AttrType
    inputs, outputs, attributes = SIGNATURES[name]
    scalars = _SCALARS.get(name, {})
    has_types = TYPES.get(name) != ("float",)

    def parameter(value: str, text: str) -> OpSchema.FormalParameter:
        if value == "all_finite":
            return OpSchema.FormalParameter(value, "tensor(bool)", text)
        if value == CONDITION:
            return OpSchema.FormalParameter(value, "tensor(bool)", text, param_option=options.Optional)
        if value in scalars:
            return OpSchema.FormalParameter(value, "tensor(double)" if has_types else "tensor(float)", text)
        type_ = "W" if has_types else "tensor(float)"
        return OpSchema.FormalParameter(value, type_, text, param_option=options.Variadic, min_arity=1)

    result = OpSchema(
        name,
        DOMAIN,
        VERSION,
        doc=_DOCS[name],
        inputs=[parameter(*item) for item in inputs.items()],
        outputs=[parameter(*item) for item in outputs.items()],
        type_constraints=[("W", FLOAT_TYPES[:2], "Type of the tensors")] if has_types else [],
        attributes=[
            OpSchema.Attribute(value, types.INT if value in _FLAGS else types.FLOAT, text, required=True)
            for value, text in attributes.items()
        ],
    )
    first = len(scalars) + 1
    infer = _infer_condition if name == IS_ALL_FINITE else lambda context: _infer(context, first)
    result.set_type_and_shape_inference_function(infer)
    return result


def _infer(context: onnx.shape_inference.InferenceContext, first: int) -> None:
    """Infers the types: a new tensor has that of the old one; gradients are between the weights and the slots."""
    tensors, new = context.get_num_inputs() - first, context.get_num_outputs()
    weights = tensors - new
    if weights < 1 or new % weights:
        message = f"there are {tensors} tensors and {new} new ones; expected a new one for each but the gradients"
        raise onnx.shape_inference.InferenceError(message)
    for output in range(new):
        like = context.get_input_type(first + output + (weights if output >= weights else 0))
        if like is not None:
            context.set_output_type(output, like)


def _infer_condition(context: onnx.shape_inference.InferenceContext) -> None:
    """Infers the type: a bool scalar."""
    context.set_output_type(0, onnx.helper.make_tensor_type_proto(onnx.TensorProto.BOOL, []))


onnx_registry.register(map(schema, SIGNATURES))
