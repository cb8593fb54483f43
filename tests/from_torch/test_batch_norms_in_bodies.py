"""Batch norms in bodies of If and Loop, trained beside PyTorch's eager mode."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402

import bngrad  # noqa: E402

BN = "BatchNormalization <training_mode = 1>"
IF = f"""zero = Constant <value = float {{0}}> () total = ReduceSum <keepdims = 0> (x) c = Greater (total, zero)
    h = If (c) <then_branch = t () => (float[N, 3] i) {{ [up] i, p, q = {BN} (z, s, b, m, v) }},
        else_branch = e () => (float[N, 3] j) {{ n = Neg (z) [down] j, p2, q2 = {BN} (n, SECOND) }}>"""
LOOP = f"""h = Loop <body = l (int64 i, bool go, float[N, 3] u) => (bool on, float[N, 3] o) {{
        on = Identity (go) w0 = MatMul (u, w) [up] o0, p, q = {BN} (w0, s, b, m, v) o = Tanh (o0) }}> (n, , z)"""
PARAMETERS = "float[3, 3] w, float[3] s, float[3] b, float[3] m, float[3] v"
SECOND = "float[3] s2, float[3] b2, float[3] m2, float[3] v2"
RATE, STEPS = 0.05, 12


class Net(nn.Module):
    def __init__(self, place, shared):
        super().__init__()
        self.place = place
        self.w = nn.Parameter(torch.eye(3) + 0.1 * torch.randn(3, 3))
        self.up = nn.BatchNorm1d(3)
        self.down = self.up if shared else nn.BatchNorm1d(3)
        for norm in (self.up, self.down):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)

    def forward(self, x, n=None):
        z = x @ self.w
        if self.place == "if":
            h = self.up(z) if x.sum() > 0 else self.down(-z)
        else:
            h = z
            for _ in range(int(n)):
                h = torch.tanh(self.up(h @ self.w))
        return h


def forward_model(net, text, inputs, names):
    """The model with the values of a module."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[N, 3] x, float[N, 3] y{inputs}) =>
        (float loss, float[N, 3] h) {{ z = MatMul (x, w) {text} d = Sub (h, y) d2 = Mul (d, d)
        loss = ReduceMean <keepdims = 0> (d2) }}"""
    )
    state = net.state_dict()
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(state[key].numpy().copy(), name) for name, key in names.items()
    )
    return proto


def keys(module, suffix=""):
    parts = {"s": "weight", "b": "bias", "m": "running_mean", "v": "running_var"}
    return {f"{name}{suffix}": f"{module}.{key}" for name, key in parts.items()}


OWN = {"w": "w", **keys("up")}
CASES = {
    "if, two modules": ("if", False, IF.replace("SECOND", "s2, b2, m2, v2"), "", {**OWN, **keys("down", "2")}, {}),
    "if, one module": ("if", True, IF.replace("SECOND", "s, b, m, v"), "", OWN, {"shared_statistics": "chain"}),
    "loop": ("loop", True, LOOP, ", int64 n", OWN, {}),
}


def train(net, call, *, counts=False):
    """Trains a module beside a step, whose losses must be equal."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for index in range(STEPS):
        x, y = torch.randn(6, 3) + (0.5 if index % 3 else -0.5), torch.randn(6, 3)
        more = {"n": np.array(index % 4)} if counts else {}
        loss = ((net(x, **more) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(call(x.numpy(), y.numpy(), **more), loss.item(), rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_training_equals_eager_mode(case):
    place, shared, text, inputs, names, options = CASES[case]
    net = Net(place, shared)
    model = forward_model(net, text, inputs, names)
    step = bngrad.training_step(model, loss="loss", optimizer=bngrad.SGD(), running_variance="unbiased", **options)
    trainer = bngrad.Trainer(step, learning_rate=RATE)
    train(net, lambda x, y, **more: trainer.step(x=x, y=y, **more), counts=bool(inputs))
    state, expected = trainer.state_dict(), net.state_dict()
    for name, key in names.items():
        np.testing.assert_allclose(state[name], expected[key].numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
    net.eval()
    inference = bngrad.session(trainer.finalize())
    for sign in (1, -1):
        x = torch.randn(5, 3) + sign
        more = {"n": np.array(2)} if inputs else {}
        (got,) = inference.run(["h"], {"x": x.numpy(), **more})
        np.testing.assert_allclose(got, net(x, **more).detach().numpy(), rtol=1e-5, atol=1e-5)


class Condition(nn.Module):
    """A Net whose If is torch.cond, which PyTorch exports only in evaluation mode."""

    def __init__(self, net):
        super().__init__()
        self.w, self.up, self.down = net.w, net.up, net.down

    def forward(self, x):
        z = x @ self.w
        return torch.cond(x.sum() > 0, self.up, lambda z: self.down(-z), (z,))


@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_exported_condition_is_put_in_training_mode(shared):
    """The file records that two calls read the buffers of one module."""
    net = Net("if", shared).eval()
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    model = torch.onnx.export(
        Condition(net).eval(),
        (torch.randn(4, 3),),
        dynamo=True,
        optimize=False,
        verbose=False,
        dynamic_shapes=shapes,
    ).model_proto
    step = bngrad.training_step(model, loss_fn="mse", training=["*"], optimizer=bngrad.SGD())
    trainer = bngrad.Trainer(step, learning_rate=RATE)
    names = step.info.names("weight", "running_statistic")
    assert len(names) == (5 if shared else 9)
    train(net.train(), lambda x, y: trainer.step(x=x, target=y))
    state, expected = trainer.state_dict(), net.state_dict()
    for name in names:
        np.testing.assert_allclose(state[name], expected[name].numpy(), rtol=1e-5, atol=1e-5, err_msg=name)
