"""The CUDA kernels of the updates of groups, and of IsAllFinite, without a card: see test_cuda_conv_grad.py."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper

import bngrad
from adam_cases import CASES as ADAM_CASES
from adam_cases import adam_inputs
from bngrad.opset.group_updates import ADAM, IS_ALL_FINITE, LION, RMSPROP, SGD
from bngrad.runtime import native
from test_cuda_conv_grad import library, session_of  # noqa: F401 - library is a fixture
from test_programs import only_linux
from training.test_group_updates import DATA, LARGE_DATA, MODEL, OPTIONS

pytestmark = only_linux

TENSORS_OF_A_LAUNCH = {SGD: 77, LION: 77, ADAM: 59, RMSPROP: 48, IS_ALL_FINITE: 202}
SCALARS = {op: ["learning_rate", "gradient_scale", "is_applied"] for op in (SGD, RMSPROP, LION)}
SCALARS[ADAM] = ["coefficients", "is_applied"]
ELEMENTS_OF_A_BLOCK = 16 * 32
RATE, SCALE = np.array(0.1, np.float32), np.array(0.7, np.float32)
DECAY, MOMENTUM = {"weight_decay": 0.01}, {"momentum": 0.9}
CASES = {
    "sgd": (SGD, 0, {}),
    "sgd, weight decay": (SGD, 0, DECAY),
    "sgd, momentum": (SGD, 1, MOMENTUM),
    "sgd, momentum, weight decay": (SGD, 1, MOMENTUM | DECAY),
    "sgd, nesterov": (SGD, 1, MOMENTUM | {"nesterov": 1}),
    "sgd, nesterov, weight decay": (SGD, 1, MOMENTUM | DECAY | {"nesterov": 1}),
    "rmsprop": (RMSPROP, 1, {}),
    "rmsprop, momentum": (RMSPROP, 2, MOMENTUM | DECAY),
    "rmsprop, centered": (RMSPROP, 2, {"centered": 1}),
    "rmsprop, centered, momentum": (RMSPROP, 3, MOMENTUM | DECAY | {"centered": 1}),
    "lion": (LION, 1, {}),
    "lion, weight decay": (LION, 1, DECAY),
}
"""An op, the number of its slots, and the attributes that are not the default."""
DEFAULTS = {
    SGD: {"momentum": 0.0, "weight_decay": 0.0, "nesterov": 0},
    RMSPROP: {
        "alpha": 0.99,
        "one_minus_alpha": 1 - 0.99,
        "eps": 1e-8,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "centered": 0,
    },
    LION: {
        "beta1": 0.9,
        "one_minus_beta1": 1 - 0.9,
        "beta2": 0.99,
        "one_minus_beta2": 1 - 0.99,
        "weight_decay": 0.0,
    },
    ADAM: {},
    IS_ALL_FINITE: {},
}
SHAPES = {
    "ranks": [(), (1,), (3, 1, 1), (5, 1, 7), (2, 1, 2, 1, 3, 1, 2, 1)],
    "empty": [(0,), (3,), (2, 0, 4)],
    "nothing": [(0,)],
    "blocks": [(n,) for n in (ELEMENTS_OF_A_BLOCK + step for step in (-1, 0, 1))] + [(7, 300)],
    "two launches": [(3,)] * 40 + [(0,), (5 * ELEMENTS_OF_A_BLOCK,)] + [(4,)] * 40,
}


def model_of(op, tensors, new, kind=TensorProto.FLOAT, *, conditional=False, **attributes):
    """A node of so many tensors, with free dimensions."""
    names = [*([] if op == IS_ALL_FINITE else SCALARS[op]), *(f"tensor_{i}" for i in range(tensors))]
    outputs = ["result"] if op == IS_ALL_FINITE else [f"new_{i}" for i in range(new)]
    inputs = ["" if name == "is_applied" and not conditional else name for name in names]
    attributes = DEFAULTS[op] | attributes
    node = helper.make_node(op, inputs, outputs, "the_node", domain="bngrad", **attributes)
    types = {"coefficients": TensorProto.DOUBLE, "is_applied": TensorProto.BOOL, "result": TensorProto.BOOL}
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(name, types.get(name, kind), None) for name in inputs if name],
        [helper.make_tensor_value_info(name, types.get(name, kind), None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def expected_of(op, tensors, count, **attributes):
    """The formula in float32, one operation at a time, as ONNX's ops have it."""
    numbers = {name: np.float32(value) for name, value in (DEFAULTS[op] | attributes).items()}
    columns = [tensors[begin : begin + count] for begin in range(0, len(tensors), count)]
    new = [FORMULAS[op](numbers, *arrays) for arrays in zip(*columns, strict=True)]
    return [array for column in zip(*new, strict=True) for array in column]


