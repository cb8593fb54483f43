"""ORT's batch-norm nodes -> bngrad's: every rank, every place, every refusal."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.ort import ImportOrtPass
from bngrad.passes.pipeline import rewrite
from pass_models import (
    AXES_OF_RANK,
    attributes_of,
    axes_of,
    close,
    content,
    dims,
    feeds_for,
    find,
    header,
    internal_and_grad,
    model,
    ops,
    proto,
    run,
)


def imported(text, opset=17, *domains):
    result = model(text, opset, *domains)
    assert ImportOrtPass()(result).modified
    after = content(result)
    assert not ImportOrtPass()(result).modified
    assert content(result) == after
    return result


# ---- what is matched ----


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("rank", AXES_OF_RANK)
def test_a_known_rank_gives_constant_axes(rank, dtype):
    result = imported(internal_and_grad(rank, dtype))
    assert ops(result) == ["Constant", "bngrad.BatchNormalizationTraining", "bngrad.BatchNormalizationGrad"]
    for op in ("BatchNormalizationTraining", "BatchNormalizationGrad"):
        assert axes_of(find(result, op)) == AXES_OF_RANK[rank]


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_the_same_numbers_as_ort(rank, oracle, rng):
    original = proto(internal_and_grad(rank))
    rewritten = ir.to_proto(rewrite(ir.from_proto(original)).model)
    feeds = feeds_for(original, rng, N=3)
    want = oracle.run(original, feeds)
    for implementation in ("function", "native"):
        close(run(rewritten, feeds, implementation), want)
    close(oracle.run(rewritten, feeds), want)


def test_inputs_and_attributes():
    result = imported(internal_and_grad(4))
    forward, backward = (find(result, f"BatchNormalization{op}") for op in ("Training", "Grad"))
    assert [v.name for v in forward.inputs[:5]] == ["x", "scale", "bias", "mean", "var"]
    assert attributes_of(forward) == pytest.approx({"epsilon": 1e-3, "momentum": 0.8, "unbiased_running_var": 0})
    assert [v.name for v in backward.inputs[:5]] == ["dy", "x", "scale", "saved_mean", "saved_inv_std"]
    assert attributes_of(backward) == {"training_mode": 1}


def test_attributes_that_are_left_out_get_the_defaults_of_ort(oracle, rng):
    text = internal_and_grad(4).replace("<epsilon = 0.001, momentum = 0.8, training_mode = 1>", "")
    forward = find(imported(text), "BatchNormalizationTraining")
    assert attributes_of(forward) == pytest.approx({"epsilon": 1e-5, "momentum": 0.9, "unbiased_running_var": 0})
    original = proto(text)
    feeds = feeds_for(original, rng)
    close(run(ir.to_proto(rewrite(ir.from_proto(original)).model), feeds), oracle.run(original, feeds))


def test_the_epsilon_of_the_gradient_means_nothing(oracle, rng):
    """Input 4 is 1 / sqrt(variance + epsilon) already, whatever ORT's schema calls it."""
    original = proto(internal_and_grad(4).replace("<epsilon = 0.001>", "<epsilon = 0.5>"))
    feeds = feeds_for(original, rng)
    close(run(ir.to_proto(rewrite(ir.from_proto(original)).model), feeds), oracle.run(original, feeds))


def test_nodes_of_one_rank_share_a_constant_and_each_rank_has_its_own():
    result = imported(f"""g (float[{dims(4)}] a, float[{dims(3)}] b, float[3] c) => (float[{dims(4)}] y) {{
        d, e, f, h, i = com.microsoft.BatchNormInternal(a, c, c, c, c)
        y, k, l, m, n = com.microsoft.BatchNormInternal(d, c, c, c, c)
        p, q, r, s, t = com.microsoft.BatchNormInternal(b, c, c, c, c)
    }}""")
    assert ops(result).count("Constant") == 2
    assert [axes_of(n) for n in result.graph if n.domain == "bngrad"] == [[0, 2, 3], [0, 2, 3], [0, 2]]


RANK_FROM = {
    "x": (
        f"float[{dims(4)}] x, float[K] flat, int64[R] to",
        "dx, a, b = com.microsoft.BatchNormalizationGrad(dy, x, c, c, c)",
        "dy = Reshape(flat, to)",
    ),
    "dy": (
        f"float[{dims(4)}] dy, float[K] flat, int64[R] to",
        "dx, a, b = com.microsoft.BatchNormalizationGrad(dy, x, c, c, c)",
        "x = Reshape(flat, to)",
    ),
    "dx": (
        "float[K] flat, int64[R] to",
        "dx, a, b = com.microsoft.BatchNormalizationGrad(x, x, c, c, c)",
        "x = Reshape(flat, to)",
    ),
}


