"""The values that a training graph takes and gives go back into the forward model, each to its place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import bngrad
from bngrad.errors import InputError, ModelError
from bngrad.training.differentiate import differentiate
from bngrad.validation.float64 import evaluate
from training.training_cases import CASES, check, data

OF_ONE_OR_OF_ALL = (
    *("frozen-first", "frozen-last", "chain", "chain-aliased", "chain-of-one", "chain-with-a-frozen-one"),
)
"""Where the forward model does not say whether an output's value is one batch norm's or that of a chain."""


def differentiated(case, **options):
    return differentiate(ir.from_proto(case.model()), loss="loss", **{**case.options, **options})


def state_of(case, training_graph):
    """The first value of every input of a training graph except the data."""
    proto = ir.to_proto(training_graph.model)
    defaults = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    inputs = [value.name for value in proto.graph.input]
    values = {name: np.array(values, np.float32) for name, values in case.values.items()}
    assert set(inputs) == {"x", *values, *(name for name in inputs if name in defaults)}
    return {name: values.get(name, defaults.get(name)) for name in inputs if name != "x"}


def moved(array, rng):
    """Another positive value of the same type."""
    return np.asarray(np.abs(array) + rng.uniform(0.5, 1.5, array.shape), array.dtype)


@pytest.mark.parametrize("name", CASES)
def test_two_steps_of_training(name, rng):
    case = CASES[name]
    training_graph = differentiated(case)
    state = state_of(case, training_graph)
    assert set(training_graph.running_statistics) <= set(state)
    session = bngrad.session(training_graph.model, "function")
    outputs = [value.name for value in session.get_outputs()]
    for _ in range(2):
        values = dict(zip(outputs, session.run(outputs, {**state, "x": data(case, rng)}), strict=True))
        for weight in training_graph.gradients:
            assert np.isfinite(values[f"{weight}_grad"]).all()
            state[weight] = moved(state[weight], rng)
        state |= {old: values[new] for old, new in training_graph.running_statistics.items()}
    before = case.model()
    check(case, bngrad.finalize(before, state), state, data(case, rng))
    assert before.SerializeToString() == case.model().SerializeToString()


@pytest.mark.parametrize("name", CASES)
def test_new_values_by_the_names_of_outputs(name, rng):
    """Only weights and running statistics, each statistic under the name that the training graph gives it."""
    case = CASES[name]
    training_graph = differentiated(case)
    state = {key: moved(array, rng) for key, array in state_of(case, training_graph).items()}
    values = {training_graph.running_statistics.get(key, key): array for key, array in state.items()}
    if name in OF_ONE_OR_OF_ALL:
        message = (
            r"^'m\d' is an output of .* give it as 'bn\d/running_mean', .* or as '(m|zero/running_mean)', for all$"
        )
        with pytest.raises(InputError, match=message):
            bngrad.finalize(case.model(), values)
        return
    check(case, bngrad.finalize(case.model(), values), state, data(case, rng))


NO_SUCH_GRAPH = {
    "ort": {
        "half": "running_mean has inconsistent type",
        "chain-with-a-frozen-one": r"BatchNormalization node 'bn1' .* in place: use --target stock",
        "a-subgraph-reads-them": r"read by Identity node 'aux' .* in place: use --target stock",
    },
    "builder": {
        "half": "gradient builder expects a float scalar",
        "chain-with-a-frozen-one": r"'m' of BatchNormalization node 'bn1' .* in place: use --builder bngrad",
    },
    "training": {},
}
BY_ORT = [name for name in CASES if name.startswith(("aliased", "chain", "half", "in", "nodes", "opset", "sh"))]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *(("ort", name) for name in CASES),
        *(pytest.param("training", name, marks=pytest.mark.long) for name in CASES),
        *(("builder", name) for name in BY_ORT),
    ],
)
def test_names_are_the_same_in_every_training_graph(target, name, rng):
    case = CASES[name]
    options = {"builder": "ort"} if target == "builder" else {"target": target}
    if name in NO_SUCH_GRAPH[target]:
        with pytest.raises(ModelError, match=NO_SUCH_GRAPH[target][name]):
            differentiated(case, **options)
        return
    training_graph, stock = differentiated(case, **options), differentiated(case)
    assert training_graph.running_statistics == stock.running_statistics
    state = {key: moved(array, rng) for key, array in state_of(case, training_graph).items()}
    assert set(state) == set(state_of(case, stock))
    check(case, bngrad.finalize(case.model(), state), state, data(case, rng))


def test_a_chain_is_updated_in_the_order_of_its_nodes(rng):
    case = CASES["chain-with-a-frozen-one"]
    training_graph = differentiated(case)
    state, x = state_of(case, training_graph), data(case, rng).astype(np.float64)
    values = evaluate(ir.to_proto(training_graph.model), {"x": x.astype(np.float32)})

    def normalized(data, mean, var):
        column = [np.reshape(array, (1, 2, 1)) for array in (mean, var, state["s"], state["b"])]
        return (data - column[0]) / np.sqrt(column[1] + 1e-5) * column[2] + column[3]

    x = x.astype(np.float32).astype(np.float64)
    m1, v1 = x.mean((0, 2)), x.var((0, 2))
    r = np.maximum(normalized(x, m1, v1), 0)
    c = normalized(r, state["m"], state["v"])
    m3, v3 = c.mean((0, 2)), c.var((0, 2))
    assert training_graph.running_statistics == {"m": "m3", "v": "v3"}
    np.testing.assert_allclose(values["m3"], ((state["m"] + m1) / 2 + m3) / 2, rtol=1e-6)
    np.testing.assert_allclose(values["v3"], ((state["v"] + v1) / 2 + v3) / 2, rtol=1e-6)
    np.testing.assert_allclose(values["z"], normalized(c, m3, v3), rtol=1e-6, atol=1e-6)
