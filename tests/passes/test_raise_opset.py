"""Models below opset 15."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import ModelError
from bngrad.opset.functions import MIN_IR_VERSION, MIN_OPSET
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass
from pass_models import close, content, feeds_for, header, ops, proto, run

OLD = range(7, MIN_OPSET)
CONV = """g (float[N,2,6,6] x, float[3,2,3,3] w, float[3] b) => (float[N,3] y)
    <float[3,3] u = {1,2,3,4,5,6,7,8,9}> {
    [convolve] c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
    [relu] r = Relu(c)
    [pool] p = GlobalAveragePool(r)
    [flatten] f = Flatten(p)
    [multiply] y = MatMul(f, u)
}"""


def raised(original):
    before = content(original)
    result = RaiseOpsetPass()(original)
    assert content(original) == before
    assert result.model is not original
    assert result.model.opset_imports[""] >= MIN_OPSET
    assert not RaiseOpsetPass()(result.model).modified
    return result


@pytest.mark.parametrize("opset", OLD)
def test_an_old_model_computes_the_same_at_15(opset, rng):
    original = proto(CONV, opset)
    result = raised(ir.from_proto(original))
    assert result.modified
    assert result.model.opset_imports[""] == MIN_OPSET
    assert result.model.ir_version == MIN_IR_VERSION
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    feeds = feeds_for(original, rng)
    close(run(after, feeds), run(original, feeds), 1e-6)


def test_a_node_that_becomes_several_leaves_its_name_to_one(rng):
    body = "g (float[N,2,3] x) => (float[N,2,3] y) { [softmax] y = Softmax<axis = 1>(x) }"
    original = proto(body, 12)
    after = ir.to_proto(raised(ir.from_proto(original)).model)
    assert [node.op_type for node in after.graph.node] == ["Shape", "Flatten", "Softmax", "Reshape"]
    assert [node.op_type for node in after.graph.node if node.name == "softmax"] == ["Softmax"]
    feeds = feeds_for(original, rng)
    close(run(after, feeds), run(original, feeds), 1e-6)


@pytest.mark.parametrize("opset", OLD)
def test_names_survive(opset):
    original = proto(CONV, opset)
    after = ir.to_proto(raised(ir.from_proto(original)).model)
    names = {node.name for node in original.graph.node}
    assert names <= {node.name for node in after.graph.node}
    for part in ("input", "output", "initializer"):
        assert [v.name for v in getattr(after.graph, part)] == [v.name for v in getattr(original.graph, part)]
    values = {name for node in original.graph.node for name in node.output}
    assert values <= {name for node in after.graph.node for name in node.output}


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_outputs_that_are_left_out_keep_their_place(opset, left_out):
    """The converter moves the outputs after them up."""
    names = ["a", "b", "c"]
    names[left_out] = '""'
    first, second = (name for name in names if name != '""')
    body = f"{', '.join(names)} = Split <axis = 0> (x) y = Sub({first}, {second})"
    text = f"g (float[6] x) => (float[2] y) {{ {body} }}"
    after = ir.to_proto(RaiseOpsetPass(18)(ir.from_proto(proto(text, opset))).model)
    (split,) = (node for node in after.graph.node if node.op_type == "Split")
    assert {name: place for place, name in enumerate(split.output) if name in names} == {
        name: place for place, name in enumerate(names) if place != left_out
    }
    assert {"num_outputs": 3}.items() <= {attribute.name: attribute.i for attribute in split.attribute}.items()


@pytest.mark.parametrize("opset", OLD)
def test_the_pooling_gradients_that_ort_puts_into_the_default_domain(opset):
    """The converter does not know them."""
    text = """g (float[N,2,3,3] dy, int64[N,2,3,3] mask, bool c) => (float[N,2,6,6] a, float[N,2,6,6] b) {
        [max] m = MaxPoolGrad<kernel_shape = [2, 2], strides = [2, 2]>(dy, mask)
        a = Relu(m)
        b = If(c) <
            then_branch = t () => (float[N,2,6,6] d) {
                [average] d = AveragePoolGrad<kernel_shape = [2, 2], strides = [2, 2]>(dy) },
            else_branch = e () => (float[N,2,6,6] f) { f = Identity(a) }>
    }"""
    original = ir.from_proto(proto(text, opset))
    after = raised(original).model
    assert ops(after) == ops(original)
    assert after.opset_imports == {"": MIN_OPSET, "com.microsoft": 1}
    for name in ("max", "average"):
        before, kept = (
            next(n for n in ir.traversal.RecursiveGraphIterator(m.graph) if n.name == name)
            for m in (original, after)
        )
        assert {a: v.value for a, v in before.attributes.items()} == {
            a: v.value for a, v in kept.attributes.items()
        }


@pytest.mark.parametrize("opset", OLD)
def test_nodes_of_other_domains_stay(opset):
    text = """g (float[N,2] dy, float[N,2] x) => (float[N,2] y) {
        [grad] d = com.microsoft.ReluGrad(dy, x)
        y = Neg(d) }"""
    original = ir.from_proto(proto(text, opset))
    assert ops(raised(original).model) == ["com.microsoft.ReluGrad", "Neg"]


@pytest.mark.parametrize("opset", [7, 12, 14])
def test_what_is_said_about_the_model_and_its_nodes_survives(opset):
    original = proto(CONV, opset)
    original.producer_name, original.doc_string, original.graph.doc_string = "me", "a model", "a graph"
    entry = original.metadata_props.add()
    entry.key, entry.value = "who", "me"
    for node in original.graph.node:
        node.doc_string = f"about {node.name}"
        entry = node.metadata_props.add()
        entry.key, entry.value = "layer", node.name
    after = ir.to_proto(raised(ir.from_proto(original)).model)
    assert (after.producer_name, after.doc_string, after.graph.doc_string) == ("me", "a model", "a graph")
    assert after.metadata_props == original.metadata_props
    kept = {node.name: node for node in after.graph.node}
    for node in original.graph.node:
        assert kept[node.name].doc_string == node.doc_string
        assert kept[node.name].metadata_props == node.metadata_props


@pytest.mark.parametrize("opset", [15, 17, 21, 23])
def test_a_newer_model_is_copied(opset):
    original = ir.from_proto(proto(CONV, opset))
    result = raised(original)
    assert not result.modified
    assert content(result.model) == content(original)
    result.model.graph[0].name = "changed"
    assert original.graph[0].name == "convolve"
    weights = original.graph.initializers["u"].const_value
    assert result.model.graph.initializers["u"].const_value is weights


@pytest.mark.parametrize("weight", ["", ", float[2,2] w"], ids=["initializer-only", "graph-input-too"])
def test_an_initializer_of_ir_version_3(weight, rng):
    """It had to be a graph input too, and not every exporter made it one."""
    text = f"""<ir_version: 3, opset_import: ["" : 9]>
        g (float[N,2] x{weight}) => (float[N,2] y) <float[2,2] w = {{1, 2, 3, 4}}> {{ y = MatMul(x, w) }}"""
    original = onnx.parser.parse_model(text)
    after = ir.to_proto(raised(ir.from_proto(original)).model)
    feeds = {"x": rng.standard_normal((3, 2)).astype(np.float32)}
    close(run(after, feeds), {"y": feeds["x"] @ np.array([[1, 2], [3, 4]], np.float32)}, 1e-6)
    assert [v.name for v in after.graph.input] == [v.name for v in original.graph.input]


def test_the_default_domain_by_its_long_name():
    text = header(9).replace('""', '"ai.onnx"') + CONV
    result = raised(ir.from_proto(onnx.parser.parse_model(text)))
    assert result.model.opset_imports == {"": MIN_OPSET}
    text = (
        header(17, "f").replace('"" :', '"ai.onnx" :')
        + """g (float[2] x) => (float[2] y) { y = f.F(x) }
        <domain: "f", opset_import: ["ai.onnx" : 17]> F (x) => (y) { y = Neg(x) }"""
    )
    result = raised(ir.from_proto(onnx.parser.parse_model(text)))
    assert result.model.opset_imports == {"": 17, "f": 1}
    assert [dict(f.opset_imports) for f in result.model.functions.values()] == [{"": 17}]


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (13, "g (float[2] x) => (float[2] y) { y = Neg(x) }"),
        (
            13,
            (
                "g (float[2] x) => (float[2] y) { y = f.F(x) }"
                '<domain: "f", opset_import: ["" : 13]> F (x) => (y) { y = Neg(x) }'
            ),
        ),
        (
            14,
            (
                "g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (z) { z = Abs(x) }, "
                "else_branch = e () => (u) { u = Relu(x) }> }"
            ),
        ),
    ],
    ids=["graph", "function", "subgraph"],
)
def test_ops_that_did_not_change_are_left_as_they_are(opset, text, rng):
    """They need no conversion, so functions are no obstacle."""
    original = proto(text, opset, "f")
    result = raised(ir.from_proto(original)).model
    assert ops(result) == ops(ir.from_proto(original))
    assert {f.opset_imports[""] for f in result.functions.values()} <= {MIN_OPSET}
    feeds = {"x": rng.standard_normal(2).astype(np.float32), "c": np.array(True)}
    feeds = {value.name: feeds[value.name] for value in original.graph.input}
    close(run(ir.to_proto(result), feeds), run(original, feeds), 0)


REFUSED = {
    "functions": (
        """<ir_version: 8, opset_import: ["" : 13, "f" : 1]>
        g (float[2] x) => (float[2] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 13]> F (x) => (y) { y = Pow(x, x) }""",
        (
            "the model imports ai.onnx 13 and has functions (such as 'F'), which onnx's version "
            "converter does not support; "
            "export it with opset 15 or newer"
        ),
    ),
    "the-converter-refuses": (
        header(6) + "g (float[N,3] x, float[3] p) => (float[N,3] y) { [scaled] y = Mul(x, x) }",
        (
            "the model imports ai.onnx 6 and cannot be raised to 15: Mul node 'scaled' (outputs y): N Dimension "
            "is a param instead of an int; export it with opset 15 or newer"
        ),
    ),
    "no-default-domain": (
        header(7, "com.microsoft").replace('"" : 7, ', "")
        + "g (float[N,3] x) => (float[N,3] y) { y = com.microsoft.ReluGrad(x, x) }",
        "the model does not import the ai.onnx opset",
    ),
}

OLD_BATCH_NORM = """g ({x} x) => ({x} y{outputs})
    <float[{c}] s = {{1.5, 0.5, 2}}, float[{c}] b = {{0.1, 0.2, 0.3}},
     float[{c}] m = {{0.1, 0.2, 0.3}}, float[{c}] v = {{1, 2, 3}}> {{
    [bn] {made} = BatchNormalization <{attributes}> (x, s, b, m, v) }}"""
IMAGES, ROWS = "float[2,3,4,4]", "float[N,3]"


def old_batch_norm(opset, attributes="", outputs=1, used="", x=IMAGES, c="3"):
    names = ", ".join(["y", "m1", "v1", "sm", "sv"][:outputs])
    used = "".join(f", float[{c}] {name}" for name in used.split())
    text = OLD_BATCH_NORM.format(x=x, c=c, outputs=used, made=names, attributes=attributes).replace("<> ", "")
    return header(opset) + text


REFUSED |= {
    f"batch-norm-{name}": (
        text,
        "BatchNormalization node 'bn' (outputs y" + ", m1, v1, sm, sv" * several + message,
    )
    for name, (text, several, message) in {
        "spatial-0": (
            old_batch_norm(7, "spatial = 0", x="float[2,3,1,1]", c="3,1,1"),
            0,
            ") of opset 7 has spatial = 0",
        ),
        "says-both": (old_batch_norm(6, "is_test = 0"), 0, ") of opset 6 has is_test = 0 and one output, so that"),
        "in-test-mode": (
            old_batch_norm(6, "is_test = 1", 5, "m1"),
            1,
            ") of opset 6 has is_test = 1 and its output 'm1', which only training has, is read; expected",
        ),
        "saved": (
            old_batch_norm(9, "", 5, "sm"),
            1,
            ") of opset 9 has the output 'sm', a statistic of the batch, which opset 14 and newer lack; expected",
        ),
    }.items()
}


@pytest.mark.parametrize(
    ("opset", "attributes", "outputs", "used", "shape"),
    [
        (7, "", 1, "", IMAGES),
        (7, "spatial = 1, momentum = 0.5", 5, "m1 v1", IMAGES),
        (7, "spatial = 0", 1, "", ROWS),
        (8, "", 5, "v1", IMAGES),
        (9, "epsilon = 0.1", 5, "m1 v1", IMAGES),
        (13, "", 5, "m1 v1", ROWS),
    ],
)
def test_batch_norms_below_opset_14(opset, attributes, outputs, used, shape, rng):
    original = onnx.parser.parse_model(old_batch_norm(opset, attributes, outputs, "m1 v1" if used else "", shape))
    result = raised(ir.from_proto(original)).model
    assert result.graph[0].name == "bn"
    assert [node.op_type for node in result.graph] == ["BatchNormalization"]
    assert result.graph[0].attributes.get_int("training_mode", 0) == (outputs == 5)
    feeds = {"x": rng.standard_normal((2, 3, 4, 4) if shape == IMAGES else (5, 3)).astype(np.float32)}
    close(run(ir.to_proto(result), feeds), run(original, feeds), 1e-6)


@pytest.mark.parametrize(
    ("attributes", "outputs"), [("is_test = 1", 1), ("", 1), ("is_test = 0", 5), ("", 5), ("is_test = 1", 5)]
)
@pytest.mark.parametrize("opset", [1, 5, 6])
def test_batch_norms_that_stock_does_not_run(opset, attributes, outputs, rng):
    attributes = ", ".join(filter(None, [attributes, "consumed_inputs = [0, 0, 0, 1, 1]" * (opset < 6)]))
    training = outputs == 5 and "is_test = 1" not in attributes
    used = "m1 v1" if training else ""
    result = raised(ir.from_proto(onnx.parser.parse_model(old_batch_norm(opset, attributes, outputs, used)))).model
    newer = old_batch_norm(15, "training_mode = 1" if training else "", 3 if training else 1, used)
    feeds = {"x": rng.standard_normal((2, 3, 4, 4)).astype(np.float32)}
    close(run(ir.to_proto(result), feeds), run(onnx.parser.parse_model(newer), feeds), 0)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    text, message = REFUSED[case]
    original = ir.from_proto(onnx.parser.parse_model(text))
    before = content(original)
    with pytest.raises(ModelError) as error:
        RaiseOpsetPass()(original)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert content(original) == before


def test_large_weights_stay_what_they_are(rng):
    """The converter does not see them: it copies what it is given, and takes no more than 2 GiB."""
    arrays = {
        "a": rng.standard_normal((40, 30)).astype(np.float32),
        "b": np.ones(30, np.float32),
        "c": rng.standard_normal((30, 20)).astype(np.float32),
    }
    text = """g (float[N,40] x, float[30,20] c) => (float[N,20] y) {
        ab = MatMul(x, a)
        abb = Add(ab, b)
        t = Unsqueeze<axes = [2]>(abb)
        s = Squeeze<axes = [2]>(t)
        y = MatMul(s, c)
    }"""
    original = proto(text, 12)
    original.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    copy = ir.from_proto(original)
    result = raised(copy).model
    assert list(result.graph.initializers) == list(copy.graph.initializers) == ["a", "b", "c"]
    assert [value.name for value in result.graph.inputs] == ["x", "c"]
    for name in "ac":
        assert result.graph.initializers[name].const_value is copy.graph.initializers[name].const_value
    feeds = {"x": rng.standard_normal((3, 40)).astype(np.float32)}
    close(run(ir.to_proto(result), feeds), run(original, feeds))


OLD_OPS = {
    **{f"hardmax-{axis}": (f"y = Hardmax<axis = {axis}>(x)", 11, None) for axis in (0, 1, 2, 3, -1, -2)},
    "hardmax": ("y = Hardmax(x)", 7, None),
    "hardmax-12": ("y = Hardmax(x)", 12, None),
    "upsample-7-linear": ('y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]>(x)', 7, None),
    "upsample-8-nearest": ('y = Upsample<mode = "nearest", scales = [1.0, 1.0, 1.3, 3.7]>(x)', 8, None),
    "upsample-9-linear": ('y = Upsample<mode = "linear">(x, scales)', 9, [1, 1, 1.3, 3.7]),
    "upsample-9-nearest": ('y = Upsample<mode = "nearest">(x, scales)', 9, [1, 1, 1.3, 3.7]),
    "resize-linear": ('y = Resize<mode = "linear">(x, scales)', 10, [1, 1, 2, 2]),
    "resize-linear-both-ways": ('y = Resize<mode = "linear">(x, scales)', 10, [1, 1, 0.6, 1.7]),
    "resize-nearest-up": ("y = Resize(x, scales)", 10, [1, 1, 1.3, 3.7]),
    "resize-nearest-down": ("y = Resize(x, scales)", 10, [1, 1, 0.6, 0.7]),
    "resize-nearest-by-three": ("y = Resize(x, scales)", 10, [1, 1, 1 / 3, 1]),
    "upsample-in-the-middle": (
        'u = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]>(x)\n y = Neg(u)',
        7,
        None,
    ),
    "in-a-subgraph": (
        "y = If(c)<then_branch = t () => (a) { a = Hardmax(x) }, else_branch = e () => (b) { b = Neg(x) }>",
        12,
        None,
    ),
    "in-a-subgraph-resize": (
        (
            'y = If(c)<then_branch = t () => (a) { a = Resize<mode = "linear">(x, scales) }, '
            "else_branch = e () => (b) { b = Resize(x, scales) }>"
        ),
        10,
        [1, 1, 2, 2],
    ),
}


def old_op(node, opset, scales):
    """A model of one node, with its scales as an initializer."""
    condition = ", bool c" if "If(c)" in node else ""
    original = proto(f"g (float[2,4,6,6] x{condition}) => (y) {{ [op] {node} }}", opset)
    if scales is not None:
        original.graph.initializer.append(onnx.numpy_helper.from_array(np.array(scales, np.float32), "scales"))
    return original


@pytest.mark.parametrize("target", [MIN_OPSET, 18])
@pytest.mark.parametrize("case", OLD_OPS)
def test_ops_whose_meaning_changed_compute_what_they_did(case, target, rng):
    """onnx's converter renumbers Hardmax and Resize and leaves them as they are."""
    original = old_op(*OLD_OPS[case])
    result = RaiseOpsetPass(target)(ir.from_proto(original)).model
    feeds = {"x": rng.standard_normal((2, 4, 6, 6)).astype(np.float32), "c": np.array(True)}
    feeds = {value.name: feeds[value.name] for value in original.graph.input}
    close(run(ir.to_proto(result), feeds), run(original, feeds), 1e-6)