def gradient_of(numbers, weight, gradient):
    g = gradient * SCALE
    return g + weight * numbers["weight_decay"] if numbers["weight_decay"] else g


def sgd(numbers, weight, gradient, buffer=None):
    direction = g = gradient_of(numbers, weight, gradient)
    if buffer is None:
        return [weight - direction * RATE]
    new = buffer * numbers["momentum"] + g
    direction = g + new * numbers["momentum"] if numbers["nesterov"] else new
    return [weight - direction * RATE, new]


def rmsprop(numbers, weight, gradient, square_avg, *others):
    others, g = list(others), gradient_of(numbers, weight, gradient)
    momentum_buffer = others.pop(0) if numbers["momentum"] else None
    moment = square_avg * numbers["alpha"] + g * g * numbers["one_minus_alpha"]
    new = [moment]
    if others:
        mean = others[0] + (g - others[0]) * numbers["one_minus_alpha"]
        new.append(mean)
        moment = np.maximum(moment - mean * mean, np.float32(0))
    direction = g / (np.sqrt(moment) + numbers["eps"])
    if momentum_buffer is not None:
        direction = momentum_buffer * numbers["momentum"] + direction
        new.insert(1, direction)
    return [weight - direction * RATE, *new]


def lion(numbers, weight, gradient, exp_avg):
    g = gradient * SCALE
    direction = np.sign(exp_avg * numbers["beta1"] + g * numbers["one_minus_beta1"])
    if numbers["weight_decay"]:
        direction = direction + weight * numbers["weight_decay"]
    return [weight - direction * RATE, exp_avg * numbers["beta2"] + g * numbers["one_minus_beta2"]]


FORMULAS = {SGD: sgd, RMSPROP: rmsprop, LION: lion}


def tensors_of(shapes, copies):
    rng = np.random.default_rng(0)
    return [np.asarray(rng.standard_normal(shape), np.float32) for _ in range(copies) for shape in shapes]


def feeds_of(tensors, **scalars):
    return scalars | {f"tensor_{i}": tensor for i, tensor in enumerate(tensors)}


def launches(library):  # noqa: F811
    driver = ctypes.CDLL(str(library.with_name("libfake_cuda_runs.so")))
    return ctypes.c_int.in_dll(driver, "fake_cuda_launches").value


def check(library, op, model, feeds, shapes, expected):  # noqa: F811
    session, before = session_of(library, model), launches(library)
    results = session.run(None, feeds)
    number = sum(0 not in shape for shape in shapes)
    assert launches(library) - before == -(-number // TENSORS_OF_A_LAUNCH[op])
    for result, array in zip(results, expected, strict=True):
        assert result.shape == array.shape
        assert result.tobytes() == array.tobytes()


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("op", "slots", "attributes"), CASES.values(), ids=CASES)
def test_a_group_has_the_bits_of_the_formula(library, op, slots, attributes, shapes):  # noqa: F811
    count, tensors = len(shapes), tensors_of(shapes, 2 + slots)
    if op == RMSPROP:  # a mean of squares
        tensors[2 * count : 3 * count] = [np.asarray(array * array) for array in tensors[2 * count : 3 * count]]
    feeds = feeds_of(tensors, learning_rate=RATE, gradient_scale=SCALE)
    expected = expected_of(op, tensors, count, **attributes)
    model = model_of(op, len(tensors), len(tensors) - count, **attributes)
    check(library, op, model, feeds, shapes, expected)
    model = model_of(op, len(tensors), len(tensors) - count, conditional=True, **attributes)
    check(library, op, model, feeds | {"is_applied": np.array(True)}, shapes, expected)
    kept = [*tensors[:count], *tensors[2 * count :]]
    check(library, op, model, feeds | {"is_applied": np.array(False)}, shapes, kept)


