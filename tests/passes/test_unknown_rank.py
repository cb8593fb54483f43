"""The reshapes around a node whose data has a rank that nobody knows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.graph.fresh_names import Names
from bngrad.passes.imports.unknown_rank import COLLAPSED_AXES, collapse_spatial
from pass_models import feeds_for, find, header, model, ops, proto, run

# BatchNormalization shows the effect of the reshapes on its numbers: it accepts [N, C, S] as any other rank.
GRAPH = """g (float[N,3,2,5] x, float[3] p, float[3] q, float[3] m, float[3] var) => (float[N,3,2,5] y) {
    [bn] z = BatchNormalization(x, p, q, m, var)
    y = Neg(z)
}"""


def collapsed(text, op, inputs, outputs):
    result = model(text)
    collapse_spatial(find(result, op), inputs, outputs, Names(result))
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    return result


def test_the_axes_are_all_but_the_second_of_three():
    assert COLLAPSED_AXES == (0, 2)


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 8])
def test_the_numbers_do_not_change(rank, rng):
    text = GRAPH.replace("N,3,2,5", ",".join(["N", "3", *"22222"[: rank - 2]]))
    result = ir.to_proto(collapsed(text, "BatchNormalization", [0], [0]))
    feeds = feeds_for(proto(text), rng)
    np.testing.assert_array_equal(run(result, feeds)["y"], run(proto(text), feeds)["y"])


def test_only_the_data_is_reshaped_and_what_read_it_reads_the_restored():
    result = collapsed(GRAPH, "BatchNormalization", [0], [0])
    shapes = ["Shape", "Shape", "ReduceProd", "Shape", "ReduceProd", "Shape", "Concat"]
    assert ops(result) == [*shapes, "Reshape", "BatchNormalization", "Reshape", "Neg"]
    bn, neg = find(result, "BatchNormalization"), find(result, "Neg")
    assert bn.name == "bn"
    assert [v.name for v in bn.inputs[1:]] == ["p", "q", "m", "var"]
    assert bn.inputs[0].producer().op_type == "Reshape"
    assert neg.inputs[0].name == "z"
    assert neg.inputs[0].producer().op_type == "Reshape"
    assert bn.outputs[0].name != "z"


def test_an_output_of_the_graph_keeps_its_name_type_and_shape():
    text = """g (float[N,3,4] a, float[N,3,4] b) => (float[N,3,4] y) { [add] y = Add(a, b) }"""
    result = collapsed(text, "Add", [0, 1], [0])
    (output,) = result.graph.outputs
    assert (output.name, output.dtype, [str(d) for d in output.shape]) == ("y", ir.DataType.FLOAT, ["N", "3", "4"])
    assert output.producer().op_type == "Reshape"
    assert [v.producer().op_type for v in find(result, "Add").inputs] == ["Reshape", "Reshape"]


def test_an_output_of_a_function_stays_its_output(rng):
    text = (
        header(17, "f")
        + """g (float[N,3,4] x) => (float[N,3,4] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 17]> F (x) => (y) { y = Neg(x) }"""
    )
    result = collapsed(text, "Neg", [0], [0])
    (function,) = result.functions.values()
    assert [v.name for v in function.outputs] == ["y"]
    assert function.outputs[0].producer().op_type == "Reshape"
    feeds = feeds_for(proto(text), rng)
    np.testing.assert_array_equal(run(ir.to_proto(result), feeds)["y"], -feeds["x"])


def test_an_output_that_is_left_out_gets_no_reshape():
    text = "g (float[N,4] x) => (float[N,4] y) { [drop] y, mask = Dropout(x) }"
    result = model(text)
    drop = find(result, "Dropout")
    drop.outputs[1].name = ""
    collapse_spatial(drop, [0], [0, 1], Names(result))
    assert ops(result)[-3:] == ["Reshape", "Dropout", "Reshape"]


def test_names_that_are_taken_are_not_used_again():
    text = GRAPH.replace("z =", "bn_ncs =").replace("(z)", "(bn_ncs)").replace("float[3] q", "float[3] bn_x_shape")
    text = text.replace("x, p, q,", "x, p, bn_x_shape,")
    result = collapsed(text, "BatchNormalization", [0], [0])
    names = [v.name for n in result.graph for v in n.outputs] + [v.name for v in result.graph.inputs]
    assert len(names) == len(set(names))


def test_a_node_without_a_name_gives_its_reshapes_that_of_its_op():
    text = GRAPH.replace("[bn] ", "")
    result = collapsed(text, "BatchNormalization", [0], [0])
    assert all(n.name.startswith("BatchNormalization_") for n in result.graph if n.op_type in ("Reshape", "Shape"))
