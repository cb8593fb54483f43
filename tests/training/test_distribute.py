"""Training graphs and steps of one rank: over emulated ranks they compute what one does with the whole batch."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError
from bngrad.passes.distribute.collectives import is_collective
from bngrad.training.step_info import KEY, read_step_info
from emulated_ranks import Ranks
from residual_network import network as residual_network

# ONNX Runtime has no Conv in double, and rounds 16 bits.
pytestmark = pytest.mark.filterwarnings("ignore:whether loss 'loss' depends on more:bngrad.BngradWarning")

ROWS = 7
SPLITS = {
    "one rank": [7],
    "even, and one row more": [2, 2, 3],
    "uneven": [5, 2],
    "one row each": [1] * 7,
    "one has one row": [1, 6],
}


def values(rng, *shape):
    return "{" + ", ".join(f"{number:.4f}" for number in rng.uniform(-1, 1, shape).ravel()) + "}"


def network(seed=0, *, loss="loss = SoftmaxCrossEntropyLoss (logits, labels)", dtype="double"):
    """A convolution, a batch norm, a ReLU, a shared batch norm without one, and a linear layer."""
    rng = np.random.default_rng(seed)
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (double[N,2,4,4] x, int64[N] labels) => (double[N,5] logits, double loss)
    <double[3,2,3,3] w = {values(rng, 54)}, double[3] s = {values(rng, 3)}, double[3] b = {values(rng, 3)},
     double[3] m = {values(rng, 3)}, double[3] v = {{1, 2, 3}}, double[3] s2 = {values(rng, 3)},
     double[3] b2 = {values(rng, 3)}, double[3] m2 = {values(rng, 3)}, double[3] v2 = {{1, 2, 3}},
     double[3,5] f = {values(rng, 15)}, double[5] fb = {values(rng, 5)}>
    {{ [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
       [bn] y, nm, nv = BatchNormalization <training_mode = 1> (c, s, b, m, v)
       r = Relu (y) p = GlobalAveragePool (r) q = Flatten (p)
       [bn2] t, nm2, nv2 = BatchNormalization <training_mode = 1> (q, s2, b2, m2, v2)
       u = MatMul (t, f) logits = Add (u, fb) {loss} }}"""
    return onnx.parser.parse_model(text.replace("double", dtype))


def batch(seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((ROWS, 2, 4, 4)), "labels": rng.integers(0, 5, ROWS)}


def shards(feeds, split, names=("x", "labels")):
    """The feeds of each rank, which has some rows of the data."""
    ends = np.cumsum([0, *split])
    return [
        {name: value[start:end] if name in names else value for name, value in feeds.items()}
        for start, end in itertools.pairwise(ends)
    ]


def collectives(model):
    return [node.attributes["key"].as_string() for node in ir.from_proto(model).graph if is_collective(node)]


LOSSES = {
    "mean": "loss = SoftmaxCrossEntropyLoss (logits, labels)",
    "sum": 'loss = SoftmaxCrossEntropyLoss <reduction = "sum"> (logits, labels)',
    "ignored labels": "loss = SoftmaxCrossEntropyLoss <ignore_index = 2> (logits, labels)",
    "weight decay": """l = SoftmaxCrossEntropyLoss (logits, labels) square = Mul (f, f)
        decay = ReduceSum <keepdims = 0> (square) loss = Add (l, decay)""",
}


KERAS = """l = SoftmaxCrossEntropyLoss <reduction = "none"> (logits, labels) sum = ReduceSum <keepdims = 0> (l)
    zeros = Constant <value_ints = [0]> () ones = Constant <value_ints = [1]> ()
    zero = Constant <value = double {0}> () one = Constant <value = double {1}> ()
    shape = Shape (l) narrow = Cast <to = 6> (shape) head = Slice (narrow, zeros, ones, zeros)
    product = ReduceProd <keepdims = 0> (head) n = Cast <to = 11> (product) empty = Equal (n, zero)
    ratio = Div (sum, n) loss = Where (empty, zero, ratio)"""
LOSSES["Keras's mean"] = KERAS


