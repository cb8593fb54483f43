"""The buckets in which the gradients of a graph are summed over the ranks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.errors import ModelError
from bngrad.passes.distribute.collectives import is_collective
from bngrad.passes.distribute.reduce_gradients import BUCKET_BYTES, ReduceGradientsPass
from bngrad.passes.embed_functions import EmbedFunctionsPass
from emulated_ranks import Ranks
from pass_models import header, lines, model

MEGABYTE = 1 << 18
"""Floats in a megabyte."""


def graph(types, loss="float"):
    """A graph that computes a gradient of each type, in order, and the loss first."""
    inputs = ", ".join(f"{kind} x{i}" for i, kind in enumerate(types))
    outputs = ", ".join(f"{kind} g{i}" for i, kind in reversed(list(enumerate(types))))
    nodes = " ".join(f"[n{i}] g{i} = Neg (x{i})" for i in range(len(types)))
    text = f"g ({inputs}, {loss}[1] t) => ({loss}[1] loss, {outputs}) {{ [l] loss = Neg (t) {nodes} }}"
    return model(header(18, "bngrad") + text)


def reduced(types, loss="float", **options):
    ir_model = graph(types, loss)
    names = [f"g{i}" for i in range(len(types))]
    assert ReduceGradientsPass(names, "loss", **options)(ir_model).modified
    return ir_model


def buckets(ir_model):
    """The gradients that each AllReduce but that of the loss takes, by key, in the order of the nodes."""
    result = {}
    for node in ir_model.graph:
        if is_collective(node):
            makers, waiting = set(), [node]
            while waiting:
                nodes = waiting.pop().predecessors()
                makers |= {maker.name for maker in nodes}
                waiting += nodes
            key = node.attributes["key"].as_string()
            result[key] = sorted(int(name[1:]) for name in makers if name[1:].isdigit() and name[0] == "n")
    return result


CASES = {
    "many small ones": (["float[10]"] * 7, [[0, 1, 2, 3, 4, 5, 6]]),
    "one": (["float[3,4]"], [[0]]),
    "up to 4 MB": ([f"float[{MEGABYTE}]"] * 9, [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
    "one that is larger": (
        ["float[5]", f"float[{5 * MEGABYTE}]", "float[6]", f"float[2,{2 * MEGABYTE}]", "float[7]"],
        [[1], [3], [0, 2, 4]],
    ),
    "two types": (["float[5]", "double[6]", "float[7]", "double[8]"], [[0, 2], [1, 3]]),
    "16 bits with float": (["float16[5]", "float[6]", "bfloat16[7]"], [[0, 1, 2]]),
    "scalars": (["float", "float[1]", "float[1,1]"], [[0, 1, 2]]),
    "no elements": (["float[3]", "float[0]", "float[4]", "float[2,0]"], [[0, 2]]),
    "sizes that are not known": (["float[3]", "float[N]", "float[4]"], [[1], [0, 2]]),
}


@pytest.mark.parametrize("case", CASES)
def test_buckets(case):
    types, want = CASES[case]
    ir_model = reduced(types)
    contents = buckets(ir_model)
    assert contents.pop("loss") == []
    assert list(contents.values()) == want
    assert list(contents) == [f"gradients/{i}" for i in range(len(want))]


@pytest.mark.parametrize("case", CASES)
def test_each_is_reduced_right_after_the_last_of_its_gradients(case):
    ir_model = reduced(CASES[case][0])
    nodes = [node.name for node in ir_model.graph]
    for number, gradients in enumerate(buckets(ir_model)[key] for key in list(buckets(ir_model))[1:]):
        place = nodes.index(f"bngrad_gradients_{number}_AllReduce")
        between = nodes[nodes.index(f"n{gradients[-1]}") + 1 : place]
        others = [name for name in between if not name.startswith(f"bngrad_gradients_{number}_")]
        # Another bucket may end at the same gradient; nothing that the graph had stands between.
        assert [name for name in others if not name.startswith("bngrad_gradients_")] == []
    assert nodes[nodes.index("l") + 1] == "bngrad_loss_AllReduce"


def test_a_bucket_of_4_megabytes():
    assert BUCKET_BYTES == 4 * 4 * MEGABYTE
    assert list(buckets(reduced(["float[4]", "float[4]"], bucket_bytes=32)).values()) == [[], [0, 1]]
    assert list(buckets(reduced(["float[4]", "float[4]"], bucket_bytes=31)).values()) == [[], [0], [1]]


@pytest.mark.parametrize("case", CASES)
def test_outputs_keep_their_names_types_and_order(case):
    types, _ = CASES[case]
    before, after = graph(types), reduced(types)

    def described(ir_model):
        return [(value.name, value.type, value.shape) for value in ir_model.graph.outputs]

    assert described(after) == described(before)


SUMMED = ("many small ones", "two types", "scalars", "no elements", "sizes that are not known")


@pytest.mark.parametrize("case", SUMMED)
def test_the_sums_over_ranks(case, rng):
    types, want = CASES[case]
    ir_model = EmbedFunctionsPass()(reduced(types)).model
    feeds = [
        {
            value.name: rng.standard_normal([size if isinstance(size, int) else 2 for size in value.shape]).astype(
                value.dtype.numpy()
            )
            for value in ir_model.graph.inputs
        }
        for _ in range(3)
    ]
    ranks = Ranks(3)
    results = ranks.run(ir.to_proto(ir_model), feeds)
    assert len(ranks.keys[0]) == 1 + len(want)
    assert ranks.keys[0] == ranks.keys[1] == ranks.keys[2]
    for name in results[0]:
        source = "t" if name == "loss" else f"x{name[1:]}"
        total = -np.sum([feed[source] for feed in feeds], axis=0, dtype=np.float64)
        for result in results:
            np.testing.assert_allclose(result[name], total, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_summed_in_float(dtype):
    ir_model = reduced([f"{dtype}[3]"], loss=dtype)
    kinds = {node.inputs[0].dtype for node in ir_model.graph if is_collective(node)}
    assert kinds == {ir.DataType.FLOAT}
    assert {value.dtype.name.lower() for value in ir_model.graph.outputs} == {dtype}


def test_other_readers_keep_the_part_of_the_rank():
    ir_model = model(
        header(18, "bngrad")
        + """g (float[3] x) => (float[3] x_grad, float[3] twice)
        { [n] x_grad = Neg (x) [twice] twice = Add (x_grad, x_grad) }"""
    )
    ReduceGradientsPass(["x_grad"])(ir_model)
    (twice,) = (node for node in ir_model.graph if node.name == "twice")
    assert [value.name for value in twice.inputs] == ["x_grad_of_rank"] * 2
    assert twice.inputs[0].producer().name == "n"


def test_names_that_the_graph_has():
    ir_model = model(
        header(18, "bngrad")
        + """g (float[3] x_grad_of_rank, float[3] bngrad_loss) => (float[3] x_grad, float[3] loss)
        { [bngrad_gradients_0_AllReduce] x_grad = Neg (x_grad_of_rank)
          [bngrad_loss_AllReduce] loss = Neg (bngrad_loss) }"""
    )
    ReduceGradientsPass(["x_grad"], "loss")(ir_model)
    names = [node.name for node in ir_model.graph]
    assert len(set(names)) == len(names) == 4
    values = [value.name for node in ir_model.graph for value in node.outputs]
    assert len({*values, "x_grad_of_rank", "bngrad_loss"}) == 6


REFUSALS = {
    "an input": (
        "g (float[3] x_grad) => (float[3] x_grad) { }",
        r"output 'x_grad' is not the result of a node; expected a gradient or a loss",
    ),
    "integers": (
        "g (int64[3] x) => (int64[3] x_grad) { x_grad = Neg (x) }",
        r"output 'x_grad' is int64; expected one of float, double, float16, bfloat16",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_before_anything_changes(case):
    text, message = REFUSALS[case]
    ir_model = model(header(18, "bngrad") + text)
    before = lines(ir_model)
    with pytest.raises(ir.passes.PassError) as error:
        ir.passes.Sequential(ReduceGradientsPass(["x_grad"]))(ir_model)
    with pytest.raises(ModelError, match=f"^{message}$"):
        raise error.value.__cause__
    assert lines(ir_model) == before
