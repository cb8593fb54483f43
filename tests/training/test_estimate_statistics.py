"""Running statistics from data: exactly those of NumPy in float64, for any batches; and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import InputError, ModelError
from bngrad.io.files import as_ir, to_proto
from bngrad.training.estimate_statistics import StatisticsEstimate
from bngrad.training.moments import merge_moments, variance
from statistics_cases import HEADER, STACKED, initializers, reference, stacked, uneven_batches
from thread_ranks import on_threads

STATISTICS = ["mean1", "var1", "mean2", "var2"]


def estimated(model, batches, *args, **options):
    return StatisticsEstimate(as_ir(model), *args, **options).run(batches)


@pytest.mark.parametrize("sizes", [(7, 2, 16, 5), (30,), (2, 28)])
def test_the_statistics_of_numpy(sizes):
    model, batches = stacked(), uneven_batches(sizes)
    before = model.SerializeToString()
    result = estimated(model, batches)
    assert model.SerializeToString() == before
    actual, expected = initializers(to_proto(result.model)), reference(model, batches)
    for name in STATISTICS:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-12, atol=1e-13, err_msg=name)
    assert {name: actual[name].tolist() for name in ("s1", "w1")} == {
        name: value.tolist() for name, value in initializers(model).items() if name in ("s1", "w1")
    }
    assert [norm.name for norm in result.batch_norms] == ["layer1.bn", "layer2.bn"]
    assert [norm.elements for norm in result.batch_norms] == [30, 30]
    assert result.batches == len(sizes)


def test_the_model_stays_as_it_is_but_for_its_statistics():
    model = stacked()
    result = to_proto(estimated(model, uneven_batches()).model)
    assert list(map(onnx.printer.to_text, result.graph.node)) == list(map(onnx.printer.to_text, model.graph.node))
    assert result.opset_import == model.opset_import


def test_the_distance_of_the_old_statistics():
    model, batches = stacked(), uneven_batches()
    expected = reference(model, batches)
    first, second = estimated(model, batches).batch_norms
    std = np.sqrt(expected["var1"] + 0.5)
    assert first.mean_shift == pytest.approx(np.max(np.abs(expected["mean1"]) / std), rel=1e-10)
    factors = std / np.sqrt(1.5)
    assert first.std_ratio == pytest.approx(np.max(np.maximum(factors, 1 / factors)), rel=1e-10)
    assert first.far_off
    again = estimated(to_proto(estimated(model, batches).model), batches).batch_norms
    assert [norm.far_off for norm in again] == [False, False]
    assert [norm.mean_shift for norm in again] == pytest.approx([0, 0], abs=1e-10)
    assert second.name == "layer2.bn"


def test_the_unbiased_variance():
    model, batches = stacked(), uneven_batches()
    actual = initializers(to_proto(estimated(model, batches, running_variance="unbiased").model))
    for name, value in reference(model, batches, ddof=1).items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-12, err_msg=name)
    model.producer_name = "pytorch"
    by_framework = initializers(to_proto(estimated(model, batches).model))
    np.testing.assert_array_equal(by_framework["var1"], actual["var1"])


@pytest.mark.parametrize("pattern", ["layer2.bn", "layer2.*"])
def test_the_others_use_their_running_statistics(pattern):
    model, batches = stacked(), uneven_batches()
    result = estimated(model, batches, [pattern])
    assert [norm.name for norm in result.batch_norms] == ["layer2.bn"]
    actual, expected = initializers(to_proto(result.model)), reference(model, batches, train=(False, True))
    assert actual["mean1"].tolist() == [0, 0, 0, 0]
    for name in ("mean2", "var2"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-12, err_msg=name)


def test_merged_moments_lose_no_digits():
    rng = np.random.default_rng(3)
    parts = [1e6 + rng.standard_normal((size, 2)) for size in (5, 1, 300)]
    moments = merge_moments(
        np.stack([np.full(2, len(p)), p.mean(0), ((p - p.mean(0)) ** 2).sum(0)]) for p in parts
    )
    whole = np.concatenate(parts)
    np.testing.assert_allclose(moments[1], whole.mean(0), rtol=1e-15)
    np.testing.assert_allclose(variance(moments), whole.var(0), rtol=1e-9)
    np.testing.assert_allclose(variance(moments, unbiased=True), whole.var(0, ddof=1), rtol=1e-9)


SHARED = """g (double[N,2] x) => (double[N,2] y)
        <double[2] s = {1, 1}, double[2] b = {0, 0}, double[2] m = {0, 0}, double[2] v = {1, 1}> {
    [a] n = BatchNormalization (x, s, b, m, v)
    two = Constant <value = double {2}> ()
    h = Mul (n, two)
    [b] y = BatchNormalization (h, s, b, m, v)
}"""


def test_batch_norms_that_share_an_initializer_get_their_own(rng):
    """As in `differentiate`: an exporter writes equal initializers once."""
    x = rng.standard_normal((9, 2)) + 3
    model = onnx.parser.parse_model(HEADER + SHARED)
    result = to_proto(estimated(model, [{"x": x}]).model)
    values = initializers(result)
    np.testing.assert_allclose(values["a/running_mean"], x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(values["a/running_var"], x.var(0), rtol=1e-12)
    np.testing.assert_allclose(values["b/running_var"], 4 * x.var(0) / (x.var(0) + 1e-5), rtol=1e-9)


IN_A_BODY = """g (double[N,2] x, bool c) => (double[N,2] y)
        <double[2] s = {1, 1}, double[2] b = {0, 0}, double[2] m = {0, 0}, double[2] v = {1, 1}> {
    y = If (c) <then_branch = t () => (double[N,2] n) { [a] n = BatchNormalization (x, s, b, m, v) },
        else_branch = e () => (double[N,2] r) { r = Relu (x) }>
}"""
REFUSED = {
    "unknown": (
        stacked(),
        ["layer3.bn"],
        ModelError,
        "'layer3.bn' is not a batch norm of this model; did you mean",
    ),
    "no batch norm": (
        onnx.parser.parse_model(HEADER + "g (float[N,2] x) => (float[N,2] y) { y = Relu (x) }"),
        None,
        ModelError,
        "the model has no batch norm with running statistics that data can replace",
    ),
    "inputs": (
        onnx.parser.parse_model(
            HEADER
            + SHARED.replace("x)", "x, double[2] m, double[2] v)").replace(
                ", double[2] m = {0, 0}, double[2] v = {1, 1}", ""
            )
        ),
        ["a"],
        ModelError,
        "the running statistics of BatchNormalization node 'a' (outputs n) are no values of the model",
    ),
    "in a body": (
        onnx.parser.parse_model(HEADER + IN_A_BODY),
        None,
        ModelError,
        "the model has no batch norm with running statistics that data can replace; BatchNormalization node 'a'",
    ),
    "training graph": (
        bngrad.differentiate(stacked("float"), training=["*"]),
        None,
        ModelError,
        "the model is a training graph already",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_is_refused(case):
    model, patterns, kind, message = REFUSED[case]
    with pytest.raises(kind) as error:
        estimated(model, [], patterns)
    assert str(error.value).startswith(message)


NAN = uneven_batches((3,))
NAN[0]["x"][1] = np.nan
DATA = {
    "one value": (
        uneven_batches((4, 1)),
        "batch norm 'layer1.bn' has one value for each channel in batch 2, which",
    ),
    "not finite": (NAN, "the input of batch norm 'layer1.bn' is not finite in batch 1; expected finite data"),
    "nothing": ([], "there is no batch to estimate running statistics from; expected at least one"),
}


@pytest.mark.parametrize("case", DATA)
def test_data_that_are_refused(case):
    batches, message = DATA[case]
    with pytest.raises(InputError) as error:
        estimated(stacked(), batches)
    assert str(error.value).startswith(message)


def test_statistics_beyond_the_range_of_their_type():
    text = "g (float16[N,1] x) => (float16[N,1] y) { [bn] y = BatchNormalization (x, s, b, m, v) }"
    model = onnx.parser.parse_model(HEADER + text)
    ones = np.ones(1, np.float16)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(ones, name) for name in "sbmv")
    with pytest.raises(InputError, match=r"'bn' are up to 1\.6e\+09, beyond the range of float16"):
        estimated(model, [{"x": np.float16([[40000], [-40000]])}])


def trainer_of(**options):
    step = bngrad.training_step(stacked("float"), loss="loss", training=["*"], **options)
    return bngrad.Trainer(step, learning_rate=0.01)


FLOAT_BATCHES = uneven_batches(dtype=np.float32)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_the_state_of_a_trainer(layout):
    trainer = trainer_of(layout=layout, optimizer="adam")
    for batch in FLOAT_BATCHES:
        trainer.step(**batch)
    before = trainer.state_dict()
    results = trainer.estimate_statistics({"x": batch["x"]} for batch in FLOAT_BATCHES)
    after, trained = trainer.state_dict(), stacked("float")
    for tensor in trained.graph.initializer:
        if tensor.name in before:
            tensor.CopyFrom(onnx.numpy_helper.from_array(before[tensor.name], tensor.name))
    for name, value in reference(trained, FLOAT_BATCHES).items():
        np.testing.assert_allclose(after[name], value, rtol=2e-5, atol=1e-5, err_msg=name)
    assert [norm.name for norm in results] == ["layer1.bn", "layer2.bn"]
    for name, array in before.items():
        if name not in STATISTICS:
            np.testing.assert_array_equal(after[name], array, err_msg=name)
    assert trainer.calls == len(FLOAT_BATCHES)
    of_file = initializers(to_proto(estimated(trained, FLOAT_BATCHES).model))
    for name in STATISTICS:
        np.testing.assert_array_equal(after[name], of_file[name], err_msg=name)


def test_a_trainer_takes_the_rule_of_its_step():
    trainer = trainer_of(running_variance="unbiased")
    trainer.estimate_statistics(FLOAT_BATCHES)
    expected = reference(stacked("float"), FLOAT_BATCHES, ddof=1)["var1"]
    np.testing.assert_allclose(trainer.state_dict()["var1"], expected, rtol=1e-5)
    trainer.estimate_statistics(FLOAT_BATCHES, running_variance="biased")
    np.testing.assert_allclose(trainer.state_dict()["var1"], expected * 29 / 30, rtol=1e-5)


def test_a_frozen_batch_norm_of_a_step_has_no_statistics_to_estimate():
    step = bngrad.training_step(stacked("float"), loss="loss", training=["layer1.bn"], frozen=["layer2.bn"])
    trainer = bngrad.Trainer(step, learning_rate=0.01)
    assert [norm.name for norm in trainer.estimate_statistics(FLOAT_BATCHES)] == ["layer1.bn"]
    with pytest.raises(ModelError, match="are no values of the model"):
        trainer.estimate_statistics(FLOAT_BATCHES, batch_norms=["layer2.bn"])


def test_data_of_a_trainer_that_are_refused():
    trainer = trainer_of()
    before = trainer.state_dict()
    for batches, message in (
        ([{"z": FLOAT_BATCHES[0]["x"]}], "'z' is not a data input"),
        ([{"labels": FLOAT_BATCHES[0]["labels"]}], "there is no data for 'x'"),
        ([{"x": FLOAT_BATCHES[0]["x"].astype(np.float64)}], "'x' is float64; expected float32"),
        ([], "there is no batch"),
    ):
        with pytest.raises(InputError, match=message):
            trainer.estimate_statistics(batches)
    with pytest.raises(InputError, match="running variance is 'other'"):
        trainer.estimate_statistics(FLOAT_BATCHES, running_variance="other")
    for name, array in before.items():
        np.testing.assert_array_equal(trainer.state_dict()[name], array)


def test_statistics_that_batch_norms_share():
    """As of a module that is called twice: those of the union of its inputs, for all of them or none."""
    model = stacked("float", STACKED.replace("n1 = BatchNormalization <epsilon = 0.5>", "n1 = BatchNormalization"))
    second = next(node for node in model.graph.node if node.name == "layer2.bn")
    second.input[:] = ["h2", "s1", "b1", "mean1", "var1"]
    del model.graph.initializer[:]
    fresh = stacked("float", w2=np.eye(4))
    model.graph.initializer.extend(
        t for t in fresh.graph.initializer if t.name not in ("s2", "b2", "mean2", "var2")
    )
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 4
    step = bngrad.training_step(model, loss="loss", training=["*"], shared_statistics="chain")
    trainer = bngrad.Trainer(step, learning_rate=0)
    norms = trainer.estimate_statistics(FLOAT_BATCHES)
    assert [norm.elements for norm in norms] == [60, 60]
    x = [batch["x"].astype(np.float64) for batch in FLOAT_BATCHES]
    w1, s1, b1 = (initializers(model)[name].astype(np.float64) for name in ("w1", "s1", "b1"))
    h1 = [rows @ w1 for rows in x]
    h2 = [np.maximum((h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) * s1 + b1, 0) for h in h1]
    whole = np.concatenate([*h1, *h2])
    np.testing.assert_allclose(trainer.state_dict()["mean1"], whole.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(trainer.state_dict()["var1"], whole.var(0), rtol=1e-4)
    with pytest.raises(
        ModelError, match=r"'layer1.bn' reads the same running statistics as 'layer2.bn'; expected"
    ):
        trainer.estimate_statistics(FLOAT_BATCHES, batch_norms=["layer1.bn"])


def test_each_rank_has_batches_of_its_own():
    step = bngrad.training_step(stacked("float"), loss="loss", training=["*"], sync=True)

    def run(comm):
        trainer = bngrad.Trainer(step, learning_rate=0.01, comm=comm)
        trainer.estimate_statistics(FLOAT_BATCHES[comm.rank :: comm.size])
        return trainer.state_dict()

    alone = trainer_of()
    alone.estimate_statistics(FLOAT_BATCHES)
    for state in on_threads(2, run):
        for name in STATISTICS:
            np.testing.assert_allclose(state[name], alone.state_dict()[name], rtol=1e-6, err_msg=name)