@functools.cache
def with_loss(loss):
    """The results of one rank on the whole batch, and the model of each of several ranks."""
    model = network(loss=LOSSES[loss])
    (results,) = Ranks(1).run(bngrad.differentiate(model), [batch()])
    return results, bngrad.differentiate(model, sync=True)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the mean of ignored labels
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_gradients_of_the_whole_batch(split, loss):
    want, model = with_loss(loss)
    ranks = Ranks(len(SPLITS[split]))
    results = ranks.run(model, shards(batch(), SPLITS[split]))
    assert all(keys == ranks.keys[0] for keys in ranks.keys)
    assert len(set(ranks.keys[0])) == len(ranks.keys[0])
    for result in results:
        for name, value in want.items():
            if name != "logits":
                np.testing.assert_allclose(result[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    logits = np.concatenate([result["logits"] for result in results])
    np.testing.assert_allclose(logits, want["logits"], rtol=1e-9, atol=1e-12)


NEITHER = {
    "another number for no rows": KERAS.replace("(empty, zero, ratio)", "(empty, one, ratio)"),
    "another condition": KERAS.replace("Equal (n, zero)", "Equal (n, one)"),
    "another divisor": KERAS.replace("Equal (n, zero)", "Equal (sum, zero)"),
    "a part of the shape": KERAS.replace("(narrow, zeros, ones, zeros)", "(narrow, ones, ones, zeros)"),
}


@pytest.mark.parametrize("loss", NEITHER)
def test_what_is_not_quite_a_mean_is_refused(loss):
    with pytest.raises(ModelError, match="does not follow from the losses of its parts"):
        bngrad.differentiate(network(loss=NEITHER[loss]), sync=True)


def test_a_rank_without_rows():
    rng = np.random.default_rng(1)
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (double[N,4] x, double[N,3] target) => (double loss)
    <double[4,3] w = {values(rng, 12)}, double[3] s = {values(rng, 3)}, double[3] b = {values(rng, 3)},
     double[3] m = {{0, 0, 0}}, double[3] v = {{1, 1, 1}}>
    {{ c = MatMul (x, w) [bn] y, nm, nv = BatchNormalization <training_mode = 1> (c, s, b, m, v)
       r = Relu (y) d = Sub (r, target) e = Mul (d, d) loss = ReduceMean <keepdims = 0> (e) }}"""
    model = onnx.parser.parse_model(text)
    feeds = {"x": rng.standard_normal((ROWS, 4)), "target": rng.standard_normal((ROWS, 3))}
    (want,) = Ranks(1).run(bngrad.differentiate(model), [feeds])
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):  # NumPy's mean of nothing
        results = Ranks(3).run(bngrad.differentiate(model, sync=True), shards(feeds, [4, 0, 3], ("x", "target")))
    for result in results:
        for name, value in want.items():
            np.testing.assert_allclose(result[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_without_sync_the_statistics_are_those_of_a_rank():
    model = network()
    (want,) = Ranks(1).run(bngrad.differentiate(model), [batch()])
    results = Ranks(2).run(bngrad.differentiate(model), shards(batch(), [4, 3]))
    mean = np.mean([result["w_grad"] for result in results], axis=0)
    assert np.abs(mean - want["w_grad"]).max() > 1e-3 * np.abs(want["w_grad"]).max()


STEPS = {
    "sgd": {"optimizer": bngrad.SGD(momentum=0.9)},
    "adam, clipped": {"optimizer": "adam", "clip_norm": 0.1},
    "accumulated": {"accumulate": 2},
    "flat": {"layout": "flat", "optimizer": bngrad.SGD(momentum=0.9)},
    "fetched": {"outputs": ["w_grad"]},
    "partly frozen": {"frozen": ["bn2"], "wrt": ["w", "s", "b"]},
}


def train(step, split, calls=4):
    """The losses and states of every rank."""
    info = step.info
    state = step.state if info.flat is None else {info.flat.input: info.flatten(step.state)}
    states = [dict(state) for _ in split]
    losses = []
    for call in range(calls):
        data = shards(batch(call), split)
        rate = {info.learning_rate: np.array(0.1, info.learning_rate_dtype)}
        results = Ranks(len(split)).run(
            step.model, [{**rows, **old, **rate} for rows, old in zip(data, states, strict=True)]
        )
        losses.append([float(result[info.loss]) for result in results])
        new = (
            {name: entry.new for name, entry in info.state.items()}
            if info.flat is None
            else {info.flat.input: info.flat.output}
        )
        states = [{old: result[name] for old, name in new.items()} for result in results]
    return losses, states


@pytest.mark.parametrize("options", STEPS)
def test_a_step_of_every_kind(options):
    model, options = network(), STEPS[options]
    want_losses, (want,) = train(bngrad.training_step(model, **options), [ROWS])
    step = bngrad.training_step(model, sync=True, **options)
    assert step.info.synchronized
    losses, states = train(step, [3, 1, 3])
    np.testing.assert_allclose(losses, np.broadcast_to(want_losses, np.shape(losses)), rtol=1e-9)
    for state in states:
        for name, value in want.items():
            np.testing.assert_allclose(state[name], value, rtol=1e-8, atol=1e-10, err_msg=name)
            np.testing.assert_array_equal(state[name], states[0][name])  # every rank has the same bits


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_one_rank_alone_trains_as_without_sync(implementation):
    model = network(dtype="float")
    data = {"x": batch()["x"].astype(np.float32), "labels": batch()["labels"]}
    single, whole = (
        bngrad.Trainer(bngrad.training_step(model, sync=sync), learning_rate=0.1, implementation=implementation)
        for sync in (True, False)
    )
    losses = [[trainer.step(**data) for trainer in (single, whole)] for _ in range(5)]
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-5)
    assert losses[-1][0] < losses[0][0]


@pytest.mark.parametrize("make", ["training_step", "differentiate", "rewrite"])
def test_no_synchronized_model_runs_without_the_library(make):
    """Processes of mpiexec, each with functions of one rank, would train alone without an error."""
    model = network(dtype="float")
    result = getattr(bngrad, make)(bngrad.differentiate(model) if make == "rewrite" else model, sync=True)
    result = result.model if make == "training_step" else result
    assert collectives(result)
    with pytest.raises(Exception, match=r"All\w+.* is not a registered function/op"):
        onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    with pytest.raises(bngrad.LibraryError, match=r"built with --sync: .* use the native implementation"):
        bngrad.session(result, "function")
    assert bngrad.session(result, "native").get_outputs()


def test_weights_in_16_bits():
    single, whole = (
        bngrad.Trainer(bngrad.training_step(_half(), sync=sync), learning_rate=0.1) for sync in (True, False)
    )
    data = {"x": np.random.default_rng(0).standard_normal((6, 3)).astype(np.float16)}
    for _ in range(3):
        np.testing.assert_allclose(single.step(**data), whole.step(**data), rtol=2e-3)


def _half():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float16[N,3] x) => (float16 loss)
        <float16[3,3] f = {0, 0, 0, 0, 0, 0, 0, 0, 0}, float[3] s = {1, 1, 1}, float[3] b = {0, 1, 0},
         float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}>
        { c = MatMul (x, f) [bn] y, nm, nv = BatchNormalization <training_mode = 1> (c, s, b, m, v)
          r = Relu (y) q = Mul (r, r) loss = ReduceMean <keepdims = 0> (q) }""")
    # The parser takes numbers of 16-bit types as bits.
    numbers = np.array([[1, 2, 3], [1, 1, 1], [0, 1, 0]], np.float16)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numbers, "f"))
    return model