@pytest.mark.parametrize("case", ["rmsprop, centered, momentum", "lion", "sgd, nesterov"])
def test_what_is_not_finite_stays_so(library, case):  # noqa: F811
    """A gradient of NaN or infinity, a moment that rounding makes negative, and a direction of 0."""
    op, slots, attributes = CASES[case]
    tensors = tensors_of([(6,)], 2 + slots)
    for tensor in tensors[2:]:
        tensor[:] = 0
    tensors[1][:] = [np.nan, np.inf, -np.inf, 0, -0.0, 1]
    if op == RMSPROP:
        tensors[2][3], tensors[4][3] = 1e-3, 1
    feeds = feeds_of(tensors, learning_rate=RATE, gradient_scale=SCALE)
    with np.errstate(invalid="ignore"):
        expected = expected_of(op, tensors, 1, **attributes)
    results = session_of(library, model_of(op, len(tensors), len(tensors) - 1, **attributes)).run(None, feeds)
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_is_all_finite(library, dtype, shapes):  # noqa: F811
    """One launch sets the result, and others look at the tensors; any element decides."""
    tensors = [array.astype(dtype) for array in tensors_of(shapes, 1)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    session = session_of(library, model_of(IS_ALL_FINITE, len(tensors), 1, kind))
    number, before = sum(0 not in shape for shape in shapes), launches(library)
    (result,) = session.run(None, feeds_of(tensors))
    assert launches(library) - before == 1 + -(-number // TENSORS_OF_A_LAUNCH[IS_ALL_FINITE])
    assert (result.dtype, result.shape, bool(result)) == (bool, (), True)
    for tensor in tensors:
        for value in (np.nan, np.inf, -np.inf) if tensor.size else ():
            for index in {0, tensor.size // 2, tensor.size - 1}:
                old, tensor.flat[index] = tensor.flat[index], value
                assert not session.run(None, feeds_of(tensors))[0]
                tensor.flat[index] = old
    largest = [np.full_like(tensor, np.finfo(dtype).max) for tensor in tensors]
    assert session.run(None, feeds_of(largest))[0]


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adam_has_the_bits_of_the_cpu(library, dtype, shapes):  # noqa: F811
    count, coefficients = len(shapes), np.array(ADAM_CASES["clipped"])
    weights = [adam_inputs(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    tensors = [array for column in zip(*weights, strict=True) for array in column]
    model = model_of(ADAM, 4 * count, 3 * count, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    columns = zip(*(native.adam_update(*weight, coefficients) for weight in weights), strict=True)
    expected = [array for column in columns for array in column]
    check(library, ADAM, model, feeds_of(tensors, coefficients=coefficients), shapes, expected)


def test_outputs_may_be_left_out(library):  # noqa: F811
    tensors = tensors_of([(3,), (2, 2)], 3)
    model = model_of(SGD, 6, 1, momentum=0.9)
    feeds = feeds_of(tensors, learning_rate=RATE, gradient_scale=SCALE)
    check(library, SGD, model, feeds, [(3,)], expected_of(SGD, tensors, 2, momentum=0.9)[:1])


STEPS = {
    "momentum": 0,
    "nesterov, groups, clipped": 0,
    "adamw, groups": 0,
    "rmsprop, groups": 0,
    "lion, groups": 0,
    "mixed": 4,
    "mixed, skipped": 4,
    "mixed, skipped, accumulate, ema": 4,
}
"""Options of a step, and the launches of IsAllFinite, which is twice in a step with gradients of two types."""


@pytest.mark.parametrize(("name", "checks"), STEPS.items())
@pytest.mark.parametrize("layout", ["named", "flat"])
def test_a_training_step(library, monkeypatch, name, checks, layout):  # noqa: F811
    """The kernel is what runs on a GPU, and the function of the op elsewhere, with the same bits."""
    model = onnx.parser.parse_model(MODEL)
    step = bngrad.training_step(model, group_updates=True, layout=layout, **OPTIONS[name][0])
    flat = step.info.flat
    state = step.state if flat is None else {flat.input: step.info.flatten(step.state)}
    data = LARGE_DATA if "skipped" in name else DATA
    feeds = data | state | {"learning_rate": np.array(0.1, step.info.learning_rate_dtype)}
    on_device, elsewhere = (
        session_of(library, step.model.SerializeToString(), device) for device in ("cuda", None)
    )
    before = launches(library)
    results = on_device.run(None, feeds)
    assert launches(library) - before == len(OPTIONS[name][1]) + checks
    assert [array.tobytes() for array in results] == [array.tobytes() for array in elsewhere.run(None, feeds)]
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuLaunchKernel")
    with pytest.raises(
        Exception,
        match=r"launching (sgd_update|adam_update|rmsprop_update|lion_update|all_finite) failed with CUDA",
    ):
        on_device.run(None, feeds)


WRONG = {
    "number": (SGD, [(3,)] * 4, {"momentum": 0.9}, "there are 4 tensors; expected 3 for each weight"),
    "number of rmsprop": (RMSPROP, [(3,)] * 6, {"centered": 1}, "there are 6 tensors; expected 4 for each weight"),
    "number of adam": (ADAM, [(3,)] * 6, {}, "there are 6 tensors; expected 4 for each weight"),
    "gradient": (SGD, [(3,), (4,)], {}, "tensors[1] has shape [4]; expected [3], the shape of the weight"),
    "buffer": (
        SGD,
        [(3,), (2, 1), (3,), (2, 1), (3,), (2,)],
        {"momentum": 0.9},
        "tensors[5] has shape [2]; expected [2,1], the shape of the weight",
    ),
    "rank": (SGD, [(1,) * 9] * 2, {}, "tensors has rank 9; expected 1 to 8"),
}


@pytest.mark.parametrize(("op", "shapes", "attributes", "message"), WRONG.values(), ids=WRONG)
def test_wrong_shapes(library, op, shapes, attributes, message):  # noqa: F811
    scalars = {"learning_rate": RATE, "gradient_scale": SCALE}
    feeds = feeds_of(tensors_of(shapes, 1), **({"coefficients": np.ones(9)} if op == ADAM else scalars))
    with pytest.raises(Exception, match=rf"bngrad\.{op}, node 'the_node'") as error:
        session_of(library, model_of(op, len(shapes), 1, **attributes)).run(None, feeds)
    assert str(error.value).endswith(message)


@pytest.mark.parametrize("name", ["learning_rate", "gradient_scale", "is_applied"])
@pytest.mark.parametrize("size", [0, 1])
def test_a_vector_for_a_scalar(library, name, size):  # noqa: F811
    scalars = {"learning_rate": RATE, "gradient_scale": SCALE, "is_applied": np.array(True)}
    scalars[name] = np.ones(size, scalars[name].dtype)
    feeds = feeds_of(tensors_of([(3,)], 2), **scalars)
    with pytest.raises(Exception, match=rf"bngrad\.{SGD}, node 'the_node'") as error:
        session_of(library, model_of(SGD, 2, 1, conditional=True)).run(None, feeds)
    assert str(error.value).endswith(f"{name} has shape [{size}]; expected [], a scalar")


def test_a_wrong_attribute(library):  # noqa: F811
    with pytest.raises(Exception, match="attribute nesterov is 2; expected 0 or 1"):
        session_of(library, model_of(SGD, 2, 1, nesterov=2))
