"""Gradient of ``ai.onnx.preview.training``, which `rewrite` replaces by the nodes of the gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import bngrad
from bngrad.autodiff.gradient_nodes import rewrite
from bngrad.validation.float64 import Evaluator

DOMAIN = "ai.onnx.preview.training"
HEAD = f'<ir_version: 8, opset_import: ["" : 18, "{DOMAIN}" : 1]>\n'
STEP = 1e-6


def parse(text):
    return onnx.parser.parse_model(HEAD + text)


def gradient(inputs, outputs, *, xs, y, zs=()):
    """A Gradient, as text."""
    words = {"xs": xs, "zs": zs}
    lists = [f"{key}: strings = [{', '.join(map(repr, names))}]".replace("'", '"') for key, names in words.items()]
    return f'{outputs} = {DOMAIN}.Gradient <{", ".join(lists)}, y = "{y}"> ({inputs})'


def run(model, feeds, outputs=None):
    """The outputs of a rewritten model on stock ONNX Runtime."""
    onnx.checker.check_model(model, full_check=True)
    assert DOMAIN not in {node.domain for node in model.graph.node}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()] if outputs is None else outputs
    return dict(zip(names, session.run(names, feeds), strict=True))


EXAMPLES = {case.name: Path(case.model_dir) for case in load_model_tests(kind="simple")}


def arrays(folder, kind):
    files = sorted(folder.glob(f"test_data_set_0/{kind}_*.pb"))
    return [numpy_helper.to_array(onnx.load_tensor(file)) for file in files]


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
def test_examples_of_onnx(name):
    folder = EXAMPLES[name]
    model = onnx.load(folder / "model.onnx")
    feeds = dict(zip((value.name for value in model.graph.input), arrays(folder, "input"), strict=True))
    values = run(bngrad.rewrite(model), feeds)
    assert list(values) == [value.name for value in model.graph.output]
    for value, expected in zip(values.values(), arrays(folder, "output"), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert value.shape == expected.shape


NETWORK = """g (float[2, 3] x, float[3, 4] w, float[4] b, float t) => (float y, float[3, 4] dw, float[4] db) {{
    h = MatMul (x, w) s = Add (h, b) a = Tanh (s) p = Mul (a, t) y = ReduceSum <keepdims = 0> (p) {gradient} }}"""
SHAPES = {"x": (2, 3), "w": (3, 4), "b": (4,), "t": ()}


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()}


def slopes(model, feeds, y, names):
    """Central differences of y in float64."""
    evaluator = Evaluator(model)
    result = {}
    for name in names:
        slope = np.zeros(feeds[name].shape)
        for place in np.ndindex(slope.shape):
            ends = []
            for sign in (1, -1):
                moved = {key: np.array(value, np.float64) for key, value in feeds.items()}
                moved[name][place] += sign * STEP
                ends.append(evaluator.from_any(moved, [y])[y])
            slope[place] = (ends[0] - ends[1]) / (2 * STEP)
        result[name] = slope
    return result


def test_gradients_of_a_network():
    feeds = drawn(SHAPES)
    model = parse(NETWORK.format(gradient=gradient("w, b, x, t", "dw, db", xs=["w", "b"], zs=["x", "t"], y="y")))
    before = model.SerializeToString(deterministic=True)
    result = bngrad.rewrite(model)
    assert model.SerializeToString(deterministic=True) == before
    forward = parse(NETWORK.format(gradient="dw = Identity (w) db = Identity (b)"))
    expected = slopes(forward, feeds, "y", ["w", "b"])
    values = run(result, feeds)
    np.testing.assert_allclose(values["dw"], expected["w"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values["db"], expected["b"], rtol=1e-4, atol=1e-5)
    assert sum(node.op_type == "Tanh" for node in result.graph.node) == 1  # y is computed once


def test_an_intermediate_value_and_an_omitted_output():
    feeds = drawn(SHAPES)
    text = NETWORK.replace("float[4] db", "float[2, 4] dh")
    node = gradient("b, h, t", ", dh", xs=["b", "h"], zs=["t"], y="y")
    model = parse(text.format(gradient=f"{node} dw = Neg (w)"))
    values = run(bngrad.rewrite(model), feeds)
    hidden = feeds["x"] @ feeds["w"] + feeds["b"]
    np.testing.assert_allclose(values["dh"], feeds["t"] / np.cosh(hidden) ** 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(values["dw"], -feeds["w"])


def test_other_values_of_another_shape():
    """The graph of y is evaluated anew, for a batch of another size."""
    text = """g (float[2, 3] x, float[5, 3] x2, float[3] w, float[3] w2)
        => (float y, float[3] dw, float[5, 3] dx) {{
        [product] p = Mul (x, w) q = Exp (p) y = ReduceMean <keepdims = 0> (q) {gradient} }}"""
    model = parse(text.format(gradient=gradient("w2, x2", "dw, dx", xs=["w", "x"], y="y")))
    feeds = drawn({"x": (2, 3), "x2": (5, 3), "w": (3,), "w2": (3,)})
    values = run(bngrad.rewrite(model), feeds)
    np.testing.assert_allclose(values["y"], np.exp(feeds["x"] * feeds["w"]).mean(), rtol=1e-5)
    exp = np.exp(feeds["x2"] * feeds["w2"]) / 15
    np.testing.assert_allclose(values["dw"], (exp * feeds["x2"]).sum(0), rtol=1e-4)
    np.testing.assert_allclose(values["dx"], exp * feeds["w2"], rtol=1e-4)


def test_what_y_does_not_depend_on_has_the_gradient_0():
    text = """g (float[2] x, float[3] w, float[N] u) => (float[2] dx, float[3] dw, float[N] du) {{
        r = Round (w) p = ReduceSum <keepdims = 0> (r) q = Exp (x) s = Mul (q, p) [mean] y = ReduceMean (s)
        {gradient} }}"""
    model = parse(text.format(gradient=gradient("x, w, u", "dx, dw, du", xs=["x", "w", "u"], y="y")))
    x, w, u = np.float32([1, 2]), np.float32([1, 2, 3]), np.full(4, np.inf, np.float32)
    values = run(bngrad.rewrite(model), {"x": x, "w": w, "u": u})
    np.testing.assert_allclose(values["dx"], 3 * np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(values["dw"], 0)
    np.testing.assert_array_equal(values["du"], np.zeros(4))


SECOND = """g (float[3] x, float[3] w) => (float y, float[3] w_grad, float[3] dx, float[3] ddw) {{
    [product] p = Mul (x, w) a = Tanh (p) y = ReduceSum <keepdims = 0> (a)
    {first} [square] s = Mul (w_grad, w_grad) n = ReduceSum <keepdims = 0> (s) {second} }}"""


@pytest.mark.parametrize("order", ["first", "last"])
def test_a_gradient_of_a_gradient(order):
    nodes = [
        gradient("w, x", "w_grad", xs=["w"], zs=["x"], y="y"),
        gradient("x, w", "dx, ddw", xs=["x", "w"], y="n"),
    ]
    # y of a Gradient may come after it: its name is no input.
    text = SECOND.format(first=nodes[0], second=nodes[1])
    model = parse(text)
    if order == "last":
        model.graph.node.insert(0, model.graph.node.pop())
    feeds = drawn({"x": (3,), "w": (3,)})
    values = run(bngrad.rewrite(model), feeds)
    x, w = (np.float64(feeds[name]) for name in "xw")
    derivative = 1 / np.cosh(x * w) ** 2
    second = -2 * np.tanh(x * w) * derivative
    np.testing.assert_allclose(values["w_grad"], derivative * x, rtol=1e-4)
    np.testing.assert_allclose(values["dx"], 2 * x * derivative * (derivative + x * w * second), rtol=1e-3)
    np.testing.assert_allclose(values["ddw"], 2 * x * derivative * x**2 * second, rtol=1e-3)


BATCH_NORM = """g (float[4, 2, 3] x, float[2] s, float[2] b, float[4, 2, 3] t, float[2] m, float[2] v)
    => (float y, float[2] ds, float[4, 2, 3] dx, float[2] nm, float[2] nv) {{
    [norm] n, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, m, v) a = Tanh (n) p = Mul (a, t)
    y = ReduceSum <keepdims = 0> (p) {gradient} }}"""


@pytest.mark.parametrize("mode", [1, 0])
def test_a_batch_norm_keeps_its_mode(mode):
    text = BATCH_NORM if mode else BATCH_NORM.replace("n, nm, nv = ", "n = ").replace("<training_mode = 1>", "")
    body = gradient("s, x, b, t, m, v", "ds, dx", xs=["s", "x"], zs=["b", "t", "m", "v"], y="y")
    copies = "" if mode else " nm = Identity (m) nv = Identity (v)"
    model = parse(text.format(gradient=body + copies))
    shapes = {"x": (4, 2, 3), "s": (2,), "b": (2,), "t": (4, 2, 3), "m": (2,)}
    feeds = {**drawn(shapes), "v": np.float32([0.5, 2])}
    result = bngrad.rewrite(model)
    types = [node.op_type for node in result.graph.node]
    assert types.count("BatchNormalizationTraining") == mode
    values = run(result, feeds)
    none = "ds = Identity (s) dx = Identity (x)"
    expected = slopes(parse(text.format(gradient=none + copies)), feeds, "y", ["s", "x"])
    for name in ("s", "x"):
        np.testing.assert_allclose(values[f"d{name}"], expected[name], rtol=1e-3, atol=1e-4)
    forward = Evaluator(parse(text.format(gradient=none + copies))).from_any(feeds, ["nm", "nv", "y"])
    for name, value in forward.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-5)


def test_random_numbers_are_drawn_once():
    text = """g (float[200] x) => (float[200] d, float[200] dx) <float r = {{0.5}}, bool t = {{1}}> {{
        [dropout] d = Dropout (x, r, t) y = ReduceSum <keepdims = 0> (d) {gradient} }}"""
    model = parse(text.format(gradient=gradient("x", "dx", xs=["x"], y="y")))
    values = run(bngrad.rewrite(model), {"x": np.ones(200, np.float32)})
    np.testing.assert_array_equal(values["d"], values["dx"])
    assert set(values["d"]) == {0, 2}


def test_values_in_branches_functions_and_initializers():
    text = """g (float[3] x, bool c) => (float[3] dw) <float[3] w = {{1, 2, 3}}> {{
        f = local.twice (x)
        [choice] h = If (c) <then_branch = t () => (float[3] p) {{ p = Mul (f, w) }},
            else_branch = e () => (float[3] q)
            {{ k = Constant <value = float[3] {{4, 5, 6}}> () q = Mul (k, w) }}>
        y = ReduceSum <keepdims = 0> (h) {gradient} }}
    <domain: "local", opset_import: ["" : 18]> twice (a) => (b) {{ b = Add (a, a) }}"""
    head = HEAD.replace('"" : 18', '"" : 18, "local" : 1')
    model = onnx.parser.parse_model(head + text.format(gradient=gradient("w", "dw", xs=["w"], y="y")))
    result, x = bngrad.rewrite(model), np.float32([1, 2, 3])
    np.testing.assert_array_equal(run(result, {"x": x, "c": np.array(True)})["dw"], 2 * x)
    np.testing.assert_array_equal(run(result, {"x": x, "c": np.array(False)})["dw"], [4, 5, 6])


def test_two_gradients_of_a_batch_norm():
    """The second differentiates what the first has made of the nodes before y."""
    shapes = {"x": (4, 2, 3), "s": (2,), "b": (2,), "t": (4, 2, 3), "m": (2,)}
    feeds = {**drawn(shapes), "v": np.float32([0.5, 2])}
    together = gradient("s, x", "ds, dx", xs=["s", "x"], y="y")
    apart = gradient("s", "ds", xs=["s"], y="y") + gradient("x", " dx", xs=["x"], y="y")
    values, others = (run(bngrad.rewrite(parse(BATCH_NORM.format(gradient=t))), feeds) for t in (together, apart))
    for name, value in values.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-5, atol=1e-6)


def test_running_statistics_have_the_gradient_0():
    text = BATCH_NORM.replace("float[2] ds, float[4, 2, 3] dx", "float[2] ds, float[2] dm")
    shapes = {"x": (4, 2, 3), "s": (2,), "b": (2,), "t": (4, 2, 3), "m": (2,)}
    feeds = {**drawn(shapes), "v": np.float32([0.5, 2])}
    both = parse(text.format(gradient=gradient("s, m", "ds, dm", xs=["s", "m"], y="y")))
    values = run(bngrad.rewrite(both), feeds)
    of_scale = parse(text.format(gradient=gradient("s", "ds", xs=["s"], y="y") + " dm = Neg (m)"))
    np.testing.assert_array_equal(values["ds"], run(bngrad.rewrite(of_scale), feeds)["ds"])
    np.testing.assert_array_equal(values["dm"], [0, 0])
    shared = text.replace(
        "b, m, v) a = Tanh (n)",
        "b, m, v) r = Mul (n, n) k, km, kv = BatchNormalization (r, s, b, m, v) a = Tanh (k)",
    )
    message = "it needs an input '.*', since other nodes read the running statistic"
    with pytest.raises(bngrad.UnsupportedNodeError, match=message):
        bngrad.rewrite(parse(shared.format(gradient=gradient("s", "ds", xs=["s"], y="y") + " dm = Neg (m)")))


def test_a_second_derivative_through_a_batch_norm():
    """In training mode y depends on the bias, but the gradient with respect to the scale may not."""
    text = BATCH_NORM.replace("float y, float[2] ds, float[4, 2, 3] dx", "float e, float[2] dds, float[2] db")
    first = gradient("s, b, x, t", "ds", xs=["s"], zs=["b", "x", "t"], y="y")
    body = f"{first} [square] r = Mul (ds, ds) e = ReduceSum <keepdims = 0> (r)"
    second = gradient("s, b, x, t", "dds, db", xs=["s", "b"], zs=["x", "t"], y="e")
    shapes = {"x": (4, 2, 3), "s": (2,), "b": (2,), "t": (4, 2, 3), "m": (2,)}
    feeds = {**drawn(shapes), "v": np.float32([0.5, 2])}
    model = bngrad.rewrite(parse(text.format(gradient=f"{body} dds = Neg (s) db = Neg (b)")))
    expected = slopes(model, feeds, "e", ["s", "b"])
    values = run(bngrad.rewrite(parse(text.format(gradient=f"{body} {second}"))), feeds)
    np.testing.assert_allclose(values["dds"], expected["s"], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(values["db"], expected["b"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", ["stock", "training"])
def test_a_step_of_gradient_descent(target):
    """The gradient is read by further nodes, as a training graph of ONNX's preview ops has it."""
    text = NETWORK.replace("float[3, 4] dw, float[4] db", "float[3, 4] new")
    update = " lr = Constant <value_float = 0.5> () u = Mul (lr, dw) new = Sub (w, u)"
    model = parse(text.format(gradient=gradient("w, x, b, t", "dw", xs=["w"], zs=["x", "b", "t"], y="y") + update))
    feeds = drawn(SHAPES)
    rewritten = rewrite(ir.from_proto(model), target=target)
    assert rewritten.lowered == {"Gradient": 1}
    values = run(ir.to_proto(rewritten.model), feeds)
    hidden = feeds["x"] @ feeds["w"] + feeds["b"]
    expected = feeds["w"] - 0.5 * feeds["x"].T @ (feeds["t"] / np.cosh(hidden) ** 2)
    np.testing.assert_allclose(values["new"], expected, rtol=1e-4, atol=1e-5)


