"""Each gradient op is the derivative of its forward op: finite differences in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from bngrad.validation.training_ops import FUNCTIONS, MICROSOFT
from training_op_cases import CASES, DOMAIN, values


def numeric_gradient(forward, arguments, index, dy, step=1e-6):
    """Central differences of sum(dY * forward) by one argument; the error is of order step^2."""
    base = [np.array(argument, np.float64) for argument in arguments]
    gradient = np.zeros_like(base[index])
    for place in np.ndindex(gradient.shape):
        original = base[index][place]
        ends = []
        for sign in (1, -1):
            base[index][place] = original + sign * step
            ends.append((dy * forward(*base)).sum())
        base[index][place] = original
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def microsoft(op, **attributes):
    return partial(FUNCTIONS[MICROSOFT, op], **attributes)


def onnx_op(op_type, **attributes):
    """ONNX's own forward op, as onnx's reference evaluator has it."""

    def run(*inputs):
        names = [f"x{i}" for i in range(len(inputs))]
        node = helper.make_node(op_type, names, ["y"], **attributes)
        return ReferenceEvaluator(node).run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))[0]

    return run


# Each function below returns (forward function of float64 arrays, its arguments, gradient function of dY).


def of_windows(case):
    """Of ConvGrad, MaxPoolGrad and AveragePoolGrad, by the forward function of the same attributes."""
    if case.op == "ConvGrad":
        _, x, w = case.inputs
        gradient = microsoft("ConvGrad", **case.attributes)
        forward = onnx_op("Conv", **case.attributes)
        return forward, [x, w, values(w.shape[0])], lambda dy: gradient(dy, x, w)
    x = values(*case.extents)
    forward = partial(FUNCTIONS["", case.op.removesuffix("Grad")], **case.attributes)
    gradient = partial(FUNCTIONS["", case.op], **case.attributes, input_sizes=case.extents[2:])
    if case.op == "AveragePoolGrad":
        return forward, [x], lambda dy: [gradient(dy)]
    return lambda x: forward(x)[0], [x], lambda dy: [gradient(dy, case.inputs[1])]


def of_batch_norm(shape):
    def forward(x, scale, bias):
        return FUNCTIONS[MICROSOFT, "BatchNormInternal"](x, scale, bias, np.zeros(3), np.ones(3), epsilon=1e-3)

    x, scale = values(*shape), values(3)
    saved = forward(x, scale, scale)[3:]
    return (
        lambda *arguments: forward(*arguments)[0],
        [x, scale, values(3, seed=1)],
        lambda dy: microsoft("BatchNormalizationGrad")(dy, x, scale, *saved),
    )


def of_loss(case):
    _, log_prob, labels, *weights = case.inputs
    forward = FUNCTIONS["", "SoftmaxCrossEntropyLoss"]
    return (
        lambda scores: forward(scores, labels, *weights, **case.attributes)[0],
        [log_prob],  # scores whose log softmax they are themselves
        lambda dy: [microsoft(case.op, **case.attributes)(dy, log_prob.astype(np.float64), labels, *weights)],
    )


def of_activation(op, forward, *, takes_y=False, **attributes):
    x = values(3, 4)
    saved = forward(x.astype(np.float64)) if takes_y else x
    return forward, [x], lambda dy: [microsoft(op, **attributes)(dy, saved)]


def of_layer_norm(axis, scale_shape, *, centered):
    x, scale = values(2, 3, 4), values(*scale_shape)
    axes = tuple(range(axis % 3, 3))

    def statistics(x):
        mean = x.mean(axis=axes, keepdims=True) if centered else 0
        return mean, 1 / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + 1e-3)

    def forward(x, scale, bias=0):
        mean, inv_std = statistics(x)
        return (x - mean) * inv_std * scale + bias

    mean, inv_std = statistics(x.astype(np.float64))
    if centered:
        gradient = microsoft("LayerNormalizationGrad", axis=axis)
        return forward, [x, scale, values(*scale_shape, seed=1)], lambda dy: gradient(dy, x, scale, mean, inv_std)
    gradient = microsoft("SimplifiedLayerNormalizationGrad", axis=axis)
    return forward, [x, scale], lambda dy: gradient(dy, x, scale, inv_std)


def of_indexing(case):
    """The forward op of onnx, whose second argument on is what the gradient op got."""
    if case.op == "ResizeGrad":
        return of_resize(case)
    if case.op in {"SliceGrad", "GatherElementsGrad"}:
        _, shape, *rest = case.inputs
    else:
        shape, *rest, _ = case.inputs
    forward = onnx_op(case.op.removesuffix("Grad"), **case.attributes)
    order = (
        (lambda dy: (shape, *rest, dy))
        if case.op in {"GatherGrad", "GatherNDGrad"}
        else (lambda dy: (dy, shape, *rest))
    )
    return (
        lambda x: forward(x, *rest),
        [values(*shape)],
        lambda dy: [microsoft(case.op, **case.attributes)(*order(dy))],
    )


def of_resize(case):
    """Resize by the same scales, or to the sizes of dY where there are none."""
    dy, x, *optional = case.inputs
    roi, scales = [*optional, None, None][:2]
    sizes = None if scales is not None else np.array(dy.shape)
    rest = {name: value for name, value in zip("rsn", (roi, scales, sizes), strict=True) if value is not None}
    names = [name if name in {"x", *rest} else "" for name in "xrsn"]
    node = helper.make_node("Resize", names, ["y"], **case.attributes)
    gradient = microsoft("ResizeGrad", **case.attributes)
    return (
        lambda x: ReferenceEvaluator(node).run(None, {"x": x, **rest})[0],
        [x],
        lambda dy: [gradient(dy, *case.inputs[1:])],
    )


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def checks():
    for case in CASES:
        if case.op in {"ConvGrad", "MaxPoolGrad", "AveragePoolGrad"}:
            yield case.id, of_windows(case)
        elif case.op == "SoftmaxCrossEntropyLossGrad" and case.id != f"{case.op}-padding-alone":
            yield case.id, of_loss(case)
        elif case.op in {"SliceGrad", "GatherGrad", "GatherElementsGrad", "GatherNDGrad", "ResizeGrad"}:
            yield case.id, of_indexing(case)
    for shape in [(6, 3), (4, 3, 5), (2, 3, 2, 3), (1, 3, 4, 4)]:
        yield f"BatchNormalizationGrad-{shape}", of_batch_norm(shape)
    yield "ReluGrad", of_activation("ReluGrad", lambda x: np.maximum(x, 0))
    yield "ReluGrad-of-Y", of_activation("ReluGrad", lambda x: np.maximum(x, 0), takes_y=True)
    leaky = partial(of_activation, "LeakyReluGrad", takes_y=True)
    yield "LeakyReluGrad", leaky(lambda x: np.where(x > 0, x, 0.01 * x))
    yield "LeakyReluGrad-alpha", leaky(lambda x: np.where(x > 0, x, 0.3 * x), alpha=0.3)
    yield "SigmoidGrad", of_activation("SigmoidGrad", sigmoid, takes_y=True)
    yield "TanhGrad", of_activation("TanhGrad", np.tanh, takes_y=True)
    yield "GeluGrad", of_activation("GeluGrad", microsoft("Gelu"))
    yield "FastGeluGrad", of_activation("FastGeluGrad", microsoft("FastGelu"))
    yield "QuickGeluGrad", of_activation("QuickGeluGrad", microsoft("QuickGelu"))
    yield "QuickGeluGrad-alpha", of_activation("QuickGeluGrad", microsoft("QuickGelu", alpha=0.7), alpha=0.7)
    x, bias = values(3, 4).astype(np.float64), values(4)
    for op, gradient in [("BiasGelu", "BiasGeluGrad_dX"), ("FastGelu", "BiasFastGeluGrad_dX")]:
        yield (
            gradient,
            (
                lambda x, op=op: microsoft(op)(x, bias),
                [x],
                lambda dy, x=x, gradient=gradient: [microsoft(gradient)(dy, x, bias)],
            ),
        )
    mask = x > 0
    for what, forward, ratio, training in [
        ("training", lambda x: x * mask / 0.75, 0.25, True),
        ("inference", lambda x: x, 0.25, False),
    ]:
        inputs = (mask, np.array(ratio), np.array(training))
        gradient = microsoft("DropoutGrad")
        yield f"DropoutGrad-{what}", (forward, [x], lambda dy, i=inputs, g=gradient: [g(dy, *i)])
    for a, b in [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1, 4), (2, 1)), ((3, 4), ())]:
        operands = [values(*a), np.abs(values(*b)) + 0.5]
        yield (
            f"DivGrad-{a}-{b}",
            (np.divide, operands, lambda dy, o=operands: microsoft("DivGrad")(dy, *o)),
        )
    for axis in (-1, 1, 0):
        x = values(3, 4, 5)
        y = softmax(x.astype(np.float64), axis)
        yield (
            f"SoftmaxGrad_13-axis{axis}",
            (
                partial(softmax, axis=axis),
                [x],
                lambda dy, y=y, axis=axis: [microsoft("SoftmaxGrad_13", axis=axis)(dy, y)],
            ),
        )
        yield (
            f"LogSoftmaxGrad_13-axis{axis}",
            (
                lambda x, axis=axis: np.log(softmax(x, axis)),
                [x],
                lambda dy, y=y, axis=axis: [microsoft("LogSoftmaxGrad_13", axis=axis)(dy, np.log(y))],
            ),
        )
    yield "LayerNormalizationGrad-last", of_layer_norm(-1, (4,), centered=True)
    yield "LayerNormalizationGrad-two", of_layer_norm(1, (3, 4), centered=True)
    yield "SimplifiedLayerNormalizationGrad-last", of_layer_norm(-1, (4,), centered=False)
    yield "SimplifiedLayerNormalizationGrad-two", of_layer_norm(1, (3, 4), centered=False)


CHECKS = dict(checks())


def test_every_gradient_op_has_finite_differences():
    checked = {name.partition("-")[0] for name in CHECKS}
    assert checked == {op for op in DOMAIN if "Grad" in op} - {"BroadcastGradientArgs"}


@pytest.mark.parametrize("name", CHECKS)
def test_gradient_is_the_derivative(name):
    forward, arguments, gradient = CHECKS[name]
    arguments = [np.asarray(argument, np.float64) for argument in arguments]
    result = np.asarray(forward(*arguments))
    dy = values(*result.shape, seed=7).astype(np.float64)
    gradients = gradient(dy)
    assert len(gradients) == len(arguments)
    for index, got in enumerate(gradients):
        want = numeric_gradient(forward, arguments, index, dy)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=f"argument {index}")
