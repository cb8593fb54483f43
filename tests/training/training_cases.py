"""Forward models whose running statistics are read by more than one batch norm, or are something else as well."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

LIMITS = {np.dtype(np.float16): 1e-2, np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}
MEAN, VAR = "/running_mean", "/running_var"
BN = "BatchNormalization <training_mode = 1, momentum = 0.5>"
PARAMETERS = "float[2] s = {1, 2}, float[2] b = {0, 1}"
SHARED = f"{PARAMETERS}, float[2] m = {{0.5, 0}}, float[2] v = {{1, 2}}"
ALIASED = "float[2] one = {1, 1}, float[2] zero = {0, 0}"
LOSS = "q = Mul(z, z) loss = ReduceMean <keepdims = 0> (q)"
FUNCTION = f"""
<domain: "local", opset_import: ["" : 17]>
norm (a, p, q, r, t) => (d) {{ [inner] d, e, f = {BN} (a, p, q, r, t) }}"""


def own(*nodes):
    """The names of the running statistics of nodes that share them."""
    return [(node + MEAN, node + VAR) for node in nodes]


@dataclass(frozen=True)
class Case:
    """A forward model of x that makes z and a loss."""

    body: str
    statistics: list[tuple[str, str]]
    """The names of the running mean and variance of each batch norm in a training graph, in their order."""
    initializers: str = SHARED
    inputs: str = "float[N, 2, 3] x"
    outputs: str = "float loss, float[N, 2, 3] z"
    functions: str = ""
    opset: int = 17
    ir: int = 8
    options: dict = field(default_factory=dict)
    """Of `differentiate`."""
    names: dict[str, str] = field(default_factory=dict)
    """Names that the text cannot have, by those that it has."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """The first values of inputs that have none in the model."""

    def model(self) -> onnx.ModelProto:
        imports = f'["" : {self.opset}' + (', "local" : 1]' if self.functions else "]")
        text = f"""<ir_version: {self.ir}, opset_import: {imports}>
            g ({self.inputs}) => ({self.outputs}) <{self.initializers}> {{ {self.body} {LOSS} }}{self.functions}"""
        model = onnx.parser.parse_model(text)
        for tensor in model.graph.initializer:
            tensor.name = self.names.get(tensor.name, tensor.name)
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [self.names.get(name, name) for name in names]
        return model


def by_hand(case: Case, state: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The forward model in inference mode, each batch norm with the statistics that the case says are its own."""
    model = case.model()
    if case.functions:
        model = onnx.inliner.inline_local_functions(model)
    # onnx's evaluator takes what was BatchNormalization before opset 14 for training.
    model.opset_import[0].version = max(model.opset_import[0].version, 14)
    graph = model.graph
    values = {t.name: t for t in graph.initializer} | {k: numpy_helper.from_array(v, k) for k, v in state.items()}
    names = iter(case.statistics)
    for node in graph.node:
        if node.op_type == "Dropout":
            del node.input[1:]
        elif node.op_type == "BatchNormalization":
            del node.output[1:]
            node.ClearField("attribute")
            node.input[3:] = [
                own if own in state else shared for own, shared in zip(next(names), node.input[3:], strict=True)
            ]
    del graph.initializer[:]
    graph.initializer.extend(values.values())
    nodes = [node for node in graph.node if not (node.op_type == "Constant" and node.output[0] in state)]
    outputs = [output for output in graph.output if output.name == "z"]
    for field_, kept in ((graph.node, nodes), (graph.output, outputs)):
        del field_[:]
        field_.extend(kept)
    return model


def data(case, rng, batch=4):
    return rng.standard_normal((batch, 2, 3)).astype(ir.from_proto(case.model()).graph.inputs[0].dtype.numpy())