def test_evaluation_and_inference_exchange_nothing():
    step = bngrad.training_step(network(dtype="float"), sync=True)
    assert collectives(step.model)
    for model in (step.evaluation, step.finalize(step.state)):
        assert not {node.domain for node in model.graph.node} - {""}
        assert not model.functions


def test_the_collectives_of_a_step():
    keys = collectives(bngrad.training_step(network(), sync=True).model)
    gradients = [f"{name}_Grad/BatchNormalizationGrad_0/sums" for name in ("bn2", "bn")]
    assert sorted(keys) == sorted(["bn/moments", "bn2/moments", "weights", "loss", *gradients, "gradients/0"])


def test_every_rank_makes_the_same_step(tmp_path):
    """Ranks that make it by themselves compare its bytes; the order of Python's sets differs between processes."""
    program = """import sys, bngrad
step = bngrad.training_step(sys.argv[1], sync=True)
sys.stdout.buffer.write(step.model.SerializeToString(deterministic=True))"""
    models = set()
    onnx.save(residual_network(), tmp_path / "model.onnx")
    for seed in ("1", "3"):  # under which two domains have another order
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", program, tmp_path / "model.onnx"]
        models.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert len(models) == 1


def test_the_metadata_say_whether_a_step_is_synchronized():
    model = network(dtype="float")
    steps = [bngrad.training_step(model, sync=sync).model for sync in (True, False)]
    metadata = [{entry.key: entry.value for entry in step.metadata_props} for step in steps]
    assert [read_step_info(properties).synchronized for properties in metadata] == [True, False]
    document = json.loads(metadata[1][KEY])
    del document["synchronized"]  # as an earlier version writes it
    assert not read_step_info({KEY: json.dumps(document)}).synchronized
    document["synchronized"] = "yes"
    with pytest.raises(ModelError, match="synchronized is 'yes'"):
        read_step_info({KEY: json.dumps(document)})


