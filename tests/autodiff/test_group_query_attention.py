"""GroupQueryAttention: the ops that it is split into, beside ONNX Runtime's kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import UnsupportedNodeError

HEADS, KV_HEADS = 4, 2
INPUTS = {
    "q": "float[N, S, 64]",
    "k": "float[N, S, 32]",
    "v": "float[N, S, 32]",
    "pk": "float[N, 2, P, 16]",
    "pv": "float[N, 2, P, 16]",
    "n": "int32[N]",
    "t": "int32",
    "c": "float[20, 8]",
    "s": "float[20, 8]",
}
ALONE, PAST, TURNED, ALL = (
    "q, k, v, , , n, t",
    "q, k, v, pk, pv, n, t",
    "q, k, v, , , n, t, c, s",
    ", ".join(INPUTS),
)


def model(inputs=ALONE, attributes="", *, outputs="y, ok, ov", types=INPUTS, heads=HEADS, loss="y"):
    names = [name for name in inputs.replace(" ", "").split(",") if name]
    text = f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        g ({", ".join(f"{types[name]} {name}" for name in names)}, float[N, S, 64] w) => (float loss) {{
        {outputs} = com.microsoft.GroupQueryAttention <num_heads = {heads}, kv_num_heads = {KV_HEADS} {attributes}>
            ({inputs})
        f = Cast <to = 1> ({loss}) p = Mul (f, w) loss = ReduceSum <keepdims = 0> (p) }}"""
    return onnx.parser.parse_model(text)


def feeds(inputs, batch, length, past=0, totals=None, maximum=None):
    rng = np.random.default_rng(7)
    sizes = {"N": batch, "S": length, "P": past}
    arrays = {
        name: rng.normal(size=[sizes.get(size, 0) or int(size) for size in type_[6:-1].split(", ")]).astype("f")
        for name, type_ in INPUTS.items()
        if name in inputs.replace(" ", "").split(",") and type_.startswith("float") and name not in ("pk", "pv")
    }
    if "pk" in inputs:
        arrays |= {name: rng.normal(size=(batch, KV_HEADS, past, 16)).astype("f") for name in ("pk", "pv")}
    maximum = maximum or past + length
    arrays["n"] = np.asarray(totals or [maximum] * batch, np.int32) - 1
    arrays["t"] = np.array(maximum, np.int32)
    arrays["w"] = rng.normal(size=(batch, length, 64)).astype("f")
    if totals and maximum == length:
        for row, total in enumerate(totals):
            arrays["w"][row, total:] = 0  # the kernel's output of padding may be anything
    return arrays


FORMS = {
    "alone": (ALONE, "", {"batch": 2, "length": 5}),
    "softcap, scale": (ALONE, ", softcap = 2.0, scale = 0.3", {"batch": 1, "length": 3}),
    "rotated": (TURNED, ", do_rotary = 1", {"batch": 2, "length": 5}),
    "padding, window": (
        TURNED,
        ", do_rotary = 1, rotary_interleaved = 1, local_window_size = 2",
        {"batch": 2, "length": 5, "totals": [3, 5]},
    ),
    "past keys": (ALL, ", do_rotary = 1, local_window_size = 3", {"batch": 1, "length": 3, "past": 4}),
    "no past keys yet": (PAST, "", {"batch": 2, "length": 3}),
    "a cache with places": (
        ALL,
        ", do_rotary = 1",
        {"batch": 2, "length": 1, "past": 8, "totals": [4, 7], "maximum": 7},
    ),
}
"""The inputs, attributes and sizes."""
LONG = ("alone", "rotated", "no past keys yet")
"""Forms whose parts others have, too."""


def run(graph, arrays, names):
    session = bngrad.session(graph)
    inputs = {value.name for value in session.get_inputs()}
    return session.run(names, {name: array for name, array in arrays.items() if name in inputs})


