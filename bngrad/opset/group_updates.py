"""The ops SgdGroupUpdate and AdamGroupUpdate of ``bngrad``: an update of any number of weights.

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

_SCALARS = {
    SGD: {"learning_rate": "Learning rate, a scalar", "gradient_scale": "Factor of all gradients, a scalar"},
    ADAM: {"coefficients": QUANTITIES["coefficients"].doc},
}
_SLOTS = {
    SGD: "their momentum buffers, unless momentum is 0",
    ADAM: "their exp_avg; then their exp_avg_sq",
}
_ATTRIBUTES = {
    SGD: {
        "momentum": "Factor of the old buffers; 0: there are no buffers",
        "nesterov": "1: Nesterov momentum",
        "weight_decay": "L2 penalty: it times the weight is added to the gradient",
    },
    ADAM: {},
}
TYPES = {SGD: ("float",), ADAM: ("float", "double")}
"""The types of the tensors, as ONNX calls them."""
SIGNATURES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    name: (
        {**scalars, "tensors": f"All weights; then their gradients; then {_SLOTS[name]} (variadic)"},
        {"new_tensors": f"All weights after this step; then {_SLOTS[name]} (variadic)"},
        _ATTRIBUTES[name],
    )
    for name, scalars in _SCALARS.items()
}
"""The documentation of the inputs, outputs and attributes of each, by the name of the op."""


def schema(name: str) -> OpSchema:
    """Returns the schema of an op.

    Args:
        name: A key of `SIGNATURES`.
    """
    options, types = OpSchema.FormalParameterOption, OpSchema.AttrType
    inputs, outputs, attributes = SIGNATURES[name]
    type_, scalar_type = ("tensor(float)", "tensor(float)") if name == SGD else ("W", "tensor(double)")

    def parameter(value: str, text: str) -> OpSchema.FormalParameter:
        if value in _SCALARS[name]:
            return OpSchema.FormalParameter(value, scalar_type, text)
        return OpSchema.FormalParameter(value, type_, text, param_option=options.Variadic, min_arity=1)

    result = OpSchema(
        name,
        DOMAIN,
        VERSION,
        doc=f"An update of any number of weights by {'SGD' if name == SGD else 'Adam or AdamW'}.",
        inputs=[parameter(*item) for item in inputs.items()],
        outputs=[parameter(*item) for item in outputs.items()],
        type_constraints=[("W", FLOAT_TYPES[:2], "Type of the tensors")] if type_ == "W" else [],
        attributes=[
            OpSchema.Attribute(value, types.INT if value == "nesterov" else types.FLOAT, text, required=True)
            for value, text in attributes.items()
        ],
    )
    scalars = len(_SCALARS[name])
    result.set_type_and_shape_inference_function(lambda context: _infer(context, scalars))
    return result


def _infer(context: onnx.shape_inference.InferenceContext, scalars: int) -> None:
    """Infers the types: a new tensor has that of the old one; gradients are between the weights and the slots."""
    tensors, new = context.get_num_inputs() - scalars, context.get_num_outputs()
    weights = tensors - new
    if weights < 1 or new % weights:
        message = f"there are {tensors} tensors and {new} new ones; expected a new one for each but the gradients"
        raise onnx.shape_inference.InferenceError(message)
    for output in range(new):
        like = context.get_input_type(scalars + output + (weights if output >= weights else 0))
        if like is not None:
            context.set_output_type(output, like)


onnx_registry.register(map(schema, SIGNATURES))
