"""Batch norms in training mode in bodies of If, Loop and Scan: gradients, running statistics, and refusals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import bngrad
from autodiff.small_models import model as small_model
from bngrad.errors import BngradError
from bngrad.runtime.session import session

TRAINING = "BatchNormalization <training_mode = 1>"
M, V = np.float32([0.5, -1]), np.float32([2, 0.5])
STATISTICS = "float[2] m = {0.5, -1}, float[2] v = {2, 0.5}"
PARAMETERS = "float[2] s = {1, 2}, float[2] b = {0.3, -0.2}, float[2, 2] w = {0.9, -0.3, 0.4, 0.8}"
ALL = f"{PARAMETERS}, {STATISTICS}"


class Norm:
    """A batch norm with running statistics, in float64; ONNX's variance is biased."""

    def __init__(self):
        self.mean, self.var = M.astype(float), V.astype(float)

    def __call__(self, x, s, b):
        mean, var = x.mean(axis=0), x.var(axis=0)
        self.mean, self.var = 0.9 * self.mean + 0.1 * mean, 0.9 * self.var + 0.1 * var
        return (x - mean) / np.sqrt(var + np.float32(1e-5)) * s + b


class Case(NamedTuple):
    text: str
    """The nodes that compute y, whose squares are the loss."""
    forward: object
    """y in NumPy, of the feeds, s, b, w, and the batch norms by the name of their mean."""
    statistics: dict[str, str]
    """The inputs with the running statistics: the mean, and the variance."""
    feeds: tuple = ({},)
    options: dict = {}  # noqa: RUF012
    inputs: str = "float[N, 2] x"
    initializers: str = ALL
    outputs: str = "float loss"


CONDITION = "low = Constant <value = float {0}> () least = ReduceSum <keepdims = 0> (x) c = Greater (least, low)"
BOTH = f"""{CONDITION} y = If (c) <then_branch = t () => (float[N, 2] i) {{
        [one] i, p, q = {TRAINING} (x, s, b, m, v) }},
    else_branch = e () => (float[N, 2] j) {{ h = MatMul (x, w) [two] j, p2, q2 = {TRAINING} (h, s, b, m, v) }}>"""
LOOP = f"""y = Loop <body = l (int64 n, bool go, float[N, 2] u) => (bool on, float[N, 2] o) {{
    on = Identity (go) h = MatMul (u, w) [bn] i, p, q = {TRAINING} (h, s, b, m, v) o = Tanh (i) }}> (n, , x)"""
SCAN = f"""f = Constant <value = float[3, 2] {{0, 0, 0, 0, 0, 0}}> ()
    last, y = Scan <num_scan_inputs = 1, scan_input_directions = [REVERSED], scan_output_directions = [REVERSED],
    body = l (float[3, 2] u, float[3, 2] r) => (float[3, 2] o, float[3, 2] e) {{
        a = Add (u, r) h = MatMul (a, w) [bn] i, p, q = {TRAINING} (h, s, b, m, v) o = Tanh (i) e = Mul (o, r)
    }}> (f, x)"""
IN_LOOP = f"""y = Loop <body = l (int64 n, bool go, float[N, 2] u) => (bool on, float[N, 2] o) {{
    on = Identity (go) h = MatMul (u, w) two = Constant <value = int64 {{2}}> () k = Mod (n, two)
    even = Cast <to = 9> (k)
    o = If (even) <then_branch = t () => (float[N, 2] i) {{ [bn] i0, p, q = {TRAINING} (h, s, b, m, v)
            i = Tanh (i0) }},
        else_branch = e () => (float[N, 2] j) {{ j = Neg (h) }}> }}> (n, , x)"""
LOOP_IN_IF = f"""{CONDITION} y = If (c) <then_branch = t () => (float[N, 2] i) {{
        {LOOP.replace("y = L", "i = L").replace(" i, p", " k, p").replace("Tanh (i)", "Tanh (k)")} }},
    else_branch = e () => (float[N, 2] j) {{ j = Neg (x) }}>"""