@pytest.mark.parametrize("source", RANK_FROM)
def test_the_rank_of_any_data_will_do(source):
    inputs, node, reshape = RANK_FROM[source]
    result = imported(f"g ({inputs}, float[3] c) => (float[{dims(4)}] dx) {{ {reshape} {node} }}")
    assert ops(result).count("Reshape") == 1
    assert axes_of(find(result, "BatchNormalizationGrad")) == [0, 2, 3]


UNKNOWN_RANK = """g (float[K] flat_x, float[K] flat_dy, int64[R] to, float[3] scale, float[3] bias,
                      float[3] mean, float[3] var)
    => (float[K] y, float[3] new_mean, float[3] new_var, float[K] dx, float[3] dscale, float[3] dbias) {
    all = Constant<value = int64[1] {-1}>()
    X = Reshape(flat_x, to)
    dY = Reshape(flat_dy, to)
    [forward] Y, new_mean, new_var, saved_mean, saved_inv_std = com.microsoft.BatchNormInternal
        <epsilon = 0.001, momentum = 0.8>(X, scale, bias, mean, var)
    [backward] dX, dscale, dbias = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>
        (dY, X, scale, saved_mean, saved_inv_std)
    y = Reshape(Y, all)
    dx = Reshape(dX, all)
}"""


def test_an_unknown_rank_is_collapsed():
    result = imported(UNKNOWN_RANK)
    assert ops(result).count("Reshape") == 4 + 3 + 2
    for op in ("BatchNormalizationTraining", "BatchNormalizationGrad"):
        assert axes_of(find(result, op)) == [0, 2]


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 2, 4), (2, 3, 2, 2, 3), (1, 3, 1, 1)], ids=str)
def test_an_unknown_rank_gives_the_same_numbers_as_ort(shape, oracle, rng):
    original = proto(UNKNOWN_RANK)
    rewritten = ir.to_proto(rewrite(ir.from_proto(original)).model)
    feeds = feeds_for(original, rng, K=int(np.prod(shape)))
    feeds["to"] = np.array(shape, np.int64)
    close(run(rewritten, feeds), oracle.run(original, feeds))


FUNCTION = (
    header(17, "com.microsoft", "f")
    + f"""g (float[{dims(4)}] x, float[3] scale, float[3] bias, float[3] mean, float[3] var)
    => (float[{dims(4)}] y) {{ y = f.Block(x, scale, bias, mean, var) }}
<domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
Block (x, scale, bias, mean, var) => (y) {{
    y, a, b, d, e = com.microsoft.BatchNormInternal<epsilon: float = 0.001, training_mode: int = 1>
        (x, scale, bias, mean, var)
}}"""
)


def test_a_node_in_a_function(oracle, rng):
    """The rank of its input is unknown, and its output is the function's own."""
    result = imported(FUNCTION)
    (function,) = result.functions.values()
    assert [n.op_type for n in function if n.domain == "bngrad"] == ["BatchNormalizationTraining"]
    assert [v.name for v in function.outputs] == ["y"]
    original = proto(FUNCTION)
    feeds = feeds_for(original, rng)
    rewritten = ir.to_proto(rewrite(ir.from_proto(original)).model)
    close(run(rewritten, feeds), oracle.run(original, feeds))


IN_A_BRANCH = f"""g (bool c, float[{dims(4)}] x, float[3] p, float[3] m, float[3] n,
    float[3] var, float[3] var2) => (float[{dims(4)}] y, float[N,3] z) {{
    [flat] small = ReduceMean<axes = [2, 3], keepdims = 0>(x)
    [outer] z, a, b, d, e = com.microsoft.BatchNormInternal(small, p, p, m, var)
    y = If(c) <
        then_branch = t () => (float[{dims(4)}] u) {{
            [inner] u, f, h, i, j = com.microsoft.BatchNormInternal(x, p, p, n, var2) }},
        else_branch = e () => (float[{dims(4)}] v) {{ v = Identity(x) }}>
}}"""


def test_a_node_in_a_subgraph(oracle, rng):
    result = imported(IN_A_BRANCH)
    assert ops(result).count("bngrad.BatchNormalizationTraining") == 2
    constants = [n for n in ir.traversal.RecursiveGraphIterator(result.graph) if n.op_type == "Constant"]
    assert {n.graph.name for n in constants} == {"g", "t"}
    original = proto(IN_A_BRANCH)
    feeds = feeds_for(original, rng)
    rewritten = ir.to_proto(rewrite(ir.from_proto(original)).model)
    for condition in (True, False):
        feeds["c"] = np.array(condition)
        want = oracle.run(original, feeds)
        got = run(rewritten, feeds)
        close({name: got[name] for name in want}, want)


