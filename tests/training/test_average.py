"""Averages of clients' states: against NumPy and the statistics of the union, and what is refused."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError
from bngrad.federated import average
from bngrad.io.tensor_files import read_tensors, write_tensors
from bngrad.training.state_origin import StateDict
from statistics_cases import reference, stacked, uneven_batches

SIZES = (7, 30, 16)
STATISTICS = ("mean1", "var1", "mean2", "var2")


def step_of(dtype="float", **options):
    options = {"optimizer": "adam", **options}
    return bngrad.training_step(stacked(dtype), loss="loss", training=["*"], **options)


def client(step, size, seed, calls=2):
    """A trainer with a state of its own."""
    trainer = bngrad.Trainer(step, learning_rate=0.05)
    dtype = np.dtype(step.info.data["x"].dtype)
    for batch in uneven_batches((size,) * calls, dtype, seed):
        trainer.step(**batch)
    return trainer


@pytest.fixture(scope="module")
def step():
    return step_of()


@pytest.fixture(scope="module")
def states(step):
    return [client(step, size, seed).state_dict() for seed, size in enumerate(SIZES)]


def test_the_average_of_numpy(step, states):
    result = average(states, SIZES)
    shares = np.array(SIZES) / sum(SIZES)
    for name, spec in step.info.state.items():
        stacked_up = np.stack([state[name].astype(np.float64) for state in states])
        if spec.role == "step":
            assert result[name] == stacked_up.max()
            continue
        mean = np.tensordot(shares, stacked_up, 1)
        if name in ("var1", "var2"):
            means = np.stack([state[name.replace("var", "mean")].astype(np.float64) for state in states])
            mean += np.tensordot(shares, (means - np.tensordot(shares, means, 1)) ** 2, 1)
        np.testing.assert_allclose(result[name], mean, rtol=1e-6, atol=1e-12, err_msg=name)
        assert result[name].dtype == spec.dtype


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e300, 10**300])
def test_only_the_ratio_of_the_weights_counts(scale, states):
    result, expected = (average(states[:2], [weight, 3 * weight]) for weight in (scale, 1))
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, rtol=1e-6, err_msg=name)


def test_one_round_has_the_statistics_of_the_union():
    """In double to 1e-12: one process that has all data, and clients that estimate those of their own."""
    step, clients = step_of("double", optimizer="sgd"), []
    batches = uneven_batches(SIZES)
    for batch in batches:
        trainer = bngrad.Trainer(step, learning_rate=0)
        trainer.estimate_statistics([batch])
        clients.append(trainer.state_dict())
    result, central = average(clients, SIZES), reference(stacked(), batches)
    for name in STATISTICS:
        np.testing.assert_allclose(result[name], central[name], rtol=1e-12, atol=1e-13, err_msg=name)
    trainer = bngrad.Trainer(step, learning_rate=0)
    trainer.estimate_statistics(batches)
    for name in STATISTICS:
        np.testing.assert_allclose(result[name], trainer.state_dict()[name], rtol=1e-12, atol=1e-13)
    means = average(clients, SIZES, statistics="mean")
    assert (means["var1"] < 0.9999 * central["var1"]).any()
    np.testing.assert_allclose(means["mean1"], central["mean1"], rtol=1e-12)


def test_what_stays_a_clients_own(states):
    shared = average(states, SIZES)
    for options, own in (
        ({"statistics": "local"}, STATISTICS),
        ({"fedbn": True}, (*STATISTICS, "s1", "b1", "s2", "b2")),
        ({"local": ["w2"]}, ("w2",)),
        ({"local": ["s*"], "statistics": "local"}, (*STATISTICS, "s1", "s2")),
        ({"optimizer": "keep"}, ("w1/exp_avg", "w1/exp_avg_sq", "step")),
    ):
        result = average(states, SIZES, own=1, **options)
        for name in own:
            np.testing.assert_array_equal(result[name], states[1][name], err_msg=name)
        others = set(result) - set(own)
        others -= {name for name in others if "optimizer" in options and "/" in name}
        for name in others:
            np.testing.assert_array_equal(result[name], shared[name], err_msg=name)


def test_fedbn_keeps_the_scale_of_a_batch_norm_with_frozen_statistics():
    step = bngrad.training_step(stacked("float"), loss="loss", training=["layer1.bn"])
    states = [client(step, 9, seed).state_dict() for seed in range(2)]
    assert not {"mean2", "var2"} & set(states[0])
    result = average(states, [1, 1], fedbn=True, own=1)
    for name in ("s1", "b1", "s2", "b2"):
        np.testing.assert_array_equal(result[name], states[1][name], err_msg=name)
    merged = average(states, [1, 1])
    means, variances = ([state[name].astype(np.float64) for state in states] for name in ("mean1", "var1"))
    np.testing.assert_allclose(merged["var1"], np.mean(variances, 0) + np.var(means, 0), rtol=1e-6)


def test_a_reset_optimizer_begins_anew(step, states):
    result = average(states, SIZES, optimizer="reset")
    assert not any(result[name].any() for name in step.info.names("optimizer", "step"))
    trainer, fresh = (bngrad.Trainer(step, learning_rate=0.1) for _ in range(2))
    trainer.load_state_dict(result)
    fresh.load_state_dict({**fresh.state_dict(), **{name: result[name] for name in step.info.names("weight")}})
    batch = uneven_batches((5,), np.float32, 9)[0]
    assert (trainer.step(**batch), trainer.updates) == (fresh.step(**batch), 1)
    for name in step.info.names("weight"):
        np.testing.assert_array_equal(trainer.state_dict()[name], fresh.state_dict()[name])


def test_files_and_their_samples(step, tmp_path):
    paths = []
    for seed, size in enumerate(SIZES):
        paths.append(tmp_path / f"{seed}.safetensors")
        client(step, size, seed).save(paths[-1], samples=size)
    result = average(paths, path=tmp_path / "round.safetensors")
    by_hand = average(paths, SIZES)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    notes = trainer.load(tmp_path / "round.safetensors")
    assert notes == {"samples": sum(SIZES), "weights": list(SIZES)}
    for name, array in trainer.state_dict().items():
        np.testing.assert_array_equal(array, result[name])
        np.testing.assert_array_equal(array, by_hand[name])
    twice = average([tmp_path / "round.safetensors", paths[0]])
    assert twice.document["notes"]["weights"] == [sum(SIZES), SIZES[0]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_client_sends_half_precision(states, dtype):
    short = [
        StateDict({n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in state.items()}, state.document)
        for state in states
    ]
    result, exact = average(short, SIZES), average(states, SIZES)
    for name, array in exact.items():
        assert result[name].dtype == array.dtype
        np.testing.assert_allclose(result[name], array, rtol=0.02, atol=0.02)
    assert average([states[0], *short[1:]], SIZES)["w1"].dtype == np.float32


def changed(state, name, value):
    array = state[name].copy()
    array.flat[0] = value
    return StateDict({**state, name: array}, state.document)


def without(state, key):
    return StateDict(state, {name: value for name, value in state.document.items() if name != key})


REFUSED = {
    "nan": (lambda s: [s[0], changed(s[1], "w1", np.nan)], {}, "state 1: weight 'w1' is not finite; leave this"),
    "infinite": (
        lambda s: [changed(s[0], "mean1", np.inf)],
        {},
        "state 0: running statistic 'mean1' is not finite",
    ),
    "negative": (lambda s: [s[0], changed(s[1], "var2", -1)], {}, "state 1: running variance 'var2' is negative"),
    "foreign": (
        lambda s: [s[0], client(step_of(optimizer="adamw"), 5, 0).state_dict()],
        {},
        "state 1 is the state of another training step than state 0: it was made with adamw",
    ),
    "other tensors": (
        lambda s: [s[0], client(step_of(optimizer="sgd"), 5, 0).state_dict()],
        {},
        "state 1 is the state of another training step than state 0: only one of them has 'b1/exp_avg'",
    ),
    "no batch norms": (
        lambda s: [without(s[0], "batch_norms")],
        {},
        "state 0 does not record its batch norms, as a state of this bngrad does; make the step again",
    ),
    "a statistic of no batch norm": (
        lambda s: [StateDict(s[0], {**s[0].document, "batch_norms": s[0].document["batch_norms"][1:]})],
        {},
        "running statistic 'mean1' is that of no batch norm in the record of state 0, and may be a variance",
    ),
    "no own": (lambda s: s, {"statistics": "local"}, "some tensors stay those of a client; name the client with"),
    "own alone": (lambda s: s, {"own": 0}, "no tensor stays that of a client; leave out --own"),
    "own beyond": (lambda s: s, {"own": 3, "fedbn": True}, "own is 3; expected the index of a client, 0 to 2"),
    "local unknown": (lambda s: s, {"own": 0, "local": ["w9"]}, "'w9' is not a weight of this model"),
    "weight": (
        lambda s: s,
        {"weights": [1, 0, 1]},
        "the weight of state 1 is 0; expected a finite number above 0",
    ),
    "weights beyond the range": (
        lambda s: s[:2],
        {"weights": [1e308, 1e308]},
        "the weights sum up to inf; expected a finite number",
    ),
    "weight beyond the range": (
        lambda s: s[:1],
        {"weights": [10**400]},
        "the weight of state 0 is beyond the range of a float; expected a number",
    ),
    "union beyond the range": (
        lambda s: [changed(s[0], "mean1", 3e38), changed(s[1], "mean1", -3e38)],
        {},
        "the average of running statistic 'var1' is beyond the range of float32; check that of each client",
    ),
    "a state that lacks a tensor": (
        lambda s: [s[0], StateDict({name: s[1][name] for name in s[1] if name != "w1"}, s[1].document)],
        {},
        "state 1 does not have the tensors that it records: 'w1'; expected the state of a trainer",
    ),
    "a state with another tensor": (
        lambda s: [StateDict({**s[0], "w9": s[0]["w1"]}, s[0].document), s[1]],
        {},
        "state 0 does not have the tensors that it records: 'w9'; expected the state of a trainer",
    ),
    "number": (lambda s: s, {"weights": [1]}, "there are 1 weights for 3 states; expected one for each"),
    "none": (lambda _: [], {}, "states is []; expected a sequence of one or more states"),
    "statistics": (
        lambda s: s,
        {"statistics": "median"},
        "statistics is 'median'; expected one of merge, mean, local",
    ),
    "arrays": (lambda s: [dict(s[0])], {}, "state 0 has type dict; expected a file or a state_dict()"),
    "no samples": (
        lambda s: s,
        {"weights": None},
        "state 0 does not record its number of samples; give --weights",
    ),
    "accumulating": (
        lambda _: [client(step_of(accumulate=3), 5, 0).state_dict()],
        {},
        "state 0 is in the middle of an update, which several calls make; expected a state after an update",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, states):
    make, options, message = REFUSED[case]
    chosen = make(states)
    with pytest.raises(InputError) as error:
        average(chosen, **{"weights": [1] * len(chosen), **options})
    assert str(error.value).startswith(message)


def test_a_file_that_is_no_state(tmp_path):
    write_tensors(tmp_path / "a.safetensors", {"w": np.ones(2)}, {})
    with pytest.raises(InputError, match="does not record the training step that wrote it, or the roles"):
        average([tmp_path / "a.safetensors"], [1])


def test_states_that_train_wrote_record_their_samples(step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step.save("step.onnx")
    files = []
    for seed, size in enumerate((20, 33)):
        np.savez("data.npz", **uneven_batches((size,), np.float32, seed)[0])
        command = ["train", "step.onnx", "--data", "data.npz", "--learning-rate", "0.01", "--epochs", "1"]
        files += [f"{seed}.safetensors", f"{seed}.run.safetensors"]
        assert run([*command, "--state-out", files[-2], "--checkpoint", files[-1], "--batch-size", "11"]) == 0
    assert average(files).document["notes"]["weights"] == [20, 20, 33, 33]
    assert run(["average", *files, "-o", "step.safetensors"]) == 0
    trainer = bngrad.Trainer("step.onnx", learning_rate=0)  # beside the step it is the initial state
    np.testing.assert_array_equal(trainer.state_dict()["w1"], average(files)["w1"])


@pytest.mark.parametrize("records", [{"batch_norms": 3}, {"batch_norms": [4]}, {"averages": {"w1": ["w2"]}}])
def test_records_of_other_types(records, states, tmp_path):
    document = json.dumps({**states[0].document, **records})
    write_tensors(tmp_path / "a.safetensors", states[0], {"bngrad.step": document})
    with pytest.raises(InputError, match=r"has metadata 'bngrad\.step' that cannot be read"):
        average([tmp_path / "a.safetensors"], [1])


def test_the_command(step, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 0), ("b", 1)):
        client(step, SIZES[seed], seed).save(f"{name}.safetensors", samples=SIZES[seed])
    files = ["a.safetensors", "b.safetensors"]
    assert run(["average", *files, "-o", "c.safetensors"]) == 0
    assert capsys.readouterr().out == (
        "c.safetensors: the average of 2 states, 23 tensors each\n"
        "  a.safetensors: weight 7, 18.92%\n  b.safetensors: weight 30, 81.08%\n"
    )
    own = ["--weights", "1,3", "--fedbn", "--own", "b.safetensors"]
    assert run(["average", *files, "-o", "c.safetensors", *own, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == [1, 3]
    written, expected = read_tensors("c.safetensors")[0], average(files, [1, 3], fedbn=True, own=1)
    for name, array in expected.items():
        np.testing.assert_array_equal(written[name], array)
    for arguments, message in (
        ([*files, "--own", "d.safetensors"], "--own d.safetensors is not one of the states"),
        ([*files, "--weights", "many"], "--weights is 'many'; expected numbers"),
        (["missing.safetensors"], "missing.safetensors does not exist"),
        ([*files, "-o", "b.safetensors"], "output b.safetensors is the input; choose another file"),
    ):
        assert run(["average", "-o", "d.safetensors", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "d.safetensors").exists()
    with pytest.raises(InputError, match=r"output a\.safetensors is the input"):
        average(files, path="a.safetensors")