def test_the_command_line(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    onnx.save(network(dtype="float"), path)
    assert run(["step", str(path), "-o", str(tmp_path / "step.onnx"), "--sync", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"]["synchronized"] is True
    for command in ("differentiate", "rewrite"):
        source = path if command == "differentiate" else tmp_path / "differentiate.onnx"
        output = tmp_path / f"{command}.onnx"
        assert run([command, str(source), "-o", str(output), "--sync"]) == 0
        assert collectives(onnx.load(output))
    target = tmp_path / "no.onnx"
    assert run(["differentiate", str(path), "-o", str(target), "--sync", "--target", "ort"]) == 2
    assert "--sync (sync=) is given with target 'ort'; expected target 'stock'" in capsys.readouterr().err
    assert not target.exists()


def test_inspect_shows_synchronized_batch_norms():
    batch_norms = bngrad.inspect(bngrad.differentiate(network(), sync=True)).batch_norms
    assert [(norm.name, norm.mode, norm.axes) for norm in batch_norms] == [
        ("bn", "synchronized", [0, 2, 3]),
        ("bn2", "synchronized", [0]),
    ]
    assert all("Sums" in norm.gradient and "Apply" in norm.gradient for norm in batch_norms)


@pytest.mark.parametrize("against", ["reference", "numeric"])
def test_validate_runs_it_on_one_rank(against):
    model = network(dtype="float")
    training_graph = bngrad.differentiate(model, sync=True)
    report = (
        bngrad.validate(training_graph, against=against, dims={"N": 4})
        if against == "numeric"
        else bngrad.validate(model, against=against, rewritten=training_graph, dims={"N": 4})
    )
    assert report.passed
    assert "function" not in report.implementations
    assert "the function implementation was not checked: it does not support the collectives" in "".join(
        report.notes
    )
    with pytest.raises(
        InputError, match="the function implementation does not support the collectives of a model built"
    ):
        bngrad.validate(training_graph, against="numeric", dims={"N": 4}, implementation="function")


OPTIONS = {
    "target training": ({"target": "training"}, "given with target 'training'; expected target 'stock'"),
    "target ort": ({"target": "ort"}, "given with target 'ort'; expected target 'stock'"),
    "builder ort": ({"builder": "ort"}, "given with builder 'ort'; expected builder 'bngrad'"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_are_refused(case):
    options, message = OPTIONS[case]
    with pytest.raises(InputError, match=rf"^--sync \(sync=\) is {message}$"):
        bngrad.differentiate(network(), sync=True, **options)


def test_the_gradient_of_data_is_refused():
    message = r"^'x', which --wrt \(wrt=\) names, is an input without a value, so it may be data of one rank"
    with pytest.raises(ModelError, match=message):
        bngrad.differentiate(network(), sync=True, wrt=["w", "x"])


STATISTICS_READ = """l = SoftmaxCrossEntropyLoss (logits, labels) penalty = ReduceMean <keepdims = 0> (nm2)
    loss = Add (l, penalty)"""


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "7",
            r"^the loss 'loss' depends on the running statistics that .*'bn2'.*; .* depends only on its Y$",
        ),
        ("N", r"^the loss of a batch does not follow from the losses of its parts: ReduceMean node 'penalty'"),
    ],
    ids=["a fixed batch", "a symbolic batch"],
)
def test_a_loss_of_running_statistics_is_refused(rows, message):
    model = network(loss=STATISTICS_READ)
    for value in (*model.graph.input, model.graph.output[0]):
        dim = value.type.tensor_type.shape.dim[0]
        if rows != "N" and dim.dim_param == "N":
            dim.dim_value = int(rows)
    with pytest.raises(ModelError, match=message):
        bngrad.differentiate(model, sync=True)
