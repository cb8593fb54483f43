"""Batch norms in training mode in bodies of If, Loop and Scan: gradients, running statistics, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad
from autodiff.body_cases import (
    ALL,
    BOTH,
    CASES,
    CONDITION,
    DOWN,
    LOOP,
    NONE,
    TRAINING,
    UP,
    WEIGHTS,
    Case,
    Norm,
    both,
    model,
)
from bngrad.errors import BngradError
from bngrad.runtime.session import session


def expected(case, feeds):
    """The loss, its gradients by central differences, and the new statistics, in float64."""

    def run(**weights):
        norms = {mean.partition("/")[0]: Norm() for mean in case.statistics}
        y = case.forward(**{**feeds, "x": feeds["x"].astype(float)}, **weights, **norms)
        return (y**2).sum(), norms

    weights = {name: value.astype(float) for name, value in WEIGHTS.items()}
    loss, norms = run(**weights)
    results = {"loss": loss}
    for name, value in weights.items():
        gradient = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            step = np.zeros_like(value)
            step[index] = 1e-5
            up, down = (run(**weights | {name: value + sign * step})[0] for sign in (1, -1))
            gradient[index] = (up - down) / 2e-5
        results[f"{name}_grad"] = gradient
    for (mean, var), norm in zip(case.statistics.items(), norms.values(), strict=True):
        results |= {mean: norm.mean, var: norm.var}
    return results


@pytest.mark.parametrize("implementation", ["function", "native"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_and_statistics(name, implementation):
    case = CASES[name]
    graph = bngrad.differentiate(model(case), loss="loss", wrt=["s", "b", "w"], **case.options)
    names = bngrad.read_training_graph(graph).running_statistics
    assert set(names) == {*case.statistics, *case.statistics.values()}
    runner = session(graph, implementation)
    for feeds in case.feeds:
        outputs = ["loss", "s_grad", "b_grad", "w_grad", *names.values()]
        got = dict(zip(outputs, runner.run(outputs, feeds), strict=True))
        got |= {old: got[new] for old, new in names.items()}
        for key, want in expected(case, feeds).items():
            np.testing.assert_allclose(got[key], want, rtol=2e-4, atol=2e-4, err_msg=f"{key} {feeds}")


def refused(text, *, inputs=NONE, initializers=ALL, **options):
    """The message with which a model is refused."""
    forward = model(Case(text, None, {}, inputs=inputs, initializers=initializers))
    with pytest.raises(BngradError) as error:
        bngrad.differentiate(forward, loss="loss", **{"wrt": ["s"], **options})
    return str(error.value)


BN = "BatchNormalization node 'bn' (outputs i, p, q)"
HERE = f"{BN} is a batch norm in training mode in the body of another node"
COMPUTED = LOOP.replace("h = MatMul", "m = Neg (b) h = MatMul")
CARRIED = f"""y, m1 = Loop <body = l (int64 n, bool go, float[N, 2] u, float[2] m0) =>
    (bool on, float[N, 2] o, float[2] p) {{ on = Identity (go)
    [bn] i, p, q = {TRAINING} (u, s, b, m0, v) o = Tanh (i) }}> (n, , x, m)"""
OURS = "bngrad.BatchNormalizationTraining <epsilon = 0.1, momentum = 0.9, unbiased_running_var = 0>"
REFUSED = {
    "computed in the body": (COMPUTED, {}, f"{HERE}, which makes or changes its running statistics; expected"),
    "changed by the body": (
        CARRIED,
        {},
        f"{HERE}, which makes or changes its running statistics; expected",
    ),
    "read in a loop": (
        LOOP.replace("o = Tanh (i)", "r = Add (i, p) o = Tanh (r)"),
        {},
        f"{HERE}, whose steps read its new running statistics; move it out of the body, or name it with --frozen",
    ),
    "of bngrad": (
        LOOP.replace(TRAINING, OURS).replace("b, m, v)", "b, m, v, axes)"),
        {"initializers": f"{ALL}, int64[1] axes = {{0}}"},
        "bngrad.BatchNormalizationTraining node 'bn' (outputs i, p, q) is a batch norm in training mode in the bo",
    ),
    "of TensorFlow": (
        LOOP.replace(TRAINING, "local.FusedBatchNormV3 <is_training = 1, exponential_avg_factor = 0.1>"),
        {},
        "local.FusedBatchNormV3 node 'bn' (outputs i, p, q) is a batch norm in training mode in the body of anoth",
    ),
    "in ORT's dialect": (
        LOOP,
        {"target": "ort"},
        f"{BN} is in the body of another node, and ONNX Runtime's own batch norm overwrites its running stat",
    ),
    "over ranks": (
        LOOP.replace("float[N, 2] u", "float[4, 2] u").replace("[N, 2] o", "[4, 2] o"),
        {"sync": True, "inputs": "float[4, 2] x, int64 n"},
        f"{BN} is in the body of another node, which the ranks may run differently; with --sync (sync=)",
    ),
    "a statistic as a weight": (LOOP, {"wrt": ["m"]}, "the loss 'loss' does not depend on 'm' in a way"),
    "no condition": (
        LOOP.replace("(int64 n, bool go, float[N, 2] u)", "(int64 n, bool go)").replace("MatMul (u", "MatMul (x"),
        {},
        f"{HERE}, Loop node 'y' (outputs y); expected an If, Loop or Scan; move it out of the body, or name it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    text, options, message = REFUSED[name]
    assert refused(text, **options).startswith(message)


FIRST = f"[first] x1, p0, q0 = {TRAINING} (x, s, b, m, v)"
READ = f"""{CONDITION} UPDATE
    y, z = If (c) <then_branch = t () => (float[N, 2] o, float[2] r) {{ h = MatMul (x1, w) HERE
            [bn] i, p, q = {TRAINING} (h, s, b, m, v) o = Add (i, p) r = Identity (q) }},
        else_branch = e () => (float[N, 2] j, float[2] k) {{ j = Neg (x1) k = Identity (b) }}>"""
AFTER = {
    "the main graph": READ.replace("UPDATE", FIRST).replace("HERE", ""),
    "the same branch": READ.replace("UPDATE", "").replace("(x1", "(x").replace("HERE", f"{FIRST} h1 = Neg (x1)"),
    "a loop": LOOP.replace("y = Loop", "x1 = Loop").replace("[bn] i, p, q", "[first] i, p0, q0")
    + f" [bn] i, p, q = {TRAINING} (x1, s, b, m, v) y = Add (i, p)",
}


@pytest.mark.parametrize("name", AFTER)
def test_a_new_statistic_that_is_read_after_another_update(name):
    """The nodes that compute it again for the gradient read the statistic from before the step."""
    message = refused(AFTER[name], shared_statistics="chain")
    assert message.startswith(f"{BN} reads the running statistics 'm' after BatchNormalization node 'first'")
    case = Case(AFTER[name], None, {}, inputs=NONE)
    bngrad.differentiate(model(case), loss="loss", wrt=["s"], shared_statistics="separate")


def test_new_statistics_of_one_module_that_both_branches_read():
    text = BOTH.replace("[up] i,", "[up] i0,").replace("[down] j,", "[down] j0,")
    text = text.replace("m, v) }", "m, v) i = Add (i0, p) }", 1).replace("m, v) }>", "m, v) j = Mul (j0, q2) }>")

    def forward(x, s, b, w, m):
        y = both(x, s, b, w, m, m)
        return y + m.mean if x.sum() > 0 else y * m.var

    case = Case(text, forward, {"m": "v"}, (UP, DOWN), {"shared_statistics": "chain"})
    graph = bngrad.differentiate(model(case), loss="loss", wrt=["s", "w"], **case.options)
    for feeds in case.feeds:
        got = session(graph).run(["s_grad", "w_grad", "m_new", "v_new"], feeds)
        for value, key in zip(got, ("s_grad", "w_grad", "m", "v"), strict=True):
            np.testing.assert_allclose(value, expected(case, feeds)[key], rtol=2e-4, atol=2e-4, err_msg=key)


def test_ghost_batches_are_refused():
    forward = model(CASES["loop"])
    (body,) = forward.graph.node[0].attribute
    entry = next(node for node in body.g.node if node.name == "bn").metadata_props.add()
    entry.key, entry.value = "bngrad.ghost", "2"
    with pytest.raises(BngradError, match="ghost batches are unsupported; remove them with bngrad batchnorm"):
        bngrad.differentiate(forward, loss="loss", wrt=["s"])


@pytest.mark.parametrize(("calls", "names"), [((0, 1), {"m", "v"}), ((1, 0), None)])
def test_recorded_calls_of_one_module(calls, names):
    """Exporters that know the order of the calls record it."""
    forward = model(CASES["main graph too"])
    (body,) = forward.graph.node[1].attribute
    nodes = forward.graph.node[0], next(node for node in body.g.node if node.name == "bn")
    for node, call in zip(nodes, calls, strict=True):
        entry = node.metadata_props.add()
        entry.key, entry.value = "bngrad.call", str(call)
    if names is None:
        with pytest.raises(BngradError, match="and their recorded calls are in another order"):
            bngrad.differentiate(forward, loss="loss", wrt=["s"])
    else:
        graph = bngrad.differentiate(forward, loss="loss", wrt=["s"])
        assert bngrad.read_training_graph(graph).running_statistics.keys() == names


def test_statistics_that_a_branch_returns():
    """As an exporter of a module in training mode may write it; the loss reads the new mean."""
    text = f"""{CONDITION} y, m1 = If (c) <then_branch = t () => (float[N, 2] i, float[2] p) {{
            [bn] i, p, q = {TRAINING} (x, s, b, m, v) }},
        else_branch = e () => (float[N, 2] j, float[2] k) {{ j = MatMul (x, w) k = Identity (m) }}>
        penalty = ReduceSum <keepdims = 0> (m1) y1 = Add (y, penalty)"""
    case = Case(
        text.replace(" y, m1", " y0, m1").replace("(y, p", "(y0, p").replace("y1 =", "y ="),
        lambda x, s, b, w, m: m(x, s, b) + m.mean.sum() if x.sum() > 0 else x @ w + m.mean.sum(),
        {"m": "v"},
    )
    graph = bngrad.differentiate(model(case), loss="loss", wrt=["x", "s"])
    x = UP["x"]
    got = session(graph).run(["x_grad"], {"x": x})[0]
    want = np.zeros_like(x, float)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x, float)
        step[index] = 1e-5
        losses = [expected_loss(case, x + sign * step) for sign in (1, -1)]
        want[index] = (losses[0] - losses[1]) / 2e-5
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def expected_loss(case, x):
    weights = {name: value.astype(float) for name, value in WEIGHTS.items()}
    return (case.forward(x=x, **weights, m=Norm()) ** 2).sum()


@pytest.mark.parametrize("name", ["if, one module", "scan back", "if in loop"])
def test_validation_evaluates_every_graph(name):
    case = CASES[name]
    options = {"loss": "loss", "wrt": ["s", "w"], "against": "reference", "running_variance": "unbiased"}
    report = bngrad.validate(model(case), inputs=case.feeds[-1], **options, **case.options)
    assert report.passed
    assert "cannot be evaluated" not in str(report)


@pytest.mark.parametrize("opset", [9, 13])
def test_batch_norms_of_old_opsets(opset):
    """Below opset 14, five outputs are training mode."""
    text = BOTH.replace(" <training_mode = 1>", "").replace("q =", "q, r, t =").replace("q2 =", "q2, r2, t2 =")
    forward = model(CASES["if, apart"]._replace(text=text))
    forward.opset_import[0].version = opset
    feeds = {"x": UP["x"]}
    assert bngrad.validate(forward, loss="loss", wrt=["s", "w"], against="reference", inputs=feeds).passed


def test_ranks_that_are_unknown_or_one():
    text = f"""k = Constant <value_ints = [-1]> () z = Reshape (x, SHAPE) low = Constant <value = float {{0}}> ()
        least = ReduceSum <keepdims = 0> (x) c = Greater (least, low)
        y = If (c) <then_branch = t () => (i) {{ [bn] i, p, q = {TRAINING} (z, s, b, m, v) }},
            else_branch = e () => (j) {{ j = Neg (z) }}>"""
    single = "float[1] s = {2}, float[1] b = {1}, float[1] m = {0.5}, float[1] v = {2}"
    for shape, inputs, initializers, feeds in (
        ("k", "float[N, 2] x", single, {}),
        ("sizes", "float[N, 2] x, int64[K] sizes", ALL, {"sizes": np.array([-1, 2])}),
    ):
        forward = model(Case(text.replace("SHAPE", shape), None, {}, inputs=inputs, initializers=initializers))
        options = {"wrt": ["s"], "against": "reference", "inputs": {**UP, **feeds}}
        assert bngrad.validate(forward, loss="loss", **options).passed


@pytest.mark.parametrize(("taken", "name"), [("two", "up"), ("one", "down")])
def test_a_branch_that_inferred_shapes_exclude_has_no_statistics(taken, name):
    text = f"""h0 = MatMul (x, w) sizes = Shape (h0) two = Constant <value_ints = [2]> ()
        one = Constant <value_ints = [1]> () last = Gather (sizes, one) c = Equal (last, {taken})"""
    text += BOTH.replace(CONDITION, "")
    graph = bngrad.differentiate(model(Case(text, None, {}, inputs="float[3, 2] x")), loss="loss", wrt=["s"])
    pairs = {f"{name}/running_{kind}": f"{name}/running_{kind}_new" for kind in ("mean", "var")}
    assert bngrad.read_training_graph(graph).running_statistics == pairs
    assert [value.name for value in graph.graph.input] == ["x", "s", *pairs]