# ---- what is kept ----


def test_names_texts_and_imports_survive():
    text = internal_and_grad(4)
    before = proto(text)
    for node in before.graph.node:
        node.doc_string = f"about {node.name}"
        entry = node.metadata_props.add()
        entry.key, entry.value = "from", node.name
    result = ir.from_proto(before)
    ImportOrtPass()(result)
    after = ir.to_proto(result)
    kept = [node for node in after.graph.node if node.domain == "bngrad"]
    for old, new in zip(before.graph.node, kept, strict=True):
        assert (new.name, new.doc_string, new.metadata_props) == (old.name, old.doc_string, old.metadata_props)
        assert list(new.output) == list(old.output)
    assert after.graph.input == before.graph.input
    assert after.graph.output == before.graph.output
    assert [(o.domain, o.version) for o in after.opset_import][:2] == [("", 17), ("com.microsoft", 1)]


def test_outputs_that_are_left_out_get_names(rng):
    """An op of onnxruntime-extensions has to have them all; ORT's own gradient too, but not everyone's."""
    full = proto(internal_and_grad(4))
    original = proto(internal_and_grad(4))
    original.graph.node[1].output[1:] = ["", ""]
    del original.graph.output[-2:]
    result = ir.to_proto(rewrite(ir.from_proto(original)).model)
    backward = result.graph.node[-1]
    assert len(set(backward.output)) == 3
    assert all(backward.output)
    feeds = feeds_for(original, rng)
    want = run(ir.to_proto(rewrite(ir.from_proto(full)).model), feeds)
    del want["dscale"], want["dbias"]
    for implementation in ("function", "python", "native"):
        close(run(result, feeds, implementation), want)


