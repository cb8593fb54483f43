"""Fake quantization and int4 models with adapters, beside PyTorch."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad  # noqa: E402

RNG = np.random.default_rng(2)


def run(model, feeds, **options):
    graph = bngrad.differentiate(model, **options)
    names = bngrad.read_training_graph(graph).gradients
    return dict(zip(names, bngrad.session(graph).run(list(names.values()), feeds), strict=True))


@pytest.mark.parametrize("axis", [None, 1])
def test_learned_scales(axis):
    """The gradients of PyTorch's learnable fake quantization, of the data and of the scale."""
    scale = np.float32(0.01) if axis is None else np.array([0.02, 0.01, 0.04], "f")
    zero = np.zeros(scale.shape, np.int8)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]> g (float[4, 3, 5] x, float[4, 3, 5] c) => (float loss) {{
        q = QuantizeLinear <axis = {axis or 1}> (x, s, z) y = DequantizeLinear <axis = {axis or 1}> (q, s, z)
        p = Mul (y, c) loss = ReduceSum <keepdims = 0> (p) }}"""
    )
    model.graph.initializer.extend(
        [onnx.numpy_helper.from_array(scale, "s"), onnx.numpy_helper.from_array(zero, "z")]
    )
    x, c = (RNG.normal(size=(4, 3, 5)).astype("f") for _ in range(2))
    actual = run(model, {"x": x, "c": c}, wrt=["x", "s"])
    leaf = torch.from_numpy(x).requires_grad_()
    learned = torch.from_numpy(np.atleast_1d(scale)).requires_grad_()
    zeros = torch.zeros(learned.shape)
    if axis is None:
        y = torch._fake_quantize_learnable_per_tensor_affine(leaf, learned, zeros, -128, 127, 1.0)
    else:
        y = torch._fake_quantize_learnable_per_channel_affine(leaf, learned, zeros, axis, -128, 127, 1.0)
    (y * torch.from_numpy(c)).sum().backward()
    assert 0 < np.count_nonzero(actual["x"]) < x.size
    np.testing.assert_array_equal(actual["x"], leaf.grad.numpy())
    np.testing.assert_allclose(np.atleast_1d(actual["s"]), learned.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_validate_against_torch_refuses_roundings():
    """Nothing in PyTorch would show the gradient of the quantizer."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 19]> g (float[2, 3] x) => (float loss) <
        float[3, 2] w = {1, 2, 3, 4, 5, 6}, float s = {0.1}> {
        q = QuantizeLinear (w, s) d = DequantizeLinear (q, s) m = MatMul (x, d)
        loss = ReduceSum <keepdims = 0> (m) }"""
    )
    with pytest.raises(bngrad.UnsupportedNodeError, match=r"^QuantizeLinear node 'q' .* a gradient passes it"):
        bngrad.validate(model, against="torch")


class Quantized(nn.Module):
    """A network as quantization-aware training has it: weights of 8 bits by channel, activations from 0 to 127."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("scales", torch.linspace(0.002, 0.01, 8))
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int32))

    def forward(self, x):
        weight = torch.fake_quantize_per_channel_affine(self.first.weight, self.scales, self.zeros, 0, -128, 127)
        y = functional.linear(x, weight, self.first.bias).relu()
        return self.second(torch.fake_quantize_per_tensor_affine(y, 0.01, 0, 0, 127))


def trained(optimizer, compute):
    """The losses of 20 steps in PyTorch."""
    losses = []
    for _ in range(20):
        loss = compute()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def exported(module, x, *, dynamo):
    data = None if dynamo else io.BytesIO()
    training = {} if dynamo else {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, (x,), data, input_names=["x"], dynamo=dynamo, verbose=False, **training
        )
    return program.model_proto if dynamo else onnx.load_from_string(data.getvalue())


@pytest.mark.parametrize("dynamo", [True, False])
def test_quantization_aware_training(dynamo):
    """Exported files train as the module does, 20 steps long."""
    torch.manual_seed(0)
    module = Quantized()
    x, labels = torch.randn(32, 6), torch.randint(0, 3, (32,))
    step = bngrad.training_step(exported(module, x, dynamo=dynamo), loss_fn="cross_entropy")
    trainer = bngrad.Trainer(step, learning_rate=0.3)
    losses = [trainer.step(x=x.numpy(), labels=labels.numpy()) for _ in range(20)]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    expected = trained(optimizer, lambda: functional.cross_entropy(module(x), labels))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert losses[-1] < 0.8 * losses[0]


HEADS, KV_HEADS, SIZE, WIDTH, HIDDEN, CLASSES, LENGTH, RANK, BLOCK = 4, 2, 16, 32, 64, 11, 7, 4, 16
LAYERS = {"qkv": (WIDTH, (HEADS + 2 * KV_HEADS) * SIZE), "out": (HEADS * SIZE, WIDTH)}
LAYERS |= {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}


def quantized_weight(columns, rows):
    """A weight of 4 bits: its bytes, scales, packed zero points, and the numbers that they mean."""
    blocks = columns // BLOCK
    numbers = RNG.integers(0, 16, (rows, blocks, BLOCK))
    zeros = RNG.integers(6, 10, (rows, blocks))
    scales = RNG.uniform(0.02, 0.04, (rows, blocks)).astype("f")
    weight = ((numbers - zeros[..., None]) * scales[..., None]).reshape(rows, columns)
    pad = np.zeros((rows, blocks % 2), int)
    return (packed(numbers), scales, packed(np.concatenate([zeros, pad], 1)), weight.astype("f"))


