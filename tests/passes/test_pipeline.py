"""The whole rewrite: of graphs from ORT's gradient builder, and of graphs that must be refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.passes.pipeline import rewrite, unknown_to_stock
from op_models import changed_opsets
from pass_models import (
    close,
    content,
    dims,
    feeds_for,
    find,
    header,
    internal_and_grad,
    lines,
    model,
    ops,
    proto,
    run,
)
from training_graphs import WRT, feeds, forward, training_graph

# Below 9 the builder's own batch norm is not valid to it; below 11 neither is the Gemm without C of rank 2.
BUILDER_OPSETS = changed_opsets(("BatchNormalization", "Conv", "Mul", "ReduceMean", "Relu"), range(9, 22))
BUILDER_CASES = [(4, opset) for opset in BUILDER_OPSETS]
BUILDER_CASES += [(rank, opset) for rank in (2, 3, 5) for opset in (11 if rank == 2 else 9, 14, 21)]


def rewritten(original, **options):
    return ir.to_proto(rewrite(ir.from_proto(original), **options).model)


# ---- training graphs of ORT's builder ----


@pytest.mark.parametrize(("rank", "opset"), BUILDER_CASES)
def test_a_real_training_graph(rank, opset, oracle, rng):
    original = training_graph(oracle, rank, opset)
    assert {f"{name}_grad" for name in WRT} <= {output.name for output in original.graph.output}
    before = ops(ir.from_proto(original))
    assert (
        before.count("com.microsoft.BatchNormInternal")
        == before.count("com.microsoft.BatchNormalizationGrad")
        == 1
    )
    serialized = original.SerializeToString(deterministic=True)

    answer = rewrite(ir.from_proto(original), target="training")
    after = ir.to_proto(answer.model)
    assert original.SerializeToString(deterministic=True) == serialized
    assert answer.rewritten == {"BatchNormalizationTraining": 1, "BatchNormalizationGrad": 1}
    left = ops(answer.model)
    assert "com.microsoft.BatchNormInternal" not in left
    assert "com.microsoft.BatchNormalizationGrad" not in left
    assert not [op for op in left if op.endswith("Reshape") and op not in before], "the rank was not inferred"
    onnx.checker.check_model(after, full_check=True)
    onnx.shape_inference.infer_shapes(after, check_type=True, strict_mode=True)
    assert after.graph.input == original.graph.input
    returned = [output.name for output in original.graph.output]
    returned += [name for name in answer.state.values() if name not in returned]
    assert list(answer.state) == ["mean", "var"]
    assert [output.name for output in after.graph.output] == returned
    assert {node.name for node in original.graph.node if "BatchNorm" in node.op_type} == {
        node.name for node in after.graph.node if node.domain == "bngrad"
    }

    arrays = feeds(rank, rng)
    want, got = oracle.run(original, arrays), oracle.run(after, arrays)
    close({name: got[name] for name in want}, want)


def test_at_rank_2_everything_is_in_stock_ort_but_the_relu(oracle):
    original = ir.from_proto(training_graph(oracle, 2, 17))
    unknown = {f"{n.domain}.{n.op_type}" for n in unknown_to_stock(rewrite(original, target="training").model)}
    assert "com.microsoft.ReluGrad" in unknown
    assert "bngrad.BatchNormalizationGrad" not in unknown


def test_a_graph_that_was_rewritten_is_rewritten_to_itself(oracle):
    once = rewrite(ir.from_proto(training_graph(oracle, 4, 17)), target="training")
    twice = rewrite(once.model, target="training")
    assert content(twice.model) == content(once.model)
    assert set(twice.rewritten.values()) == {0}


def test_the_golden_rewrite_of_a_training_graph(oracle, golden):
    original = training_graph(oracle, 4, 12)
    golden("training_graph.before.txt", lines(ir.from_proto(original)))
    golden("training_graph.after.txt", lines(rewrite(ir.from_proto(original), target="training").model))


def test_the_golden_rewrite_of_an_unknown_rank(golden):
    original = ir.from_proto(
        proto(
            header(17, "com.microsoft", "f")
            + f"""g (float[{dims(4)}] x, float[3] p, float[3] q) => (float[{dims(4)}] y) {{
                y, n = f.Block(x, p, q)
            }}
            <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
            Block (x, p, q) => (y, n) {{
                [bn] y, n, v, s, i = com.microsoft.BatchNormInternal<epsilon: float = 0.001>(x, p, p, q, q)
            }}"""
        )
    )
    golden("unknown_rank.before.txt", lines(original))
    golden("unknown_rank.after.txt", lines(rewrite(original).model))


# ---- options ----


def test_every_training_op_is_lowered_for_stock(oracle, rng):
    original = training_graph(oracle, 4, 17)
    answer = rewrite(ir.from_proto(original))
    assert not unknown_to_stock(answer.model)
    # The ReLU's gradient is part of the batch norm's.
    expected = {"BatchNormalizationTraining": 1, "BatchedConv": 1}
    assert answer.rewritten == expected | {"BatchNormalizationReluGrad": 1}
    assert "ConvGrad" in answer.lowered
    assert "ReluGrad" not in answer.lowered
    arrays = feeds(4, rng)
    close(run(ir.to_proto(answer.model), arrays, "native"), oracle.run(original, arrays))
    unfused = rewrite(ir.from_proto(original), fuse=False)
    assert unfused.rewritten == expected | {"BatchNormalizationGrad": 1}
    assert unfused.lowered["ReluGrad"] == 1
    close(run(ir.to_proto(unfused.model), arrays, "function"), oracle.run(original, arrays))


def test_stock_is_refused_where_other_training_ops_are_left():
    for more, others in (("", ""), ("    [two] other = com.microsoft.LSTMGrad(dx, y)\n", ", nor can 1 more (F")):
        text = internal_and_grad(4)[:-1] + "    [quant] unused = com.microsoft.FakeQuantGrad(dx, y)\n" + more + "}"
        with pytest.raises(UnsupportedNodeError) as error:
            rewrite(ir.from_proto(proto(text)))
        message = str(error.value)
        assert message.startswith(
            f"com.microsoft.FakeQuantGrad node 'quant' (outputs unused) cannot run on stock ONNX Runtime{others}"
        )
        assert message.endswith("; keep a training build and pass --target training")
        assert rewrite(ir.from_proto(proto(text)), target="training").rewritten["BatchNormalizationGrad"] == 1


def test_an_op_of_the_domain_that_does_not_exist_is_unknown_to_stock():
    text = internal_and_grad(4)[:-1] + "    [typo] unused = bngrad.BatchNormalizationGradient(dx, y) }"
    original = ir.from_proto(proto(text, 17, "bngrad"))
    assert [n.name for n in unknown_to_stock(original)] == ["forward", "backward", "typo"]
    with pytest.raises(UnsupportedNodeError, match=r"bngrad\.BatchNormalizationGradient node 'typo'"):
        rewrite(original)


def test_ops_that_are_functions_of_the_model_are_known_to_stock():
    text = (
        header(17, "f")
        + """g (float[2] x) => (float[2] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 17]> F (x) => (y) { y = Neg(x) }"""
    )
    assert unknown_to_stock(model(text)) == []


def test_functions_are_embedded_unless_told_not_to(rng):
    original = proto(internal_and_grad(4))
    embedded, bare = rewritten(original), rewritten(original, functions=False)
    assert sorted(f.name for f in embedded.functions) == ["BatchNormalizationGrad", "BatchNormalizationTraining"]
    assert not bare.functions
    assert [(o.domain, o.version) for o in bare.opset_import] == [("", 17), ("bngrad", 1)]
    feeds_ = feeds_for(original, rng)
    close(run(bare, feeds_, "native"), run(embedded, feeds_, "function"))


@pytest.mark.parametrize("opset", changed_opsets(("BatchNormalization", "Cast", "ReduceMean"), range(7, 24)))
def test_every_opset_is_rewritten_and_runs(opset, rng):
    original = proto(internal_and_grad(4), opset)
    after = rewritten(original)
    assert {o.domain: o.version for o in after.opset_import}[""] == max(opset, 15)
    feeds_ = feeds_for(original, rng)
    close(run(after, feeds_, "function"), run(rewritten(proto(internal_and_grad(4), 17)), feeds_, "native"))


def test_double(rng):
    after = rewritten(proto(internal_and_grad(4, "double")))
    feeds_ = feeds_for(after, rng, np.float64)
    first, second = (run(after, feeds_, implementation) for implementation in ("function", "native"))
    assert all(value.dtype == np.float64 for value in first.values())
    close(first, second, 1e-12)


def test_every_value_has_a_type_afterwards():
    after = rewrite(ir.from_proto(proto(internal_and_grad(4)))).model
    for node in after.graph:
        for value in node.outputs:
            assert value.dtype is not None, value.name
            assert value.shape is not None, value.name
    assert [str(d) for d in find(after, "BatchNormalizationTraining").outputs[3].shape] == ["3"]


# ---- what is refused ----

NOTHING = (
    "the model has no batch norm in training mode, no batch-norm gradient and no other training op; expected a "
    "training graph (make one with bngrad differentiate)"
)
REFUSED = {
    "no-batch-norm": ("g (float[2] x) => (float[2] y) { y = Neg(x) }", ModelError, NOTHING),
    "frozen-only": (
        f"g (float[{dims(4)}] x, float[3] p) => (float[{dims(4)}] y) {{ y = BatchNormalization(x, p, p, p, p) }}",
        ModelError,
        NOTHING,
    ),
    "integers": (internal_and_grad(4, "int32"), UnsupportedNodeError, "its input 'x' is int32"),
    "rank-9": (internal_and_grad(9), UnsupportedNodeError, "its X has rank 9; expected 1 to 8"),
    "shapes-that-do-not-fit": (
        internal_and_grad(4).replace("float[3] dscale", "float[4] dscale"),
        ModelError,
        "the rewritten model does not pass onnx's checker: ",
    ),
    "no-opset": (
        header(17, "com.microsoft").replace('"" : 17, ', "") + internal_and_grad(4),
        ModelError,
        "the model does not import the ai.onnx opset",
    ),
}


@pytest.mark.parametrize("target", ["stock", "training"])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_change_nothing(case, target):
    text, kind, message = REFUSED[case]
    original = ir.from_proto(proto(text))
    before = content(original)
    with pytest.raises(kind) as error:
        rewrite(original, target=target)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert content(original) == before


def test_the_given_model_is_not_changed_and_tensors_are_shared():
    text = (
        internal_and_grad(4)
        .replace("=> (", "=> (float[2] q, ")
        .replace("{\n", "<float[2] w = {1, 2}> {\n q = Neg(w)\n", 1)
    )
    original = ir.from_proto(proto(text))
    before = content(original)
    answer = rewrite(original)
    assert content(original) == before
    assert answer.model is not original
    first, second = (m.graph.initializers["w"].const_value for m in (original, answer.model))
    assert first is second


def test_the_forward_model_of_the_builder_is_itself_a_training_graph():
    """A training-mode BatchNormalization with no gradient is worth rewriting: stock ORT's is not safe."""
    answer = rewrite(ir.from_proto(forward(4, 17)))
    assert answer.rewritten == {"BatchNormalizationTraining": 1}