def check(case, finalized, state, x):
    """A finalized model against the forward model put into inference mode by hand."""
    session = onnxruntime.InferenceSession(finalized.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    got = dict(zip([v.name for v in session.get_outputs()], session.run(None, {"x": x}), strict=True))["z"]
    (want,) = ReferenceEvaluator(by_hand(case, state)).run(["z"], {"x": x})
    limit = LIMITS[x.dtype]
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


TWO = f"[bn1] y, m1, v1 = {BN} (x, s, b, m, v) [relu] r = Relu(y) [bn2] z, m2, v2 = {BN} (r, s, b, m, v)"
ONE = f"[bn] z, mn, vn = {BN} (x, s, b, m, v)"
SOLE = [("m", "v")]
CASES = {
    "one": Case(ONE, SOLE),
    "shared": Case(TWO, own("bn1", "bn2")),
    "shared-outputs-without-names": Case(TWO.replace(", m1, v1", "").replace(", m2, v2", ""), own("bn1", "bn2")),
    "shared-mean": Case(
        TWO.replace("(r, s, b, m, v)", "(r, s, b, m, w)"),
        [("bn1/running_mean", "v"), ("bn2/running_mean", "w")],
        f"{SHARED}, float[2] w = {{2, 1}}",
    ),
    "shared-by-identity": Case(
        "i = Identity(m) j = Identity(i) k = Identity(v) " + TWO.replace("(r, s, b, m, v)", "(r, s, b, j, k)"),
        own("bn1", "bn2"),
    ),
    "identity": Case("i = Identity(m) j = Identity(i) " + ONE.replace(" m,", " j,"), SOLE),
    "constants": Case(
        "m = Constant <value = float[2] {0.5, 0}> () v = Constant <value = float[2] {1, 2}> () " + ONE,
        SOLE,
        PARAMETERS,
    ),
    "shared-constants": Case(
        "m = Constant <value_floats = [0.5, 0.0]> () v = Constant <value_floats = [1.0, 2.0]> () " + TWO,
        own("bn1", "bn2"),
        PARAMETERS,
    ),
    "computed": Case(
        """n = Constant <value = int64[1] {2}> ()
        m = ConstantOfShape(n) h = Cast <to = 1> (v16) v = Add(h, one) """
        + ONE,
        own("bn"),
        f"{PARAMETERS}, float16[2] v16 = {{0, 1}}, float[1] one = {{1}}",
    ),
    "aliased": Case(f"[bn] z, mn, vn = {BN} (x, one, zero, zero, one)", own("bn"), ALIASED),
    "aliased-and-shared": Case(TWO.replace("s, b, m, v", "one, zero, zero, one"), own("bn1", "bn2"), ALIASED),
    "aliased-with-a-frozen-one": Case(
        TWO.replace("s, b, m, v", "one, zero, zero, one"), own("bn1", "bn2"), ALIASED, options={"frozen": ["bn1"]}
    ),
    "aliased-all-frozen": Case(
        TWO.replace("s, b, m, v", "one, zero, zero, one"), own("bn1", "bn2"), ALIASED, options={"frozen": ["*"]}
    ),
    "one-mean-is-another-variance": Case(
        TWO.replace("(x, s, b, m, v)", "(x, s, b, v, m)"),
        own("bn1", "bn2"),
        f"{PARAMETERS}, float[2] m = {{0.5, 1}}, float[2] v = {{1, 2}}",
    ),
    "mean-is-the-variance": Case(ONE.replace("m, v)", "v, v)"), own("bn"), f"{PARAMETERS}, float[2] v = {{1, 2}}"),
    "read-by-an-op": Case(
        ONE.replace("z,", "y,")
        + " axis = Constant <value = int64[1] {1}> () u = Unsqueeze(m, axis) z = Add(y, u)",
        [("bn/running_mean", "v")],
    ),
    "tied-weights": Case(
        TWO.replace("(r, s, b, m, v)", "(r, b, s, m2, v2)").replace("z, m2, v2 =", "z, mm, vv ="),
        [("m", "v"), ("m2", "v2")],
        f"{SHARED}, float[2] m2 = {{0, 1}}, float[2] v2 = {{1, 3}}",
    ),
    "frozen-first": Case(TWO, [("m", "v"), *own("bn2")], options={"frozen": ["bn1"]}),
    "frozen-last": Case(TWO, [*own("bn1"), ("m", "v")], options={"frozen": ["bn2"]}),
    "frozen-by-the-model": Case(
        TWO.replace(f"z, m2, v2 = {BN}", "z = BatchNormalization"), [*own("bn1"), ("m", "v")]
    ),
    "training-by-option": Case(
        TWO.replace(f"z, m2, v2 = {BN}", "z = BatchNormalization"),
        own("bn1", "bn2"),
        options={"training": ["*"]},
    ),
    "chain": Case(TWO, [("m", "v")] * 2, options={"shared_statistics": "chain"}),
    "chain-outputs-without-names": Case(
        TWO.replace(", m1, v1", "").replace(", m2, v2", ""),
        [("m", "v")] * 2,
        options={"shared_statistics": "chain"},
    ),
    "chain-aliased": Case(
        TWO.replace("s, b, m, v", "one, zero, zero, one"),
        [("zero/running_mean", "one/running_var")] * 2,
        ALIASED,
        options={"shared_statistics": "chain"},
    ),
    "chain-with-a-frozen-one": Case(
        TWO.replace("z,", "c,") + f" [bn3] z, m3, v3 = {BN} (c, s, b, m, v)",
        [("m", "v")] * 3,
        options={"shared_statistics": "chain", "frozen": ["bn2"]},
    ),
    "chain-of-one": Case(
        TWO, [*own("bn1"), ("m", "v")], options={"shared_statistics": "chain", "frozen": ["bn2"]}
    ),
    "functions": Case(
        "[one] y = local.norm(x, s, b, m, v) [two] z = local.norm(y, s, b, m, v)",
        own("inner", "inner_2"),
        functions=FUNCTION,
    ),
    "functions-without-names": Case(
        "y = local.norm(x, s, b, m, v) z = local.norm(y, s, b, m, v)",
        own("node", "node_2"),
        functions=FUNCTION.replace("[inner] ", ""),
    ),
    "a-subgraph-reads-them": Case(
        f"""{ONE} c = Constant <value = bool {{1}}> ()
        aux = If(c) <then_branch = t () => (float[2] p) {{ p = Identity(m) }},
            else_branch = e () => (float[2] r) {{ r = Add(m, v) }}>""",
        own("bn"),
        outputs="float loss, float[N, 2, 3] z, float[2] aux",
    ),
    "nodes-without-names": Case(TWO.replace("[bn1] ", "").replace("[bn2] ", ""), own("y", "z")),
    "names-that-are-taken": Case(
        TWO.replace("[relu] r = Relu(y)", "t = Relu(y) [add] r = Add(t, taken)"),
        [("bn1/running_mean_1", "bn1/running_var"), ("bn2/running_mean", "bn2/running_var_1")],
        f"{SHARED}, float taken = {{1}}, float also = {{1}}",
        names={"taken": "bn1/running_mean", "also": "bn2/running_var"},
    ),
    "initializers-that-are-inputs": Case(
        TWO, own("bn1", "bn2"), inputs="float[N, 2, 3] x, float[2] s, float[2] b, float[2] m, float[2] v"
    ),
    "inputs-without-a-default": Case(
        TWO,
        own("bn1", "bn2"),
        PARAMETERS,
        inputs="float[N, 2, 3] x, float[2] m, float[2] v",
        values={name: [1, 2] for pair in own("bn1", "bn2") for name in pair},
    ),
    "one-input-without-a-default": Case(
        ONE, SOLE, PARAMETERS, inputs="float[N, 2, 3] x, float[2] m, float[2] v", values={"m": [0, 1], "v": [1, 2]}
    ),
    "statistics-that-are-outputs": Case(
        TWO, own("bn1", "bn2"), outputs="float loss, float[N, 2, 3] z, float[2] m, float[2] m2, float[2] v1"
    ),
    "scale-and-shift-behind": Case(
        ONE.replace("z,", "y,") + " p = Mul(y, scale) z = Add(p, shift)",
        SOLE,
        f"{SHARED}, float[2, 1] scale = {{2, 3}}, float[1, 2, 1] shift = {{-1, 1}}",
    ),
    "dropout": Case(
        ONE.replace("z,", "y,")
        + """ ratio = Constant <value = float {0.5}> () on = Constant <value = bool {1}> ()
        z, mask = Dropout(y, ratio, on)""",
        SOLE,
    ),
    "weight-constant": Case(
        "w = Constant <value = float[2, 1] {1, 3}> () u = Mul(x, w) " + ONE.replace("(x,", "(u,"),
        SOLE,
        options={"wrt": ["w", "s"]},
    ),
    "double": Case(
        TWO,
        own("bn1", "bn2"),
        SHARED.replace("float", "double"),
        inputs="double[N, 2, 3] x",
        outputs="double loss, double[N, 2, 3] z",
    ),
    "half": Case(
        TWO,
        own("bn1", "bn2"),
        SHARED.replace("float[2] s", "float16[2] s").replace("float[2] b", "float16[2] b"),
        inputs="float16[N, 2, 3] x",
        outputs="float16 loss, float16[N, 2, 3] z",
    ),
    "opset-22": Case(TWO, own("bn1", "bn2"), opset=22, ir=10),
    **{
        f"opset-{opset}": Case(
            TWO.replace(BN, "BatchNormalization <momentum = 0.5>").replace(", m1, v1", "").replace(", m2, v2", ""),
            own("bn1", "bn2"),
            opset=opset,
            ir=ir,
            options={"training": ["*"]},
        )
        for opset, ir in ((9, 4), (13, 7))
    },
}
