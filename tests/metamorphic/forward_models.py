"""Small models with a name for every dimension.

The relations use the names: permuting the batch permutes dimension N of all inputs and outputs, and permuting the
channels of a layer permutes them in its weights, statistics and gradients. A gradient has the dimensions of its
input.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import onnx.parser


@dataclass(frozen=True)
class ForwardModel:
    """A forward model. Its loss is ``total`` of the body, a sum over the batch, times the input gain."""

    name: str
    body: str
    """The nodes in ONNX's text format; `_PAIRS` replaces attributes in braces."""
    tensors: dict[str, str]
    """The dimensions of each input, by name: sizes or names of dimensions."""
    sizes: dict[str, int]
    wrt: tuple[str, ...]
    running: dict[str, str]
    """The dimensions of the new running statistics."""
    element: str = "float"
    opset: int = 18
    permuted: tuple[str, ...] = ()
    """The dimensions that may be permuted, apart from N."""
    shifted: tuple[tuple[str, str, float], ...] = ()
    """A bias before a batch norm, its running mean, and the change of the mean's input per unit of the bias."""
    downstream: tuple[str, ...] = ()
    """Gradients of inputs after which there is no batch norm with statistics that depend on them."""
    decomposed: bool = False
    """True if it has gradients in training mode without an op in ORT's dialect."""
    transposable: bool = False
    """True if it has two spatial dimensions, H and W, that can be swapped."""

    def __str__(self):
        return self.name

    def dims(self, name):
        """Returns the dimensions of an input, a gradient or another output, as a list."""
        name = name.removesuffix("_grad")
        return {**self.tensors, **self.running, "gain": "", "loss": ""}[name].split()

    def shape(self, name):
        return tuple(self.sizes.get(dim) or int(dim) for dim in self.dims(name))

    def proto(self, *, transposed=False):
        """Returns the forward model; ``transposed`` swaps the spatial dimensions."""
        inputs = [self._declared(name, transposed=transposed) for name in (*self.tensors, "gain")]
        outputs = [
            f"{self.element} loss",
            *(f"{self.element}[{self.sizes[d]}] {n}" for n, d in self.running.items()),
        ]
        body = self.body
        for left, right in _PAIRS:
            body = body.replace(left, right[transposed])
        return onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : {self.opset}]>\n'
            f"g ({', '.join(inputs)}) => ({', '.join(outputs)}) {{\n{body}\nloss = Mul(total, gain)\n}}"
        )

    def _declared(self, name, *, transposed):
        element = "int64" if name == "target" else self.element
        dims = transposed_dims(self.dims(name)) if transposed else self.dims(name)
        sizes = ["N" if dim == "N" else str(self.sizes.get(dim) or dim) for dim in dims]
        return f"{element}[{','.join(sizes)}] {name}" if sizes else f"{element} {name}"

    def feeds(self):
        """Draws inputs of about 1; variances are positive, targets below K."""
        dtype = {"float": np.float32, "double": np.float64}[self.element]
        feeds = {"gain": np.array(1, dtype)}
        for name in self.tensors:
            rng = np.random.default_rng([5, zlib.crc32(name.encode()), zlib.crc32(self.name.encode())])
            shape = self.shape(name)
            if name == "target":
                feeds[name] = rng.integers(0, self.sizes["K"], shape)
                continue
            if name.startswith(("var", "scale", "positive")):
                drawn = rng.uniform(0.5, 2, shape)
            else:
                drawn = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1) if name[0] == "w" else 1)
            feeds[name] = np.asarray(drawn, dtype)
        return feeds


_PAIRS = [
    ("{pads-1021}", ("pads = [1, 0, 2, 1]", "pads = [0, 1, 1, 2]")),
    ("{pads-0110}", ("pads = [0, 1, 1, 0]", "pads = [1, 0, 0, 1]")),
    ("{strides-21}", ("strides = [2, 1]", "strides = [1, 2]")),
    ("{dilations-12}", ("dilations = [1, 2]", "dilations = [2, 1]")),
    ("{kernel-23}", ("kernel_shape = [2, 3]", "kernel_shape = [3, 2]")),
]
"""The attributes of the original and of the transposed model, by placeholder."""

_OTHER = {"H": "W", "W": "H", "kh": "kw", "kw": "kh"}


def transposed_dims(dims):
    """Swaps the last two dimensions if they are spatial."""
    return [*dims[:-2], *dims[:-3:-1]] if len(dims) > 2 and dims[-2] in _OTHER else dims