TAKEN = {
    "value": f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
        bngrad_axes_0_2_3 = Neg(p)
        y, a, b, d, e = com.microsoft.BatchNormInternal(x, bngrad_axes_0_2_3, p, p, p) }}""",
    "graph-input": f"""g (float[{dims(4)}] x, float[3] bngrad_axes_0_2_3) => (float[{dims(4)}] y) {{
        y, a, b, d, e = com.microsoft.BatchNormInternal
            (x, bngrad_axes_0_2_3, bngrad_axes_0_2_3, bngrad_axes_0_2_3, bngrad_axes_0_2_3) }}""",
    "initializer": f"""g (float[{dims(4)}] x) => (float[{dims(4)}] y) <float[3] bngrad_axes_0_2_3 = {{1, 1, 1}}> {{
        y, a, b, d, e = com.microsoft.BatchNormInternal
            (x, bngrad_axes_0_2_3, bngrad_axes_0_2_3, bngrad_axes_0_2_3, bngrad_axes_0_2_3) }}""",
    "subgraph-initializer": f"""g (bool c, float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y, float[2] z) {{
        y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p)
        z = If(c) <
            then_branch = t () => (float[2] bngrad_axes_0_2_3) <float[2] bngrad_axes_0_2_3 = {{1, 2}}> {{ }},
            else_branch = e () => (float[2] w) <float[2] w = {{1, 2}}> {{ }}> }}""",
    "unused-loop-input": f"""g (int64 n, bool c, float[{dims(4)}] x, float[3] p)
        => (float[{dims(4)}] y, float[3] z) {{
        y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p)
        z = Loop(n, c, p) <body = t (int64 bngrad_axes_0_2_3, bool go, float[3] v) => (bool on, float[3] w) {{
            on = Identity(go)
            w = Neg(v) }}> }}""",
    "unused-function-input": header(17, "com.microsoft", "f")
    + f"""
        g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{ y = f.Block(x, p, p) }}
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        Block (x, p, bngrad_axes_0_2) => (y) {{
            y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p) }}""",
}


@pytest.mark.parametrize("case", TAKEN)
def test_new_names_are_new(case):
    result = imported(TAKEN[case])
    names = [node.outputs[0].name for node in ir.traversal.RecursiveGraphIterator(result.graph)]
    names += [node.outputs[0].name for function in result.functions.values() for node in function]
    (new_name,) = (name for name in names if name.startswith("bngrad_axes") and name.endswith("_1"))
    assert new_name[:-2] in TAKEN[case]
    onnx.checker.check_model(ir.to_proto(rewrite(ir.from_proto(proto(TAKEN[case]))).model), full_check=True)


UNTOUCHED = {
    "nothing": "g (float[2] x) => (float[2] y) { y = Neg(x) }",
    "frozen": f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
        y = BatchNormalization<training_mode = 0>(x, p, p, p, p) }}""",
    "training-onnx": f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
        y, a, b = BatchNormalization<training_mode = 1>(x, p, p, p, p) }}""",
    "another-domain": header(17, "mine") + """g (float[2] x) => (float[2] y) { y = mine.BatchNormInternal(x) }""",
    "another-op-of-ort": "g (float[2] x) => (float[2] y) { y = com.microsoft.ReluGrad(x, x) }",
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_what_is_not_ours_is_left_alone(case):
    result = model(UNTOUCHED[case])
    before = content(result)
    assert not ImportOrtPass()(result).modified
    assert content(result) == before


# ---- what is refused ----


def with_types(text, dtype):
    return text.replace("float[", f"{dtype}[")


KNOWN = "expected one of float, double, float16, bfloat16"
REFUSED = {
    "integers": (
        with_types(internal_and_grad(4), "int32"),
        (
            f"com.microsoft.BatchNormInternal node 'forward' (outputs y, new_mean, new_var, "
            f"saved_mean, saved_inv_std) "
            f"cannot be rewritten: its input 'x' is int32; {KNOWN} (and 1 more)"
        ),
    ),
    "one-half-parameter": (
        f"""g (float[{dims(4)}] x, float[3] p, float16[3] h) => (float[{dims(4)}] y) {{
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, h, p) }}""",
        "node 'bn' (outputs y, a, b, d, e) cannot be rewritten: its input 'h' is float16; expected float",
    ),
    "x-and-dy-of-different-types": (
        internal_and_grad(4).replace(f"float[{dims(4)}] dy", f"double[{dims(4)}] dy"),
        "its input 'x' is float; expected double, the type of the data before it",
    ),
    "rank-1": (
        """g (float[3] x, float[3] p) => (float[3] y) {
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p) }""",
        "its input 'p' has shape [3]; expected [1]",
    ),
    "rank-9": (
        f"""g (float[{dims(9)}] x, float[3] p) => (float[{dims(9)}] y) {{
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p) }}""",
        "its X has rank 9; expected 1 to 8 ([N, C, ...])",
    ),
    "rank-9-gradient": (
        f"""g (float[{dims(9)}] x, float[3] p) => (float[{dims(9)}] y) {{
            [bn] y, a, b = com.microsoft.BatchNormalizationGrad(x, x, p, p, p) }}""",
        "com.microsoft.BatchNormalizationGrad node 'bn' (outputs y, a, b) cannot be rewritten: its X has rank 9",
    ),
    "four-inputs": (
        f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p) }}""",
        "it has 4 inputs; expected 5, all present",
    ),
    "six-inputs": (
        f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p, p) }}""",
        "it has 6 inputs; expected 5, all present",
    ),
    "six-inputs-of-which-five-are-present": (
        f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, , p, p, p) }}""",
        "it has 5 of 6 inputs; expected 5, all present",
    ),
    "an-input-left-out": (
        f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{
            [bn] y, a, b = com.microsoft.BatchNormalizationGrad(x, x, p, , p) }}""",
        "it has 4 of 5 inputs; expected 5, all present",
    ),
    "frozen": (
        internal_and_grad(4).replace("training_mode = 1", "training_mode = 0"),
        "it has training_mode 0; expected 1",
    ),
    "an-attribute-of-a-function": (
        header(17, "com.microsoft", "f")
        + f"""g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{ y = f.Block<mode = 0>(x, p) }}
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        Block <mode> (x, p) => (y) {{
            [bn] y, a, b, d, e = com.microsoft.BatchNormInternal<training_mode: int = @mode>(x, p, p, p, p) }}""",
        "it has training_mode @mode; expected 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_node_and_the_reason_and_changes_nothing(case):
    text, reason = REFUSED[case]
    result = model(text)
    before = content(result)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportOrtPass()(result)
    assert reason in str(error.value)
    assert content(result) == before
    original = ir.from_proto(proto(text))
    untouched = content(original)
    with pytest.raises(UnsupportedNodeError):
        rewrite(original)
    assert content(original) == untouched


def test_one_refusal_leaves_the_nodes_before_it_as_they_were():
    result = model(f"""g (float[{dims(4)}] x, float[3] p, float[3] q) => (float[{dims(4)}] y) {{
        y, a, b, d, e = com.microsoft.BatchNormInternal(x, p, p, p, p)
        [bad] z, f, h, i, j = com.microsoft.BatchNormInternal(q, p, p, p, p) }}""")
    before = content(result)
    with pytest.raises(UnsupportedNodeError):
        ImportOrtPass()(result)
    assert content(result) == before
