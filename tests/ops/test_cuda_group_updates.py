"""The CUDA kernels of SgdGroupUpdate and AdamGroupUpdate without a card: see test_cuda_conv_grad.py."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper

import bngrad
from adam_cases import CASES as ADAM_CASES
from adam_cases import adam_inputs
from bngrad.runtime import native
from test_cuda_conv_grad import library, session_of  # noqa: F401 - library is a fixture
from test_programs import only_linux
from training.test_group_updates import DATA, MODEL, OPTIONS

pytestmark = only_linux

SGD, ADAM = "SgdGroupUpdate", "AdamGroupUpdate"
TENSORS_OF_A_LAUNCH = {SGD: 77, ADAM: 59}
ELEMENTS_OF_A_BLOCK = 16 * 32
RATE, SCALE = np.array(0.1, np.float32), np.array(0.7, np.float32)
SGD_CASES = {
    "plain": {},
    "weight decay": {"weight_decay": 0.01},
    "momentum": {"momentum": 0.9},
    "momentum, weight decay": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": 1},
    "nesterov, weight decay": {"momentum": 0.9, "weight_decay": 0.01, "nesterov": 1},
}
SHAPES = {
    "ranks": [(), (1,), (3, 1, 1), (5, 1, 7), (2, 1, 2, 1, 3, 1, 2, 1)],
    "empty": [(0,), (3,), (2, 0, 4)],
    "nothing": [(0,)],
    "blocks": [(n,) for n in (ELEMENTS_OF_A_BLOCK + step for step in (-1, 0, 1))] + [(7, 300)],
    "two launches": [(3,)] * 40 + [(0,), (5 * ELEMENTS_OF_A_BLOCK,)] + [(4,)] * 40,
}


def model_of(op, tensors, new, kind=TensorProto.FLOAT, **attributes):
    """A node of so many tensors, with free dimensions."""
    scalars = ["learning_rate", "gradient_scale"] if op == SGD else ["coefficients"]
    names = [*scalars, *(f"tensor_{i}" for i in range(tensors))]
    outputs = [f"new_{i}" for i in range(new)]
    if op == SGD:
        attributes = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": 0} | attributes
    node = helper.make_node(op, names, outputs, "the_node", domain="bngrad", **attributes)
    types = {"coefficients": TensorProto.DOUBLE}
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info(name, types.get(name, kind), None) for name in names],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def expected_of_sgd(tensors, count, momentum=0.0, weight_decay=0.0, nesterov=0):
    """The formula in float32, one operation at a time, as ONNX's Mul, Add and Sub have it."""
    momentum, weight_decay = np.float32(momentum), np.float32(weight_decay)
    weights, gradients, buffers = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
    new_weights, new_buffers = [], []
    for i, weight in enumerate(weights):
        g = gradients[i] * SCALE
        if weight_decay:
            g = g + weight * weight_decay
        direction = g
        if buffers:
            new_buffers.append(buffers[i] * momentum + g)
            direction = g + new_buffers[-1] * momentum if nesterov else new_buffers[-1]
        new_weights.append(weight - direction * RATE)
    return [*new_weights, *new_buffers]


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
@pytest.mark.parametrize("case", SGD_CASES.values(), ids=SGD_CASES)
def test_sgd_has_the_bits_of_the_formula(library, case, shapes):  # noqa: F811
    count = len(shapes)
    tensors = tensors_of(shapes, 3 if "momentum" in case else 2)
    model = model_of(SGD, len(tensors), len(tensors) - count, **case)
    feeds = feeds_of(tensors, learning_rate=RATE, gradient_scale=SCALE)
    check(library, SGD, model, feeds, shapes, expected_of_sgd(tensors, count, **case))


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
    check(library, SGD, model, feeds, [(3,)], expected_of_sgd(tensors, 2, momentum=0.9)[:1])


@pytest.mark.parametrize("name", ["momentum", "nesterov, groups, clipped", "mixed", "adamw, groups"])
@pytest.mark.parametrize("layout", ["named", "flat"])
def test_a_training_step(library, monkeypatch, name, layout):  # noqa: F811
    """The kernel is what runs on a GPU, and the function of the op elsewhere, with the same bits."""
    model = onnx.parser.parse_model(MODEL)
    step = bngrad.training_step(model, group_updates=True, layout=layout, **OPTIONS[name][0])
    flat = step.info.flat
    state = step.state if flat is None else {flat.input: step.info.flatten(step.state)}
    feeds = DATA | state | {"learning_rate": np.array(0.1, step.info.learning_rate_dtype)}
    on_device, elsewhere = (
        session_of(library, step.model.SerializeToString(), device) for device in ("cuda", None)
    )
    before = launches(library)
    results = on_device.run(None, feeds)
    assert launches(library) - before == len(OPTIONS[name][1])
    assert [array.tobytes() for array in results] == [array.tobytes() for array in elsewhere.run(None, feeds)]
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuLaunchKernel")
    with pytest.raises(Exception, match=r"launching (sgd|adam)_update failed with CUDA"):
        on_device.run(None, feeds)


WRONG = {
    "number": (SGD, [(3,)] * 4, {"momentum": 0.9}, "there are 4 tensors; expected 3 for each weight"),
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
    feeds = feeds_of(tensors_of(shapes, 1), **(scalars if op == SGD else {"coefficients": np.ones(9)}))
    with pytest.raises(Exception, match=rf"bngrad\.{op}, node 'the_node'") as error:
        session_of(library, model_of(op, len(shapes), 1, **attributes)).run(None, feeds)
    assert str(error.value).endswith(message)


@pytest.mark.parametrize("name", ["learning_rate", "gradient_scale"])
def test_a_vector_for_a_scalar(library, name):  # noqa: F811
    scalars = {"learning_rate": RATE, "gradient_scale": SCALE, name: np.ones(1, np.float32)}
    feeds = feeds_of(tensors_of([(3,)], 2), **scalars)
    with pytest.raises(Exception, match=rf"bngrad\.{SGD}, node 'the_node'") as error:
        session_of(library, model_of(SGD, 2, 1)).run(None, feeds)
    assert str(error.value).endswith(f"{name} has shape [1]; expected [], a scalar")


def test_a_wrong_attribute(library):  # noqa: F811
    with pytest.raises(Exception, match="attribute nesterov is 2; expected 0 or 1"):
        session_of(library, model_of(SGD, 2, 1, nesterov=2))