def _norm(index, x):
    names = f"scale{index}, bias{index}, mean{index}, var{index}"
    return (
        f"[bn{index}] n{index}, new_mean{index}, new_var{index} = BatchNormalization"
        f"<epsilon = 0.015625, momentum = 0.75, training_mode = 1>({x}, {names})"
    )


def _norm_tensors(index, dim):
    return {f"{name}{index}": dim for name in ("scale", "bias", "mean", "var")}


def _running(**dims):
    return {f"new_{name}{index[1:]}": dim for index, dim in dims.items() for name in ("mean", "var")}


CONV = ForwardModel(
    "conv",
    f"""
    [conv1] h1 = Conv<{{pads-1021}}, {{strides-21}}>(x, w1, b1)
    {_norm(1, "h1")}
    [relu1] r1 = Relu(n1)
    [pool] p = MaxPool<{{kernel-23}}, strides = [1, 1]>(r1)
    [conv2] h2 = Conv<{{dilations-12}}, {{pads-0110}}>(p, w2)
    {_norm(2, "h2")}
    [relu2] r2 = Relu(n2)
    [conv3] h3 = Conv(r2, w3)
    {_norm(3, "h3")}
    [sum] s = Add(n3, r2)
    [act] a = Sigmoid(s)
    [bend] t = Tanh(a)
    [average] m = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(t)
    [gap] g = GlobalAveragePool(m)
    [flat] f = Flatten(g)
    [fc] z = Gemm<transB = 1>(f, w4, b4)
    [loss] total = SoftmaxCrossEntropyLoss<reduction = "sum">(z, target)
    """,
    {
        "x": "N c0 H W",
        "target": "N",
        "w1": "c1 c0 kh kw",
        "b1": "c1",
        "w2": "c2 c1 kh kw",
        "w3": "c2 c2 1 1",
        "w4": "K c2",
        "b4": "K",
        **_norm_tensors(1, "c1"),
        **_norm_tensors(2, "c2"),
        **_norm_tensors(3, "c2"),
    },
    {"N": 6, "c0": 3, "c1": 5, "c2": 4, "K": 3, "H": 11, "W": 9, "kh": 3, "kw": 3},
    ("x", "w1", "b1", "scale1", "bias1", "w2", "scale2", "bias2", "w3", "scale3", "bias3", "w4", "b4"),
    _running(_1="c1", _2="c2", _3="c2"),
    permuted=("c0", "c1", "c2", "K"),
    shifted=(("b1", "mean1", 1),),
    downstream=("w4_grad", "b4_grad", "scale3_grad", "bias3_grad"),
    transposable=True,
)

MIXED = ForwardModel(
    "mixed",
    f"""
    [depthwise] h1 = Conv<group = 4, pads = [1, 1, 1, 1]>(x, w1)
    {_norm(1, "h1")}
    [leaky] r1 = LeakyRelu<alpha = 0.125>(n1)
    [grouped] h2 = Conv<group = 2, strides = [2, 2]>(r1, w2, b2)
    {_norm(2, "h2")}
    [times] m2 = Mul(n2, factor)
    [plus] a2 = Add(m2, term)
    [relu2] r2 = Relu(a2)
    [up] u = ConvTranspose<strides = [2, 2], pads = [0, 1, 1, 0]>(r2, w3)
    [max] p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(u)
    [average] q = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(u)
    [flat1] f1 = Flatten(p)
    [flat2] f2 = Flatten(q)
    [both] f = Concat<axis = 1>(f1, f2)
    [square] ff = Mul(f, f)
    [root] y = Sqrt(ff)
    [total] total = ReduceSum<keepdims = 0>(y)
    """,
    {
        "x": "N c0 H W",
        "w1": "c0 1 kh kw",
        "w2": "c2 2 kh kw",
        "b2": "c2",
        "w3": "c2 c3 2 2",
        "factor": "c2 1 1",
        "term": "c2 1 1",
        **_norm_tensors(1, "c0"),
        **_norm_tensors(2, "c2"),
    },
    {"N": 4, "c0": 4, "c2": 6, "c3": 2, "H": 9, "W": 7, "kh": 3, "kw": 3},
    ("x", "w1", "scale1", "bias1", "w2", "b2", "scale2", "bias2", "factor", "term", "w3"),
    _running(_1="c0", _2="c2"),
    permuted=("c3",),
    shifted=(("b2", "mean2", 1),),
    downstream=("w3_grad", "scale2_grad", "bias2_grad", "factor_grad", "term_grad"),
)