REFUSED = {
    # The inputs, outputs, xs, y and zs of the node, and the message.
    "no names": ("w", "dw", [], "y", [], "its attributes xs and y name no values"),
    "inputs": ("w", "dw", ["w"], "y", ["x"], "it has 1 inputs and 1 outputs; expected an input for each of the 2"),
    "outputs": ("w", "dw, db", ["w"], "y", [], "it has 1 inputs and 2 outputs; .* at most an output for each in"),
    "unknown": ("w", "dw", ["ww"], "y", [], "'ww' is not a value of this model; did you mean 'w'?"),
    "unknown y": ("w", "dw", ["w"], "yy", [], "'yy' is not a value of this model; did you mean 'y'?"),
    "twice": ("w, w", "dw", ["w"], "y", ["w"], "name 'w' twice; expected each value once"),
    "y itself": ("y", "dw", ["y"], "y", [], "name 'y' twice"),
    "no scalar": ("w", "dw", ["w"], "a", [], r"its y, 'a' \(float\[2, 4\]\), is no float of one element"),
    "dependent": ("w, h", "dw", ["w"], "y", ["h"], "name 'h', which is computed from 'w'; expected only one"),
    "beside y": ("l", "dl", ["l"], "n", [], "name 'l', a result of a node that computes y; expected its in"),
    "type": ("i", "dw", ["w"], "y", [], r"its input for 'w' \(float\[3, 4\]\) is int64\[3, 4\]; expected the"),
    "no float": ("j", "dw", ["j"], "y", [], r"'j' \(int64\[2, 4\]\) has no gradient; expected a float"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    inputs, outputs, xs, y, zs, message = REFUSED[case]
    node = gradient(inputs, outputs, xs=xs, zs=zs, y=y)
    more = """i = Cast <to = 7> (w) j = Cast <to = 7> (a) l, r = Split <num_outputs = 2, axis = 1> (a)
        q = Mul (l, r) n = ReduceSum <keepdims = 0> (q)"""
    more += "".join(f" {name} = Neg ({name[1]})" for name in ("dw", "db") if name not in outputs)
    message = rf"Gradient node 'grad' .*cannot be rewritten: .*{message}"
    with pytest.raises(bngrad.UnsupportedNodeError, match=message):
        bngrad.rewrite(parse(NETWORK.format(gradient=f"{more} [grad] {node}")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"""g (float x, bool c) => (float z) {{ [f] y = Exp (x) z = If (c) <then_branch = t () => (float d) {{
            {gradient("x", "d", xs=["x"], y="y")} }}, else_branch = e () => (float q) {{ q = Neg (x) }}> }}""",
            "it is in a function or in the body of another node",
        ),
        (
            f"g (float x) => (float d) {{ {gradient('x', 'd', xs=['x'], y='y')} [f] y = Mul (x, d) }}",
            "its y depends on its own results, or on a Gradient that depends on them",
        ),
        (
            f"""g (int64 n, float x, float r) => (float d) {{
            a = MelWeightMatrix (n, n, n, x, r) s = ReduceSum (a)
            c = Constant <value_ints = [1]> () y = Reshape (s, c)
            {gradient("x, n, r", "d", xs=["x"], zs=["n", "r"], y="y")} }}""",
            "MelWeightMatrix node 'a' .* cannot be differentiated: it has no gradient rule",
        ),
    ],
    ids=["in a body", "circle", "no rule"],
)
def test_nodes_that_are_refused(text, message):
    with pytest.raises(bngrad.UnsupportedNodeError, match=message):
        bngrad.rewrite(parse(text))
