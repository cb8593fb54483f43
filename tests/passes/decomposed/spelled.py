"""Batch norms spelled in primitives as text, and what the tests of their recognition do with them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from bngrad.io.files import to_proto
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass, candidates_of
from bngrad.passes.prepare.infer_types import InferTypesPass

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'

CONSTANTS = """
    eps = Constant <value = double {0.001}> () zero = Constant <value = double {0.0}> ()
    minus_half = Constant <value = double {-0.5}> ()
"""

FORWARD = {
    "centered": """
        m = ReduceMean <keepdims = 1> (x, axes) c = Sub (x, m) cc = Mul (c, c)
        v = ReduceMean <keepdims = 1> (cc, axes) ve = Add (v, eps) root = Sqrt (ve) r = Reciprocal (root)
        xhat = Mul (c, r) sx = Mul (xhat, scale) y = Add (sx, bias)""",
    "squares": """
        m = ReduceMean <keepdims = 1> (x, axes) c = Sub (x, m) xx = Mul (x, x)
        e = ReduceMean <keepdims = 1> (xx, axes) mm = Mul (m, m) d = Sub (e, mm) v = Max (d, zero)
        ve = Add (v, eps) r = Pow (ve, minus_half)
        k = Mul (r, scale) km = Mul (m, k) shift = Sub (bias, km) kx = Mul (x, k) y = Add (kx, shift)""",
    "divided": """
        m = ReduceMean <keepdims = 1> (x, axes) c = Sub (x, m) n = Size (x) nf = Cast <to = 11> (n)
        k = Size (m) kf = Cast <to = 11> (k) count = Div (nf, kf) q = ReduceSumSquare <keepdims = 1> (c, axes)
        v = Div (q, count) ve = Add (v, eps) r1 = Sqrt (ve) one = Div (ve, ve) r = Div (one, r1)
        xhat = Div (c, r1) sx = Mul (scale, xhat) y = Sum (bias, sx)""",
}
"""Y of x, scale and bias, whose shapes broadcast; they leave c = x - mean, m, v, ve and r = inv_std."""

BACKWARD = {
    "torch": """
        s = ReduceSum <keepdims = 1> (dy, axes) pc = Mul (dy, c) p = ReduceSum <keepdims = 1> (pc, axes)
        dscale = Mul (p, r) dbias = Identity (s)
        pn = Div (p, count_) rr = Mul (r, r) pr = Mul (pn, rr) through = Mul (c, pr) t = Sub (dy, through)
        sn = Div (s, count_) u = Sub (t, sn) rs = Mul (r, scale) dx = Mul (u, rs)""",
    "xla": """
        dbias = ReduceSum <keepdims = 1> (dy, axes) pc = Mul (dy, c) p = ReduceSum <keepdims = 1> (pc, axes)
        dscale = Mul (p, r) w_ = Div (p, ve) cq = Mul (c, w_) nd = Mul (count_, dy) a = Sub (nd, dbias)
        b_ = Sub (a, cq) rn = Div (r, count_) k_ = Mul (scale, rn) dx = Mul (k_, b_)""",
    "vjp": """
        dbias = ReduceSum <keepdims = 1> (dy, axes) g = Mul (dy, scale) dc1 = Mul (g, r) gc = Mul (g, c)
        dr = ReduceSum <keepdims = 1> (gc, axes) ds_ = Div (dr, scale) dscale = Mul (ds_, r)
        half = Mul (dr, minus_half) r2 = Mul (r, r) r3 = Mul (r2, r) dv = Mul (half, r3) dvn = Div (dv, count_)
        twice = Add (c, c) dc2 = Mul (twice, dvn) dc = Add (dc1, dc2) dm = ReduceSum <keepdims = 1> (dc, axes)
        dmn = Div (dm, count_) dx = Sub (dc, dmn)""",
}
"""The gradients dx, dscale and dbias of dy, as PyTorch, as XLA, and as reverse mode writes them."""


def graph(body, shape="4,3,5,5", parameter="1,3,1,1", axes="0, 2, 3", count=100, outputs=None, inputs=""):
    """The text of a model in double.

    Args:
        body: Its nodes, after the constants.
        shape: Of x and dy.
        parameter: Of scale and bias.
        axes: That are reduced.
        count: The number of elements that are reduced.
        outputs: Their names with types; by default y, dx, dscale and dbias, as far as the body has them.
        inputs: Further inputs.
    """
    data, vector = f"double[{shape}]", f"double[{parameter}]"
    if outputs is None:
        types = {"y": data, "dx": data, "dscale": vector, "dbias": vector}
        outputs = ", ".join(f"{kind} {name}" for name, kind in types.items() if f" {name} = " in body)
    return f"""{HEADER}g ({data} x, {vector} scale, {vector} bias, {data} dy{inputs}) => ({outputs}) {{
        axes = Constant <value_ints = [{axes}]> () count_ = Constant <value = double {{{count}.0}}> ()
        {CONSTANTS} {body} }}"""


def recognized(text, **options):
    """A parsed model before and after the pass, and the candidates."""
    proto = onnx.parser.parse_model(text)
    onnx.checker.check_model(proto)
    model = ir.from_proto(proto)
    InferTypesPass()(model)
    ImportDecomposedPass(**options)(model)
    return proto, model, candidates_of(model)


def kinds(candidates):
    """The number of batch norms of each kind that were recognized."""
    return dict(Counter(candidate.kind for candidate in candidates if candidate.taken))


def op_counts(model):
    """The number of nodes of each op in the main graph, without constants."""
    return Counter(node.op_type for node in model.graph if node.op_type != "Constant")


def random_feeds(proto, seed=0):
    """Numbers for the inputs of a model: positive where the name is that of a variance."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        shape = [dimension.dim_value or 2 for dimension in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        array = rng.standard_normal(shape)
        feeds[value.name] = (np.abs(array) + 0.5 if "var" in value.name else array + 0.5).astype(dtype)
    return feeds


def require_same_numbers(proto, model, tolerance=1e-9, seed=0):
    """Runs both in onnx's reference implementation, the ops of bngrad as functions."""
    EmbedFunctionsPass(functions=True)(model)
    after = to_proto(model)
    onnx.checker.check_model(after)
    assert [output.name for output in after.graph.output] == [output.name for output in proto.graph.output]
    feeds = random_feeds(proto, seed)
    want, got = ReferenceEvaluator(proto).run(None, feeds), ReferenceEvaluator(after).run(None, feeds)
    for value, a, b in zip(proto.graph.output, want, got, strict=True):
        assert a.shape == b.shape, value.name
        assert a.dtype == b.dtype, value.name
        np.testing.assert_allclose(b, a, atol=tolerance * max(1.0, np.abs(a).max()), rtol=0, err_msg=value.name)
