"""Models with batch norms in bodies of If, Loop and Scan, and what they compute, in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autodiff.small_models import model as small_model

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
        [up] i, p, q = {TRAINING} (x, s, b, m, v) }},
    else_branch = e () => (float[N, 2] j) {{ h = MatMul (x, w) [down] j, p2, q2 = {TRAINING} (h, s, b, m, v) }}>"""
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
        v1 = Constant <value = float[2] {{2, 0.5}}> () [up] i, p, q = {TRAINING} (x, s, b, m, v1) }},
    else_branch = e () => (float[N, 2] j) <float[2] m = {{0.5, -1}}, float[2] v1 = {{2, 0.5}}> {{
        h = MatMul (x, w) [down] j, p2, q2 = {TRAINING} (h, s, b, m, v1) }}>"""
MAIN_TOO = f"[first] x1, p0, q0 = {TRAINING} (x, s, b, m, v) {LOOP.replace(', x)', ', x1)')} "
ELEMENTS = f"""yes = Constant <value = bool {{1}}> ()
    e = Loop <body = l (int64 n, bool go) => (bool on, float[N, 2] o) {{
    on = Identity (go) k = Cast <to = 1> (n) h0 = MatMul (x, w) h1 = Add (h0, k) h = Mul (h1, h1)
    [bn] o, p, q = {TRAINING} (h, s, b, m, v) }}> (n, yes) first = Constant <value_ints = [0]> ()
    y = ReduceSum <keepdims = 0> (e, first)"""
NONE = "float[N, 2] x, int64 n"


def both(x, s, b, w, up, down):
    return up(x, s, b) if x.sum() > 0 else down(x @ w, s, b)


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
        BOTH.replace(f"[down] j, p2, q2 = {TRAINING} (h, s, b, m, v)", "j = Mul (h, h)"),
        lambda x, s, b, w, m: m(x, s, b) if x.sum() > 0 else (x @ w) ** 2,
        {"m": "v"},
        (UP, DOWN),
    ),
    "if, apart": Case(
        BOTH,
        both,
        {"up/running_mean": "up/running_var", "down/running_mean": "down/running_var"},
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
        {"up/running_mean": "up/running_var", "down/running_mean": "down/running_var"},
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