OWN = f"""{CONDITION} y = If (c) <then_branch = t () => (float[N, 2] i) <float[2] m = {{0.5, -1}}> {{
        v1 = Constant <value = float[2] {{2, 0.5}}> () [one] i, p, q = {TRAINING} (x, s, b, m, v1) }},
    else_branch = e () => (float[N, 2] j) <float[2] m = {{0.5, -1}}, float[2] v1 = {{2, 0.5}}> {{
        h = MatMul (x, w) [two] j, p2, q2 = {TRAINING} (h, s, b, m, v1) }}>"""
MAIN_TOO = f"[first] x1, p0, q0 = {TRAINING} (x, s, b, m, v) {LOOP.replace(', x)', ', x1)')} "
ELEMENTS = f"""yes = Constant <value = bool {{1}}> ()
    e = Loop <body = l (int64 n, bool go) => (bool on, float[N, 2] o) {{
    on = Identity (go) k = Cast <to = 1> (n) h0 = MatMul (x, w) h1 = Add (h0, k) h = Mul (h1, h1)
    [bn] o, p, q = {TRAINING} (h, s, b, m, v) }}> (n, yes) first = Constant <value_ints = [0]> ()
    y = ReduceSum <keepdims = 0> (e, first)"""
NONE = "float[N, 2] x, int64 n"


def both(x, s, b, w, one, two):
    return one(x, s, b) if x.sum() > 0 else two(x @ w, s, b)


def looped(x, n, s, b, w, m):
    for _ in range(n):
        x = np.tanh(m(x @ w, s, b))
    return x


def scanned(x, s, b, w, m):
    u, results = np.zeros((3, 2)), []
    for r in x:
        u = np.tanh(m((u + r) @ w, s, b))
        results.append(u * r)
    return np.stack(results)


def nested(x, n, s, b, w, m):
    for step in range(n):
        x = np.tanh(m(x @ w, s, b)) if step % 2 else -(x @ w)
    return x


def elements(x, n, s, b, w, m):
    return sum((m((x @ w + step) ** 2, s, b) for step in range(n)), np.zeros_like(x))


UP, DOWN = ({"x": np.float32([[1, 2], [3, -1], [0.5, 0.25]]) * sign} for sign in (1, -1))
STEPS = [{**UP, "n": np.array(n)} for n in (0, 1, 4)]
ROWS = ({"x": np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32)},)
CASES = {
    "if": Case(
        BOTH.replace(f"[two] j, p2, q2 = {TRAINING} (h, s, b, m, v)", "j = Mul (h, h)"),
        lambda x, s, b, w, m: m(x, s, b) if x.sum() > 0 else (x @ w) ** 2,
        {"m": "v"},
        (UP, DOWN),
    ),
    "if, apart": Case(
        BOTH,
        both,
        {"one/running_mean": "one/running_var", "two/running_mean": "two/running_var"},
        (UP, DOWN),
    ),
    "if, one module": Case(
        BOTH,
        lambda x, s, b, w, m: both(x, s, b, w, m, m),
        {"m": "v"},
        (UP, DOWN),
        {"shared_statistics": "chain"},
    ),
    "statistics of the bodies": Case(
        OWN,
        both,
        {"one/running_mean": "one/running_var", "two/running_mean": "two/running_var"},
        (UP, DOWN),
        initializers=PARAMETERS,
    ),
    "loop": Case(LOOP, looped, {"m": "v"}, STEPS, inputs=NONE),
    "loop of three": Case(
        LOOP.replace("(n,", "(three,"),
        lambda **values: looped(n=3, **values),
        {"m": "v"},
        (UP,),
        initializers=f"{ALL}, int64 three = {{3}}",
    ),
    "elements": Case(ELEMENTS, elements, {"m": "v"}, STEPS[1:], inputs=NONE),
    "scan": Case(SCAN.replace("REVERSED", "0"), scanned, {"m": "v"}, ROWS, inputs="float[T, 3, 2] x"),
    "scan back": Case(
        SCAN.replace("REVERSED", "1"),
        lambda x, **values: scanned(x[::-1], **values)[::-1],
        {"m": "v"},
        ROWS,
        inputs="float[T, 3, 2] x",
    ),
    "if in loop": Case(IN_LOOP, nested, {"m": "v"}, STEPS, inputs=NONE),
    "loop in if": Case(
        LOOP_IN_IF,
        lambda x, n, **values: looped(x, n, **values) if x.sum() > 0 else -x,
        {"m": "v"},
        (STEPS[2], {**DOWN, "n": np.array(2)}),
        inputs=NONE,
    ),
    "main graph too": Case(
        MAIN_TOO,
        lambda x, s, b, w, m, **n: looped(m(x, s, b), s=s, b=b, w=w, m=m, **n),
        {"m": "v"},
        STEPS,
        {"shared_statistics": "chain"},
        inputs=NONE,
    ),
    "main graph apart": Case(
        MAIN_TOO,
        lambda x, s, b, w, first, bn, **n: looped(first(x, s, b), s=s, b=b, w=w, m=bn, **n),
        {"first/running_mean": "first/running_var", "bn/running_mean": "bn/running_var"},
        STEPS[2:],
        inputs=NONE,
    ),
}
WEIGHTS = {"s": np.float32([1, 2]), "b": np.float32([0.3, -0.2]), "w": np.float32([[0.9, -0.3], [0.4, 0.8]])}