DENSE = ForwardModel(
    "dense",
    f"""
    [fc1] h1 = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(x, w1, b1)
    {_norm(1, "h1")}
    [tanh] t1 = Tanh(n1)
    [fc2] h2 = MatMul(t1, w2)
    {_norm(2, "h2")}
    [relu] r2 = Relu(n2)
    [sigmoid] s2 = Sigmoid(h2)
    [quotient] q = Div(r2, s2)
    [difference] d = Sub(q, v)
    [exp] e = Exp(d)
    [three] three = Constant<value = double {{3.0}}>()
    [cube] cube = Pow(e, three)
    [log] l = Log(cube)
    [softmax] sm = Softmax<axis = 1>(l)
    [product] ps = Mul(sm, h2)
    [axis] axis = Constant<value_ints = [1]>()
    [max] mx = ReduceMax<keepdims = 1>(ps, axis)
    [low] low = Constant<value = double {{-0.5}}>()
    [high] high = Constant<value = double {{0.75}}>()
    [clip] cl = Clip(ps, low, high)
    [join] j = Concat<axis = 1>(mx, cl)
    [mean] me = ReduceMean<keepdims = 0>(j, axis)
    [weigh] we = Mul(me, positive)
    [logits] z = MatMul(l, w3)
    [loss] first = SoftmaxCrossEntropyLoss<reduction = "sum">(z, target, positives)
    [second] second = ReduceSum<keepdims = 0>(we)
    [total] total = Add(first, second)
    """,
    {
        "x": "N c0",
        "target": "N",
        "w1": "c1 c0",
        "b1": "c1",
        "w2": "c1 c2",
        "v": "c2",
        "w3": "c2 K",
        "positive": "1",
        "positives": "K",
        **_norm_tensors(1, "c1"),
        **_norm_tensors(2, "c2"),
    },
    {"N": 8, "c0": 5, "c1": 7, "c2": 6, "K": 4},
    ("x", "w1", "b1", "scale1", "bias1", "w2", "scale2", "bias2", "v", "w3", "positive"),
    _running(_1="c1", _2="c2"),
    element="double",
    opset=20,
    permuted=("c0", "c1", "c2", "K"),
    shifted=(("b1", "mean1", 2),),
    downstream=("w3_grad", "v_grad", "scale2_grad", "bias2_grad"),
)

NORMS = ForwardModel(
    "norms",
    f"""
    [instance] i1 = InstanceNormalization<epsilon = 0.015625>(x, scale_i, bias_i)
    [relu] r1 = Relu(i1)
    [mix] h = MatMul(w1, r1)
    [group] g1 = GroupNormalization<epsilon = 0.015625, num_groups = 2>(h, scale_g, bias_g)
    {_norm(1, "g1")}
    [layer] l1 = LayerNormalization<axis = -1, epsilon = 0.015625>(n1, scale_l, bias_l)
    [elu] e = Elu<alpha = 0.75>(l1)
    [gelu] g = Gelu(e)
    [softplus] s = Softplus(g)
    [turn] t = Transpose<perm = [2, 0, 1]>(s)
    [parts] t1, t2 = Split<axis = 0, num_outputs = 2>(t)
    [sub] d = Sub(t1, t2)
    [abs] a = Abs(d)
    [choose] c = Greater(t1, t2)
    [where] w = Where(c, a, t2)
    [sum] total = ReduceSum<keepdims = 0>(w)
    """,
    {
        "x": "N c0 W",
        "scale_i": "c0",
        "bias_i": "c0",
        "w1": "c1 c0",
        "scale_g": "c1",
        "bias_g": "c1",
        "scale_l": "W",
        "bias_l": "W",
        **_norm_tensors(1, "c1"),
    },
    {"N": 5, "c0": 3, "c1": 4, "W": 6},
    ("x", "scale_i", "bias_i", "w1", "scale_g", "bias_g", "scale1", "bias1", "scale_l", "bias_l"),
    _running(_1="c1"),
    opset=21,
    permuted=("c0",),
    shifted=(("bias_g", "mean1", 1),),
    decomposed=True,
    downstream=("scale1_grad", "scale_l_grad", "bias_l_grad"),
)

FORWARD_MODELS = (CONV, MIXED, DENSE, NORMS)