def packed(numbers):
    return (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)


def block_with_adapters():
    """A block of a language model as ONNX: int4 layers with adapters, GroupQueryAttention, a head of floats."""
    arrays, weights, nodes = {}, {}, []

    def layer(name, x):
        columns, rows = LAYERS[name]
        b, s, z, weights[name] = quantized_weight(columns, rows)
        down = RNG.normal(size=(columns, RANK)).astype("f") / 8
        arrays.update({f"{name}.b": b, f"{name}.s": s, f"{name}.z": z})
        arrays.update({f"{name}.A": down, f"{name}.B": np.zeros((RANK, rows), "f")})
        attributes = f"K = {columns}, N = {rows}, bits = 4, block_size = {BLOCK}"
        nodes.append(f"""
            "{name}.q" = com.microsoft.MatMulNBits <{attributes}> ({x}, "{name}.b", "{name}.s", "{name}.z")
            "{name}.d" = MatMul ({x}, "{name}.A") "{name}.u" = MatMul ("{name}.d", "{name}.B")
            "{name}.y" = Add ("{name}.q", "{name}.u")""")
        return f'"{name}.y"'

    angles = np.outer(np.arange(LENGTH), 10.0 ** -np.linspace(0, 2, SIZE // 2))
    arrays |= {"cos": np.cos(angles).astype("f"), "sin": np.sin(angles).astype("f")}
    arrays["head"] = RNG.normal(size=(WIDTH, CLASSES)).astype("f") / 6
    qkv = layer("qkv", "x")
    attributes = f"num_heads = {HEADS}, kv_num_heads = {KV_HEADS}, do_rotary = 1"
    nodes.append(f"a, pk, pv = com.microsoft.GroupQueryAttention <{attributes}> ({qkv}, , , , , n, t, cos, sin)")
    out = layer("out", "a")
    nodes.append(f"r = Add (x, {out})")
    up = layer("up", "r")
    nodes.append(f"g = Relu ({up})")
    down = layer("down", "g")
    nodes.append(f"h = Add (r, {down}) l = MatMul (h, head) y = Transpose <perm = [0, 2, 1]> (l)")
    text = f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[N, {LENGTH}, {WIDTH}] x, int32[N] n, int32 t) => (float[N, {CLASSES}, {LENGTH}] y) {{
        {" ".join(nodes)} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model, arrays, weights


class Block(nn.Module):
    """The same in PyTorch, with the dequantized weights."""

    def __init__(self, arrays, weights):
        super().__init__()
        self.weights = {name: torch.from_numpy(weight) for name, weight in weights.items()}
        self.cos, self.sin = (torch.from_numpy(arrays[name])[:, None] for name in ("cos", "sin"))
        names = [f"{name}.{part}" for name in LAYERS for part in "AB"] + ["head"]
        self.trained = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(torch.from_numpy(arrays[name].copy())) for name in names}
        )

    def layer(self, name, x):
        return x @ self.weights[name].T + x @ self.trained[f"{name}_A"] @ self.trained[f"{name}_B"]

    def turned(self, x):
        first, second = x.chunk(2, -1)
        return torch.cat((first * self.cos - second * self.sin, second * self.cos + first * self.sin), -1)

    def forward(self, x):
        heads = self.layer("qkv", x).unflatten(-1, (-1, SIZE))
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], 2)
        q, k, v = (part.transpose(1, 2) for part in (self.turned(q), self.turned(k), v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        r = x + self.layer("out", attended.transpose(1, 2).flatten(2))
        return (r + self.layer("down", self.layer("up", r).relu())) @ self.trained["head"]


def test_adapters_of_an_int4_model():
    """The adapters and the head are the weights, and train as in PyTorch, 20 steps long."""
    model, arrays, weights = block_with_adapters()
    x = RNG.normal(size=(8, LENGTH, WIDTH)).astype("f")
    labels = RNG.integers(0, CLASSES, (8, LENGTH))
    step = bngrad.training_step(model, loss_fn="cross_entropy", optimizer="adamw")
    trainer = bngrad.Trainer(step, learning_rate=0.01)
    ends = {"n": np.full(8, LENGTH - 1, np.int32), "t": np.int32(LENGTH)}
    losses = [trainer.step(x=x, labels=labels, **ends) for _ in range(20)]
    module = Block(arrays, weights)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    x, labels = torch.from_numpy(x), torch.from_numpy(labels).flatten()
    expected = trained(optimizer, lambda: functional.cross_entropy(module(x).flatten(0, 1), labels))
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    assert losses[-1] < 0.7 * losses[0]
    state = trainer.state_dict()
    for name in module.trained:
        # AdamW divides by gradients that nearly vanish, so single elements may differ by more.
        want = module.trained[name].detach().numpy()
        assert np.linalg.norm(state[name.replace("_", ".")] - want) <= 3e-3 * np.linalg.norm(want), name
    frozen = arrays.keys() - {name.replace("_", ".") for name in module.trained}
    assert not frozen & state.keys()