def model(case):
    text = f"{case.text} y2 = Mul (y, y) loss = ReduceSum <keepdims = 0> (y2)"
    return small_model(case.inputs, text, initializers=case.initializers, outputs=case.outputs)


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


def test_ghost_batches_are_refused():
    forward = model(CASES["loop"])
    (body,) = forward.graph.node[0].attribute
    entry = next(node for node in body.g.node if node.name == "bn").metadata_props.add()
    entry.key, entry.value = "bngrad.ghost", "2"
    with pytest.raises(BngradError, match="ghost batches are unsupported; remove them with bngrad batchnorm"):
        bngrad.differentiate(forward, loss="loss", wrt=["s"])


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


@pytest.mark.parametrize("variance", ["biased", "unbiased"])
def test_the_step_trains_evaluates_and_comes_back(variance, tmp_path):
    """The body of the inference model reads the trained statistics."""
    case = CASES["loop in if"]._replace(outputs="float loss, float[N, 2] y")
    step = bngrad.training_step(model(case), loss="loss", running_variance=variance, outputs=["loss"])
    assert step.info.names("running_statistic") == ["m", "v"]
    trainer = bngrad.Trainer(step, learning_rate=1e-3)
    for _ in range(3):
        trainer.step(**STEPS[2])
    state = trainer.state_dict()
    assert not np.allclose(state["m"], M)
    trainer.save(tmp_path / "state.npz")
    again = bngrad.Trainer(step, learning_rate=1e-3)
    again.load(tmp_path / "state.npz")
    assert again.step(**STEPS[2]) == trainer.step(**STEPS[2])
    state = trainer.state_dict()
    x = STEPS[2]["x"].astype(float)
    for _ in range(4):
        h = x @ state["w"]
        x = np.tanh((h - state["m"]) / np.sqrt(state["v"] + 1e-5) * state["s"] + state["b"])
    np.testing.assert_allclose(trainer.evaluate(**STEPS[2])["loss"], (x**2).sum(), rtol=1e-5)
    inference = trainer.finalize()
    names = {tensor.name for tensor in inference.graph.initializer}
    assert {"m", "v"} <= names
    result = session(inference).run(["y"], STEPS[2])[0]
    np.testing.assert_allclose(result, x, rtol=1e-5, atol=1e-6)