def test_a_scan_with_a_batch_dimension_is_refused():
    body = "body = f (float[2] s, float[2] a) => (float[2] t) { t = Add (s, a) }"
    original = proto(
        f"g (float[1,2] s, float[1,3,2] x) => (y) {{ y = Scan <num_scan_inputs = 1, {body}> (, s, x) }}", 8
    )
    with pytest.raises(ModelError, match=r"^Scan node \(outputs y\) of opset 8 has a batch dimension"):
        RaiseOpsetPass()(ir.from_proto(original))


ROUNDS_BOTH_WAYS = {
    "both-ways": ("y = Resize(x, scales)", [1, 1, 0.6, 1.7], "enlarges and reduces (scales [1.0, 1.0, 0.6"),
    "computed": ("n = Neg(scales)\n m = Neg(n)\n y = Resize(x, m)", None, "has scales that are not constant"),
}


@pytest.mark.parametrize("case", ROUNDS_BOTH_WAYS)
def test_a_resize_that_no_newer_one_computes_is_refused(case):
    node, scales, message = ROUNDS_BOTH_WAYS[case]
    text = f"g (float[2,4,6,6] x{', float[4] scales' if scales is None else ''}) => (y) {{ {node} }}"
    original = proto(text, 10)
    if scales is not None:
        original.graph.initializer.append(onnx.numpy_helper.from_array(np.array(scales, np.float32), "scales"))
    with pytest.raises(ModelError, match=re.escape(message)) as error:
        RaiseOpsetPass()(ir.from_proto(original))
    assert str(error.value).startswith("Resize node (outputs y)")
