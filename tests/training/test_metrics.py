"""The evaluation of a state: the same on any number of ranks, and who ends it."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import InputError
from bngrad.training.dataset import Dataset
from bngrad.training.metrics import Evaluation, Interrupted, evaluate
from bngrad.training.ranks import Ranks
from thread_ranks import on_threads
from trainer_cases import samples, step_of

STEP = step_of()


def trainer_of(comm):
    trainer = bngrad.Trainer(STEP, learning_rate=0, threads=1)
    trainer.ranks = Ranks(comm)
    return trainer


def dataset(count=41, **changed):
    return Dataset(samples(count) | changed, STEP.info.data)


def on_ranks(size, **options):
    options = {"drop_last": False} | options
    data = options.pop("data", dataset())
    return on_threads(size, lambda comm: evaluate(trainer_of(comm), data, 4, **options))


def test_the_result_is_that_of_the_samples():
    result = evaluate(trainer_of(None), dataset(), 4, drop_last=False)
    outputs = trainer_of(None).evaluate(**samples(41))
    assert result.loss == pytest.approx(float(outputs["loss"]), rel=1e-6)
    assert result.accuracy == np.mean(outputs["logits"].argmax(axis=1) == samples(41)["labels"])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [2, 3, 12])
def test_the_bits_do_not_depend_on_the_number_of_ranks(size, drop_last):
    alone = evaluate(trainer_of(None), dataset(), 4, drop_last=drop_last)
    assert on_ranks(size, drop_last=drop_last) == [alone] * size
    assert isinstance(alone, Evaluation)


def test_a_loss_that_is_not_finite():
    x = samples(41)["x"]
    x[39] = np.nan  # in the last but one batch, of rank 0
    assert all(math.isnan(result.loss) for result in on_ranks(3, data=dataset(x=x)))


def test_labels_that_are_refused_on_one_rank():
    labels = samples(41)["labels"]
    labels[5] = 7  # in the second batch
    errors = on_ranks(3, data=dataset(labels=labels))
    assert {type(error) for error in errors} == {InputError}
    assert {str(error) for error in errors} == {"rank 1: 'labels' has the label 7; expected 0 to 2"}


def test_one_rank_ends_it():
    def function(comm):
        return evaluate(trainer_of(comm), dataset(), 4, drop_last=False, stop=lambda: comm.rank == 1)

    assert {type(error) for error in on_threads(3, function)} == {Interrupted}


MASK = ", float[N] mask"
EACH = """l = SoftmaxCrossEntropyLoss <reduction = "none"> (z, labels) m = Mul (l, mask)
s = ReduceSum <keepdims = 0> (m) t = ReduceSum <keepdims = 0> (mask) q = Div (s, t)"""
PENALTY = "a = Mul (w, w) penalty = ReduceSum <keepdims = 0> (a) tenth = Constant <value_float = 0.1> ()"
WEIGHTED = "SoftmaxCrossEntropyLoss <ignore_index = -1> (z, labels, weights)"
DOUBLED = " ".join(f"c{index + 1} = Add (c{index}, c{index})" for index in range(40))
LOSSES = {
    "ignored": ("loss = SoftmaxCrossEntropyLoss <ignore_index = -1> (z, labels)", ""),
    "log-probabilities": (
        "p = LogSoftmax (z) loss = NegativeLogLikelihoodLoss <ignore_index = -1> (p, labels, weights)",
        "",
    ),
    "weights-of-classes": (f"loss = {WEIGHTED}", ""),
    "with-a-penalty": (f"{PENALTY} c = {WEIGHTED} b = Mul (penalty, tenth) loss = Add (c, b)", ""),
    "two-terms": (
        f"c = {WEIGHTED} n = Neg (z) d = {WEIGHTED.replace('(z', '(n')} loss = Sub (c, d)",
        "",
    ),
    "doubled-40-times": (f"c0 = {WEIGHTED} {DOUBLED} loss = Identity (c40)", ""),
    "mask": (f"{EACH} loss = Identity (q)", MASK),
    "guarded-mask": (
        f"""{EACH} zero = Constant <value_float = 0.0> ()
        none = Equal (t, zero) loss = Where (none, zero, q)""",
        MASK,
    ),
    "cast": (
        f"{EACH} d = Cast <to = 11> (q) loss = Cast <to = 1> (d)",
        MASK,
    ),
}


def trainer_of_loss(loss, more=""):
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[N,3] x, int64[N] labels{more}) => (float loss) <float[3,3] w, float[3] weights = {{0.5, 0, 2}}> {{
        z = MatMul (x, w) {loss}
    }}"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return bngrad.Trainer(bngrad.training_step(model, wrt=["w"]), learning_rate=0.1)


def void_data(trainer):
    """Batches of four, of which the second has nothing that counts, and the others two and three samples."""
    labels = np.array([0, -1, 2, 1, -1, -1, 1, -1, 2, 0, 2, -1])
    data = {
        "x": np.random.default_rng(1).standard_normal((12, 3)).astype(np.float32),
        "labels": labels,
        "mask": (labels >= 0).astype(np.float32) * np.repeat(np.float32([1, 0, 1]), 4),
    }
    if "mask" in trainer.info.data:
        data["labels"] = np.maximum(labels, 0)
    return {name: data[name] for name in trainer.info.data}


@pytest.mark.parametrize("case", LOSSES)
def test_batches_count_by_what_counts_in_them(case):
    trainer = trainer_of_loss(*LOSSES[case])
    data = void_data(trainer)
    if "weights" not in LOSSES[case][0] and "mask" not in data:
        data["labels"][6] = -1
    void = trainer.evaluate(**{name: array[4:8] for name, array in data.items()})["loss"]
    assert math.isnan(void) is (case != "guarded-mask")
    result = evaluate(trainer, Dataset(data, trainer.info.data), 4, drop_last=False)
    assert result.loss == pytest.approx(float(trainer.evaluate(**data)["loss"]), rel=1e-5)


def test_nothing_counts():
    trainer = trainer_of_loss(*LOSSES["ignored"])
    data = void_data(trainer) | {"labels": np.full(12, -1)}
    assert math.isnan(evaluate(trainer, Dataset(data, trainer.info.data), 4, drop_last=False).loss)
    assert evaluate(trainer, Dataset(data, trainer.info.data), 4, drop_last=False).accuracy is None


SUMS = EACH.partition(" q =")[0]
CROSS = 'l = SoftmaxCrossEntropyLoss <reduction = "none"> (z, labels)'
TENTH = "tenth = Constant <value_float = 0.1> () one = Constant <value_float = 1.0> ()"
AT_ONCE = {
    "sum": ('loss = SoftmaxCrossEntropyLoss <reduction = "sum"> (z, labels)', ""),
    "sum-and-penalty": (f"{PENALTY} {CROSS} s = ReduceSum <keepdims = 0> (l) loss = Add (s, penalty)", ""),
    "root": ("c = SoftmaxCrossEntropyLoss (z, labels) loss = Sqrt (c)", ""),
    "added-guard": (f"{SUMS} {TENTH} g = Add (t, tenth) loss = Div (s, g)", MASK),
    "max-guard": (f"{SUMS} {TENTH} g = Max (t, one) loss = Div (s, g)", MASK),
    "clip-guard": (f"{SUMS} {TENTH} g = Clip (t, one) loss = Div (s, g)", MASK),
    "where-guard": (f"{SUMS} {TENTH} b = Greater (t, tenth) g = Where (b, t, one) loss = Div (s, g)", MASK),
    "reciprocal": (f"{SUMS} {TENTH} g = Add (t, tenth) r = Reciprocal (g) loss = Mul (s, r)", MASK),
    "ratio-of-means": (
        f"""{CROSS} k = Mul (l, mask) a = ReduceMean <keepdims = 0> (k) b = ReduceMean <keepdims = 0> (mask)
        loss = Div (a, b)""",
        MASK,
    ),
    "product-of-means": (
        f"{CROSS} a = ReduceMean <keepdims = 0> (l) b = ReduceMean <keepdims = 0> (mask) loss = Mul (a, b)",
        MASK,
    ),
    "by-the-size-of-the-batch": (
        f"""{CROSS} s = ReduceSum <keepdims = 0> (l) n = Size (l) f = Cast <to = 1> (n) r = Sqrt (f)
        loss = Div (s, r)""",
        "",
    ),
}
COLUMNS = "zero = Constant <value_ints = [0]> () a = Abs (z)"
PAIRS = "u = Transpose (z) p = MatMul (z, u) l = LogSoftmax (p) loss = ReduceMean <keepdims = 0> (l)"
BY_SAMPLES = {
    # name: nodes, further inputs, the warning
    "max": (f"{CROSS} loss = ReduceMax <keepdims = 0> (l)", "", "ReduceMax node .* is neither a mean nor a sum"),
    "log-sum-exp": (f"{CROSS} loss = ReduceLogSumExp <keepdims = 0> (l)", "", "ReduceLogSumExp node"),
    "pairs": (PAIRS, "", "that of 6 samples is .*, and its terms for 4 and 2 of them make"),
    "normalized-weights": (
        f"""{CROSS} {TENTH} t = ReduceSum (mask) g = Max (t, one) v = Div (mask, g) m = Mul (l, v)
        loss = ReduceSum <keepdims = 0> (m)""",
        MASK,
        "that of 6 samples",
    ),
    "mean-of-sums": (
        f"{COLUMNS} s = ReduceSum <keepdims = 0> (a, zero) loss = ReduceMean <keepdims = 0> (s)",
        "",
        "ReduceMean node",
    ),
    "sum-of-means": (
        f"{COLUMNS} s = ReduceMean <keepdims = 0> (a, zero) loss = ReduceSum <keepdims = 0> (s)",
        "",
        None,
    ),
}


def of_twelve(trainer):
    data = void_data(trainer)
    return data | ({"labels": np.arange(12) % 3} if "labels" in data else {})


@pytest.mark.parametrize("case", AT_ONCE)
def test_the_loss_is_that_of_all_samples_at_once(case, recwarn):
    trainer = trainer_of_loss(*AT_ONCE[case])
    data = of_twelve(trainer)
    for size in (4, 5):  # the last batch has two samples of five
        result = evaluate(trainer, Dataset(data, trainer.info.data), size, drop_last=False)
        assert result.loss == pytest.approx(float(trainer.evaluate(**data)["loss"]), rel=1e-5)
    assert not recwarn.list


@pytest.mark.parametrize("case", BY_SAMPLES)
def test_other_losses_count_by_samples_and_that_is_said_once(case):
    nodes, more, message = BY_SAMPLES[case]
    trainer, lines = trainer_of_loss(nodes, more), []
    data = of_twelve(trainer)
    slices = (slice(8), slice(8, 12))
    parts = [trainer.evaluate(**{name: array[p] for name, array in data.items()})["loss"] for p in slices]
    for _ in range(2):
        result = evaluate(trainer, Dataset(data, trainer.info.data), 8, drop_last=False, warning=lines.append)
        assert result.loss == pytest.approx(float(parts[0] * 8 + parts[1] * 4) / 12, rel=1e-6)
    start = "the validation loss is the average of batches weighted by samples: "
    assert len(lines) == (message is not None)
    assert all(re.match(start + message, line) for line in lines)


def test_the_average_is_said_on_one_rank():
    step, said = trainer_of_loss(*BY_SAMPLES["pairs"][:2])._training_step, []
    x = np.random.default_rng(0).standard_normal((14, 3)).astype(np.float32)
    data = {"x": x, "labels": np.arange(14) % 3}

    def function(comm):
        trainer = bngrad.Trainer(step, learning_rate=0, threads=1)
        trainer.ranks = Ranks(comm)
        dataset = Dataset({name: data[name] for name in step.info.data}, step.info.data)
        return evaluate(trainer, dataset, 3, drop_last=False, warning=lambda _: said.append(comm.rank))

    results = on_threads(3, function)
    assert said == [0]
    assert len(set(results)) == 1


def test_a_sum_over_a_batch_of_fixed_size_is_that_of_a_batch():
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[4,3] x) => (float loss) <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float four = {4}> {
        z = MatMul (x, w) s = ReduceSum <keepdims = 0> (z) loss = Div (s, four) }"""
    step = bngrad.training_step(onnx.parser.parse_model(text), wrt=["w"])
    trainer, x = bngrad.Trainer(step, learning_rate=0.1), np.arange(24, dtype=np.float32).reshape(8, 3)
    result = evaluate(trainer, Dataset({"x": x}, step.info.data), 4, drop_last=True)
    parts = [float(trainer.evaluate(x=part)["loss"]) for part in (x[:4], x[4:])]
    assert result.loss == pytest.approx(sum(parts) / 2)