@pytest.mark.parametrize("form", [pytest.param(form, marks=[pytest.mark.long] * (form in LONG)) for form in FORMS])
def test_the_loss_and_its_slope_are_those_of_the_kernel(form):
    inputs, attributes, sizes = FORMS[form]
    forward, arrays = model(inputs, attributes), feeds(inputs, **sizes)
    wrt = [name for name in ("q", "k", "v", "pk", "pv") if name in inputs.split(", ") and arrays[name].size]
    graph = bngrad.differentiate(forward, wrt=wrt)
    assert "GroupQueryAttention" not in {node.op_type for node in graph.graph.node}
    loss, *gradients = run(graph, arrays, ["loss", *(f"{name}_grad" for name in wrt)])
    by_kernel = bngrad.session(forward)

    def of_kernel(arrays):
        return by_kernel.run(["loss"], arrays)[0].item()

    np.testing.assert_allclose(loss, of_kernel(arrays), rtol=1e-5, atol=1e-5)
    rng, step = np.random.default_rng(1), 1e-2
    for name, gradient in zip(wrt, gradients, strict=True):
        assert gradient.shape == arrays[name].shape
        direction = rng.normal(size=gradient.shape).astype("f")
        ends = [of_kernel({**arrays, name: arrays[name] + sign * step * direction}) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        bound = 5e-3 * np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs(slope - (gradient * direction).sum()) < bound, name


def test_packed_heads():
    """Queries, keys and values side by side have the gradients of those apart."""
    arrays = feeds(TURNED, 2, 4)
    wrt = ["q", "k", "v"]
    apart = run(
        bngrad.differentiate(model(TURNED, ", do_rotary = 1"), wrt=wrt), arrays, [f"{name}_grad" for name in wrt]
    )
    packed = model("q, , , , , n, t, c, s", ", do_rotary = 1", types=INPUTS | {"q": "float[N, S, 128]"})
    arrays["q"] = np.concatenate([arrays[name] for name in wrt], axis=2)
    (together,) = run(bngrad.differentiate(packed, wrt=["q"]), arrays, ["q_grad"])
    np.testing.assert_allclose(together, np.concatenate(apart, axis=2), rtol=1e-4, atol=1e-5)


def test_a_part_of_each_head_is_rotated():
    types = INPUTS | {"c": "float[20, 4]", "s": "float[20, 4]"}
    arrays = feeds(TURNED, 1, 3) | {name: np.eye(20, 4, dtype="f") for name in "cs"}
    forward = model(TURNED, ", do_rotary = 1", types=types)
    (gradient,) = run(bngrad.differentiate(forward, wrt=["q"]), arrays, ["q_grad"])
    assert np.isfinite(gradient).all()
    assert gradient.any()


def test_float16():
    types = {name: type_.replace("float", "float16") for name, type_ in INPUTS.items()}
    arrays = feeds(TURNED, 2, 4)
    (wide,) = run(bngrad.differentiate(model(TURNED, ", do_rotary = 1"), wrt=["k"]), arrays, ["k_grad"])
    halves = {
        name: array.astype(np.float16) if name in "qkvcs" and array.dtype == np.float32 else array
        for name, array in arrays.items()
    }
    graph = bngrad.differentiate(model(TURNED, ", do_rotary = 1", types=types), wrt=["k"])
    (narrow,) = run(graph, halves, ["k_grad"])
    assert narrow.dtype == np.float16
    np.testing.assert_allclose(narrow, wide, atol=2e-2 * np.abs(wide).max())


def test_the_present_keys_stay():
    forward = model(PAST)
    forward.graph.output.append(
        onnx.helper.make_tensor_value_info("ok", onnx.TensorProto.FLOAT, ["N", 2, "T", 16])
    )
    arrays = feeds(PAST, 1, 2, 3)
    graph = bngrad.differentiate(forward, wrt=["q"])
    assert [node.op_type for node in graph.graph.node].count("GroupQueryAttention") == 1
    gradient, present = run(graph, arrays, ["q_grad", "ok"])
    assert gradient.any()
    np.testing.assert_array_equal(present[:, :, :3], arrays["pk"])


def test_cosines_and_sines_are_no_weights():
    forward = model(TURNED, ", do_rotary = 1")
    del forward.graph.input[5:7]
    for name in "cs":
        forward.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((20, 8), "f"), name))
    forward.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 1, 64), "f"), "u"))
    forward.graph.node[-1].input[0] = "p2"
    forward.graph.node.insert(len(forward.graph.node) - 1, onnx.helper.make_node("Mul", ["p", "u"], ["p2"]))
    graph = bngrad.differentiate(forward)
    assert list(bngrad.read_training_graph(graph).gradients) == ["u"]
    assert "c_grad" in {value.name for value in bngrad.differentiate(forward, wrt=["c"]).graph.output}


REFUSED = {
    "smooth_softmax = 1": (
        model(ALONE, ", smooth_softmax = 1"),
        "it has smooth_softmax = 1; expected one of 0, -1",
    ),
    "causal = 0": (model(ALONE, ", causal = 0"), "it has causal = 0; expected 1"),
    "a later attribute": (model(ALONE, ", later = 1"), "it has the attribute 'later'; expected only causal"),
    "a bias": (
        model("q, k, v, , , n, t, , , , w2", types=INPUTS | {"w2": "float[N, 4, S, S]"}),
        "it has input 10, 'w2'; expected at most 9 inputs",
    ),
    "past keys alone": (model("q, k, v, pk, , n, t"), "it has only past keys or only past values"),
    "unknown heads": (model(types=INPUTS | {"q": "float[N, S, D]"}), "unknown type or last dimension"),
    "unknown cosines": (
        model(TURNED, ", do_rotary = 1", types=INPUTS | {"c": "float[M, 8]"}),
        "its cosines or sines have no known shape",
    ),
    "an empty window": (model(ALONE, ", local_window_size = 0"), "it has local_window_size = 0"),
    "its present keys": (model(PAST, loss="ok"), "it has no gradient rule$"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    forward, message = REFUSED[why]
    with pytest.raises(
        UnsupportedNodeError,
        match=f"^com.microsoft.GroupQueryAttention node .* cannot be differentiated: .*{message}",
    ):
        bngrad.differentiate(forward, wrt=["k"])
