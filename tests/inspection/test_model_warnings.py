"""Tests warnings about models that are probably unsuitable for training, and no warnings about others.

The graphs are exports of small networks by torch 2.13.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from bngrad.inspection.model_warnings import mode_notes, model_warnings, running_variance_warnings
from bngrad.options import ForwardOptions
from models import digits_resnet20, light

RULE, FX_NODE = "pkg.onnxscript.rewriter.rule_name", "pkg.torch.onnx.fx_node"
LOSS = "loss = ReduceMean <keepdims = 0> (y)"
CONV = "[n] y = Conv (x, w, c)"
KERNEL = "float[2, 2, 1, 1] w = {1, 2, 3, 4}"
BIAS = "float[2] c = {0, 1}"
IMAGES = "float[N, 2, 3, 3] x"
TORCHSCRIPT = (CONV.replace("w,", '"onnx::Conv_28",'), f"{KERNEL}, {BIAS}".replace(" w ", ' "onnx::Conv_28" '))


def parse(body, initializers, *, producer="pytorch", opset=18, x="float[N, 2] x", **metadata):
    """A model, with the metadata of its nodes by name."""
    header = f'<ir_version: 8, producer_name: "{producer}", opset_import: ["" : {opset}, "tf" : 1]>\n'
    text = f"g ({x}) => (float loss) <{initializers}> {{ {body} {LOSS} }}"
    model = ir.from_proto(onnx.parser.parse_model(header + text))
    for node in model.graph:
        node.metadata_props.update(metadata.get(str(node.name), {}))
    return model


S, M = "float[2] s = {1, 2}, float[2] b = {0, 1}", "float[2] m = {0, 1}, float[2] v = {1, 2}"
BN, TRAINING = "[bn] y = BatchNormalization (x, s, b, m, v)", "<training_mode = 1>"
TORCH_BN = BN.replace("[bn]", "[node__native_batch_norm_legit_functional__0]")
TWO_BN = f"[bn1] h = BatchNormalization (x, s, b, m, v) {BN.replace('(x', '(h')}"
ONE_IN_TRAINING = f"[bn1] h, p, q = BatchNormalization {TRAINING} (x, s, b, m, v) {BN.replace('(x', '(h')}"
CALL = "%bn : [num_users=3] = call_function[target=torch.ops.aten._native_batch_norm_legit_{}.default](args = ({}"
ARGUMENTS = "%x, %p_bn_weight, %p_bn_bias, %b_bn_running_mean, %b_bn_running_var, {}0.1, 1e-05), kwargs = {{}})"
FUNCTIONAL = {FX_NODE: CALL.format("functional", ARGUMENTS.format("True, "))}
FUNCTIONAL_IN_EVALUATION = {FX_NODE: CALL.format("functional", ARGUMENTS.format("False, "))}
NO_TRAINING = {FX_NODE: CALL.format("no_training", ARGUMENTS.format(""))}
EQUAL = "float[2] s = {1, 1}, float[2] b = {0, 0}"
TWO_LN = "[l1] h = LayerNormalization (x, s, b) [l2] y = LayerNormalization (h, s, b)"
W = "float[2] w = {1, 2}"
SCALED = "a = Mul (x, w) y = Mul (a, {0})"

TABLE = "float[3, 2] w = {{0, 0, {}, 2, 3, 4}}"
GATHER = "i = Constant <value_ints = [0, 2]> () [n] y = Gather (w, i)"
EMBEDDING = {
    FX_NODE: "%e = call_function[target=torch.ops.aten.embedding.default](args = (%p_w, %i), kwargs = {})"
}

TWO_LAYERS = "h = MatMul (x, u) {} y = MatMul (r, w)"
LAYERS = "float[2, 2] u = {1, 2, 3, 4}, float[2] t = {0, 1}, float[2, 1] w = {1, 2}"

# name: (model, options, the warnings that there are, or a part of each)
WARNS = {
    "a layer before Round": (
        parse(TWO_LAYERS.format("k = Add (h, t) [q] r = Round (k)"), LAYERS),
        {},
        ["'u' and 't' keep their values: Round node 'q' (outputs r) gives input 0 no gradient; name the weights"],
    ),
    "a layer before the condition of a branch": (
        parse(
            TWO_LAYERS.format(
                "m = ReduceSum <keepdims = 0> (h) z = Constant <value_float = 0.0> () [q] k = Greater (m, z)"
                "r = If (k) <then_branch = a () => (v) { v = Identity (x) }, "
                "else_branch = b () => (v) { v = Mul (x, t) }>"
            ),
            LAYERS,
        ),
        {},
        ["'u' keeps its value: Greater node 'q' (outputs k) gives input 0 no gradient; name the weights"],
    ),
    "a row of zeros": (parse(GATHER, TABLE.format(1)), {}, ["'w': row 0 of 'w' is zeros, as PyTorch's Embedding"]),
    "folded into Conv": (
        parse(CONV, f"{KERNEL}, {BIAS}", x=IMAGES, n={RULE: "RemoveOptionalBiasFromConv, FuseBatchNormIntoConv"}),
        {},
        ["PyTorch's exporter folded batch norms into 1 layer (Conv node 'n' (outputs y)), so that they are not "],
    ),
    "folded into Gemm": (
        parse(
            "[n] y = Gemm (x, w, c)", f"float[2, 2] w = {{1, 2, 3, 4}}, {BIAS}", n={RULE: "FuseBatchNormIntoGemm"}
        ),
        {},
        ["folded batch norms into 1 layer (Gemm node 'n' (outputs y)), so that they are not trained; if they"],
    ),
    "one folded, one in training mode": (
        parse(
            f"[n] h = Conv (x, w, c) [bn] y, p, q = BatchNormalization {TRAINING} (h, s, b, m, v)",
            f"{KERNEL}, {BIAS}, {S}, {M}",
            x=IMAGES,
            n={RULE: "FuseBatchNormIntoConv"},
        ),
        {},
        ["folded batch norms into 1 layer"],
    ),
    "folded by the TorchScript exporter": (
        parse(*TORCHSCRIPT, x=IMAGES),
        {},
        ["folded batch norms into 1 layer (Conv node 'n'"],
    ),
    "folded by another tool": (
        parse(CONV.replace("y =", "getitem_3 =") + " y = Relu (getitem_3)", f"{KERNEL}, {BIAS}", x=IMAGES),
        {},
        ["folded batch norms into 1 layer (Conv node 'n' (outputs getitem_3))"],
    ),
    "in inference mode in a body by PyTorch's exporter": (
        parse(
            """c = Constant <value = bool {1}> ()
            y = If (c) <then_branch = t () => (float[N, 2] i) {
                    [node__native_batch_norm_legit_functional__0] i = BatchNormalization (x, s, b, m, v) },
                else_branch = e () => (float[N, 2] j) { j = Identity (x) }>""",
            f"{S}, {M}",
        ),
        {},
        [],
    ),
    "one statistic of two batch norms, without a record": (
        parse(
            TWO_BN.replace("bn1", "node__native_batch_norm_legit_functional__0").replace(
                "bn]", "node__native_batch_norm_legit_functional_1__0]"
            ),
            f"{S}, {M}",
        ),
        {},
        ["2 batch norms (first: BatchNormalization node 'node__native_batch_norm_legit_functional__0' (outp"],
    ),
    "all in inference mode": (
        parse(TWO_BN, f"{S}, {M}", producer="jax2onnx"),
        {},
        [
            "no batch norm in training mode, but 2 batch norms (first: BatchNormalization node 'bn1' (outputs h))",
            "jax2onnx does not record custom gradients",
        ],
    ),
    "frozen in PyTorch": (parse(BN, f"{S}, {M}", bn=NO_TRAINING), {}, ["the model has no batch norm in training"]),
    "frozen in PyTorch by an argument": (
        parse(TORCH_BN, f"{S}, {M}", node__native_batch_norm_legit_functional__0=FUNCTIONAL_IN_EVALUATION),
        {},
        ["the model has no batch norm in training"],
    ),
    "inference mode before opset 14": (
        parse(BN, f"{S}, {M}", opset=9),
        {},
        ["the model has no batch norm in training"],
    ),
    "inference mode before opset 7": (
        parse("[bn] y = BatchNormalization <is_test = 1> (x, s, b, m, v)", f"{S}, {M}", opset=6),
        {},
        ["the model has no batch norm in training mode"],
    ),
    "inference mode of TensorFlow": (
        parse(
            '[bn] y, p, q, r, t, u = tf.FusedBatchNormV3 <is_training = 0, data_format = "NCHW"> (x, s, b, m, v)',
            f"{S}, {M}",
            x=IMAGES,
        ),
        {},
        ["but 1 batch norm (tf.FusedBatchNormV3 node 'bn' (outputs y, p, q, r, t, u)) in inference mode"],
    ),
    "training mode of TensorFlow without running statistics": (
        parse(
            '[bn] y, p, q, r, t, u = tf.FusedBatchNormV3 <is_training = 1, data_format = "NCHW"> (x, s, b, m, v)',
            f"{S}, {M}",
            x=IMAGES,
        ),
        {},
        ["running statistics are not updated by 1 batch norm (tf.FusedBatchNormV3 node 'bn' "],
    ),
    "a scale and a bias of two layers": (
        parse(TWO_LN, EQUAL),
        {},
        ["'s' is a weight of 2 nodes (first: LayerNormalization node 'l1' (outputs h)), trained as one (and 'b'"],
    ),
    "tied by Identity": (
        parse(f"t = Identity (s) {TWO_LN.replace('(h, s', '(h, t')}", EQUAL),
        {"wrt": ["s"]},
        ["'s' is a weight of 2 nodes (first: LayerNormalization node "],
    ),
    "a scale that is one of another batch norm": (
        parse(
            f"[bn1] h, p, q = BatchNormalization {TRAINING} (x, s, b, m, v) "
            f"[bn] y, p2, q2 = BatchNormalization {TRAINING} (h, s, c, m, v)",
            f"{EQUAL}, {BIAS}, {M}",
        ),
        {},
        ["'s' is a weight of 2 nodes"],
    ),
    "tied and chosen": (
        parse(TWO_LN, EQUAL),
        {"wrt": ["s"], "default_wrt": False},
        ["'s' is a weight of 2 nodes"],
    ),
    "a shared weight that the exporter transposed": (
        parse(
            "h = Gather (w, i) y = MatMul (h, val_2)",
            "float[2, 3] w = {1, 2, 3, 4, 5, 6}, int64[1] i = {0}, float[3, 2] val_2 = {1, 4, 2, 5, 3, 6}",
        ),
        {},
        ["'val_2' is the transpose of 'w', and both are trained, apart: "],
    ),
    "an exporter's constant": (
        parse(SCALED.format("val_74"), f"{W}, float[1] val_74 = {{2}}"),
        {},
        ["'val_74' does not look like a weight (named like an exporter's constant), but the loss is "],
    ),
    "a constant of TorchScript": (
        parse(SCALED.format('"onnx::Mul_12"'), f'{W}, float[2] "onnx::Mul_12" = {{2, 3}}'),
        {},
        ["'onnx::Mul_12' does not look like a weight (named like an exporter's constant)"],
    ),
    "constants of TensorFlow": (
        parse(
            'a = Mul (x, w) c = Mul (a, "Const__33") y = Add (c, "const_fold_opt__12")',
            f'{W}, float[2] "Const__33" = {{2, 3}}, float[2] "const_fold_opt__12" = {{1, 2}}',
            producer="tf2onnx",
        ),
        {},
        ["'Const__33' and 'const_fold_opt__12' do not look like weights"],
    ),
    "a scalar": (
        parse(SCALED.format("two"), f"{W}, float two = {{2}}"),
        {},
        ["'two' does not look like a weight (a scalar)"],
    ),
    "a bias of zeros": (
        parse(CONV.replace("c)", "val_5)"), f"{KERNEL}, float[2] val_5 = {{0, 0}}", x=IMAGES),
        {},
        ["'val_5' does not look like a weight (a bias of zeros named by an exporter)"],
    ),
    "a statistic by its name": (
        parse('a = Mul (x, w) y = Sub (a, "bn.running_mean")', f'{W}, float[2] "bn.running_mean" = {{0, 1}}'),
        {},
        ["'bn.running_mean' does not look like a weight (named like a running statistic)"],
    ),
    "in a body": (
        parse(
            f"""c = Constant <value = bool {{1}}> ()
            y = If (c) <then_branch = t () => (float[N, 2] i) {{
                    [inner] i, p, q = BatchNormalization {TRAINING} (x, s, b, m, v) }},
                else_branch = e () => (float[N, 2] j) {{ j = Identity (x) }}>""",
            f"{S}, {M}",
        ),
        {},
        [],
    ),
    "two kinds": (
        parse(f"{TWO_LN.replace('y =', 'z =')} y = Mul (z, two)", f"{EQUAL}, float two = {{2}}"),
        {},
        ["'s' is a weight of 2 nodes", "'two' does not look like a weight"],
    ),
}


def warnings_with(model, wrt=None, default_wrt=True, **options):
    return model_warnings(model, ForwardOptions(**options), wrt=wrt, default_wrt=default_wrt)


@pytest.mark.parametrize("name", WARNS)
def test_warns(name):
    model, options, want = WARNS[name]
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    got = warnings_with(model, **options)
    assert len(got) == len(want), got
    for message, part in zip(got, want, strict=True):
        assert part in message
        assert "\n" not in message
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


IN_TRAINING = f"[bn] y, p, q = BatchNormalization {TRAINING} (x, s, b, m, v)"
SILENT = {
    "a layer beside Round, and on another path": (
        parse(TWO_LAYERS.format("q = Round (h) r = Add (q, h)"), LAYERS.replace("float[2] t = {0, 1}, ", "")),
        {},
    ),
    "thresholds": (parse("k = Greater (x, t) c = Cast <to = 1> (k) [n] y = MatMul (c, w)", LAYERS), {}),
    "a layer that nothing reads": (parse(f"h = MatMul (x, u) {BN}", f"{LAYERS}, {S}, {M}"), {"frozen": ["bn"]}),
    "no row of zeros": (parse(GATHER, TABLE.format(-1).replace("0, 0", "0, 1")), {}),
    "two rows of zeros": (parse(GATHER, "float[3, 2] w = {0, 0, 0, 0, 3, 4}"), {}),
    "a row of zeros, recorded": (parse(GATHER, TABLE.format(1), n=EMBEDDING), {}),
    "a row of zeros of another producer": (parse(GATHER, TABLE.format(1), producer="other"), {}),
    "in training mode": (parse(IN_TRAINING, f"{S}, {M}"), {}),
    "one in training mode, one that PyTorch froze": (parse(ONE_IN_TRAINING, f"{S}, {M}", bn=NO_TRAINING), {}),
    "training mode before opset 14": (
        parse("[bn] y, p, q, r, t = BatchNormalization (x, s, b, m, v)", f"{S}, {M}", opset=9),
        {},
    ),
    "training mode before opset 7": (
        parse("[bn] y = BatchNormalization <is_test = 0> (x, s, b, m, v)", f"{S}, {M}", opset=6),
        {},
    ),
    "training mode of TensorFlow": (
        parse(
            '[bn] y, p, q, r, t, u = tf.FusedBatchNormV3 <is_training = 1, data_format = "NCHW", '
            "exponential_avg_factor = 0.1> (x, s, b, m, v)",
            f"{S}, {M}",
            x=IMAGES,
        ),
        {},
    ),
    "statistics of the batch in inference mode": (
        parse(
            "mean = ReduceMean <keepdims = 0> (x, a) c = Sub (x, mean) q = Mul (c, c) "
            f"var = ReduceMean <keepdims = 0> (q, a) {BN.replace('m, v', 'mean, var')}",
            f"{S}, int64[1] a = {{0}}",
        ),
        {},
    ),
    "in training mode in PyTorch": (parse(TORCH_BN, f"{S}, {M}"), {}),
    "the same, renamed": (parse(BN, f"{S}, {M}", bn=FUNCTIONAL), {}),
    "the same beside one in training mode": (parse(ONE_IN_TRAINING, f"{S}, {M}", bn=FUNCTIONAL), {}),
    "folded, which --frozen accepts": (
        parse(CONV, f"{KERNEL}, {BIAS}", x=IMAGES, n={RULE: "FuseBatchNormIntoConv", **FUNCTIONAL}),
        {"frozen": ["n"]},
    ),
    "one scale of a module that is called twice": (
        parse(TWO_BN, f"{EQUAL}, {M}", bn1=FUNCTIONAL, bn=FUNCTIONAL),
        {},
    ),
    "put in training mode": (parse(TORCH_BN, f"{S}, {M}"), {"training": ["*legit_functional*"]}),
    "frozen by choice": (parse(TORCH_BN, f"{S}, {M}"), {"frozen": ["*"]}),
    "some frozen by choice": (parse(TWO_BN, f"{S}, {M}"), {"frozen": ["bn1"]}),
    "no batch norm": (parse(CONV, f"{KERNEL}, {BIAS}", x=IMAGES), {}),
    "rewritten otherwise": (parse(CONV, f"{KERNEL}, {BIAS}", x=IMAGES, n={RULE: "FusePadIntoConv"}), {}),
    "names of TorchScript in another exporter's model": (
        parse(*TORCHSCRIPT, x=IMAGES, producer="mine"),
        {},
    ),
    "layers of their own": (
        parse(
            TWO_LN.replace("(h, s, b)", "(h, s2, b2)"), f"{EQUAL}, float[2] s2 = {{1, 1}}, float[2] b2 = {{0, 0}}"
        ),
        {},
    ),
    "tied on purpose, after training": (parse(TWO_LN, S), {}),
    "tied, but not differentiated": (parse(TWO_LN, EQUAL), {"wrt": []}),
    "tied inputs, which no exporter merges": (
        parse(TWO_LN, EQUAL, x="float[N, 2] x, float[2] s, float[2] b"),
        {},
    ),
    "an embedding that is the output layer": (
        parse(
            "h = Gather (w, x) y = Gemm <transB = 1> (h, w)",
            "float[2, 2] w = {1, 1, 1, 1}",
            x="int64[N] x",
        ),
        {},
    ),
    "matrices that are not transposes": (
        parse("h = MatMul (x, w) y = MatMul (h, u)", "float[2, 2] w = {1, 2, 3, 4}, float[2, 2] u = {1, 3, 2, 5}"),
        {},
    ),
    "matrices that were copied": (
        parse("h = MatMul (x, w) y = MatMul (h, u)", "float[2, 2] w = {1, 2, 3, 4}, float[2, 2] u = {1, 2, 3, 4}"),
        {},
    ),
    "two identities": (
        parse("h = MatMul (x, w) y = MatMul (h, u)", "float[2, 2] w = {1, 0, 0, 1}, float[2, 2] u = {1, 0, 0, 1}"),
        {},
    ),
    "a transpose that is not trained": (
        parse("h = MatMul (x, w) y = MatMul (h, u)", "float[2, 2] w = {1, 2, 3, 4}, float[2, 2] u = {1, 3, 2, 4}"),
        {"wrt": ["w"], "default_wrt": False},
    ),
    "statistics that are equal to a weight": (
        parse(f"[bn] y, p, q = BatchNormalization {TRAINING} (x, s, b, b, s)", EQUAL),
        {},
    ),
    "a constant that was chosen": (
        parse(SCALED.format("val_74"), f"{W}, float[1] val_74 = {{2}}"),
        {"wrt": ["w", "val_74"], "default_wrt": False},
    ),
    "a weight that the exporter transposed": (
        parse('y = MatMul (x, "onnx::MatMul_199")', 'float[2, 2] "onnx::MatMul_199" = {1, 2, 3, 4}'),
        {},
    ),
    "a bias of zeros of the network": (parse(CONV, f"{KERNEL}, float[2] c = {{0, 0}}", x=IMAGES), {}),
    "a slope": (parse("y = PRelu (x, p)", "float[1] p = {0.25}"), {}),
    "a scalar parameter": (
        parse('a = Mul (x, logit_scale) y = Mul (a, "m.t")', 'float logit_scale = {2}, float[1] "m.t" = {2}'),
        {},
    ),
    "an exponent and limits": (
        parse(
            "a = Mul (x, w) p = Pow (a, two) y = Clip (p, low, high)",
            f"{W}, float two = {{2}}, float low = {{0}}, float high = {{6}}",
        ),
        {},
    ),
    "a training graph": (
        parse("r = Mul (x, w) h = Mul (r, two) y = ReluGrad (x, h)", f"{W}, float two = {{2}}"),
        {},
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_says_nothing(name):
    model, options = SILENT[name]
    assert warnings_with(model, **options) == []


def test_the_digits_network_is_a_good_model():
    assert model_warnings(ir.from_proto(digits_resnet20.build(seed=0))) == []


@pytest.mark.parametrize("network", light.BATCH_NORMS)
def test_the_light_networks_are_good_models(network):
    assert model_warnings(ir.from_proto(light.prepare(network))) == []


def test_external_data_that_is_not_there():
    """Warnings are reported on reading; a check does not fail."""
    model = parse(TWO_LN, EQUAL)
    for name in "sb":
        value = model.graph.initializers[name]
        value.const_value = ir.ExternalTensor(
            "gone.bin", 0, 8, ir.DataType.FLOAT, shape=ir.Shape([2]), name=name, base_dir="/nowhere"
        )
    assert model_warnings(model) == []


# name: (model, options, how many batch norms the note is on)
NOTED = {
    "by the name of the node": (parse(TORCH_BN, f"{S}, {M}"), {}, 1),
    "by its metadata": (parse(TWO_BN, f"{S}, {M}", bn1=FUNCTIONAL, bn=FUNCTIONAL), {}, 2),
    "one of two": (parse(TWO_BN, f"{S}, {M}", bn1=NO_TRAINING, bn=FUNCTIONAL), {}, 1),
    "auto": (parse(TORCH_BN, f"{S}, {M}"), {"training": ["auto"]}, 1),
    "frozen in PyTorch": (parse(BN, f"{S}, {M}", bn=NO_TRAINING), {}, 0),
    "frozen by choice": (parse(TORCH_BN, f"{S}, {M}"), {"frozen": ["*functional*"]}, 0),
    "trained by choice": (parse(TORCH_BN, f"{S}, {M}"), {"training": ["*functional*"]}, 0),
    "no record": (parse(BN, f"{S}, {M}"), {}, 0),
    "in training mode in the file": (parse(IN_TRAINING, f"{S}, {M}", bn=FUNCTIONAL), {}, 0),
}


@pytest.mark.parametrize("name", NOTED)
def test_notes_the_recorded_mode(name):
    model, options, count = NOTED[name]
    notes = mode_notes(model, ForwardOptions(**options))
    assert len(notes) == (1 if count else 0)
    assert all(f"PyTorch had {count} batch norm" in note and "put in training mode" in note for note in notes)


@pytest.mark.parametrize(("producer", "count"), [("pytorch", 1), ("tf2onnx", 0), ("", 0)])
def test_running_variance(producer, count):
    messages = running_variance_warnings(parse(IN_TRAINING, f"{S}, {M}", producer=producer))
    assert len(messages) == count
    assert all("--target stock or training" in message for message in messages)
