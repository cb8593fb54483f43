"""Sources of changed gradients, losses and updates in PyTorch: the rows of docs/reference/gradient-sources.md.

The rows that are taken over form one module: each has a weight, whose gradient is compared with PyTorch's.
"""

from __future__ import annotations

import re
import warnings
from contextlib import ExitStack

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402
from bngrad.errors import InputError, ModelError, UnsupportedNodeError  # noqa: E402
from page_examples import ROOT  # noqa: E402


class Double(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.round()

    @staticmethod
    def backward(_ctx, gradient):
        return 2 * gradient


class Tanh(nn.Module):
    def forward(self, x):
        return x.tanh()


@torch.no_grad()
def deviation(y):
    return y.std(0)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is deprecated

    @torch.jit.script
    def scripted(x):
        return torch.tanh(x) * 2


def without_gradient(_, y):
    with torch.no_grad():
        gate = torch.sigmoid(y)
    return y * gate


def enabled_inside(_, y):
    with torch.no_grad():
        gate = torch.sigmoid(y)
        with torch.enable_grad():
            other = torch.tanh(y)
    return y * gate + other


def switched(_, y):
    torch.set_grad_enabled(False)
    gate = torch.sigmoid(y)
    torch.set_grad_enabled(True)
    return y * gate


def function_without_gradient(_, y):
    Double.apply(y)
    with torch.no_grad():
        rounded = Double.apply(y)
    return y * rounded


def on_cpu(_, y):
    with torch.autograd.graph.save_on_cpu():
        return y.tanh()


def retained(_, y):
    z = y.tanh()
    z.retain_grad()
    return z


def leaf_inside(_, y):
    return y * y.detach().requires_grad_(True)


def part_in_place(_, y):
    z = y * 1
    z[:, 0] = z[:, 0].detach() * 2
    return z


def buffer_in_place(self, y):
    with torch.no_grad():
        self.mean.mul_(0.9).add_(0.1 * y.mean(0))
    return y * self.mean


def buffer_assigned(self, y):
    self.mean = (0.9 * self.mean + 0.1 * y.mean(0)).detach()
    return y * self.mean


def momentum_encoder(self, y):
    with torch.no_grad():
        self.slow.weight.mul_(0.9).add_(self.fast.weight, alpha=0.1)
    return self.fast(y) * self.slow(y)


def auxiliary(self, y):
    self.kept = y.abs().mean()
    return y


def with_layer(make):
    return lambda self: setattr(self, "layer", make())


def with_buffer(self):
    self.register_buffer("mean", torch.ones(6))


def with_encoders(self):
    self.fast, self.slow = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)


def table(**options):
    return with_layer(lambda: nn.Embedding(9, 6, **options))


def looked_up(self, y):
    words = torch.tensor([[0, 2, 2], [1, 2, 8]])
    return y[:2] * self.layer(words).mean(1)


def layer(self, y):
    return self.layer(y)


def hooked(register, hook):
    def prepare(self):
        self.layer = nn.Linear(6, 6)
        getattr(self.layer, register)(hook)

    return prepare


def custom_parametrization():
    linear = nn.Linear(6, 6)
    parametrize.register_parametrization(linear, "weight", Tanh())
    return linear


def keep(_):
    """Nothing to prepare."""


TAKEN = {
    "detach": (keep, lambda _, y: y * y.detach()),
    "copy-of-a-tensor": (keep, lambda _, y: y.clone().detach() * y),
    "no-grad": (keep, without_gradient),
    "no-grad-decorator": (keep, lambda _, y: y / deviation(y)),
    "set-grad-enabled": (keep, switched),
    "enable-grad-inside": (keep, enabled_inside),
    "leaf-inside": (keep, leaf_inside),
    "part-in-place": (keep, part_in_place),
    "straight-through": (keep, lambda _, y: y + ((3 * y).round() - y).detach()),
    "number": (keep, lambda _, y: y * y.abs().max().item() + y * y[0, :1].item()),
    "round": (keep, lambda _, y: y.round() + y * (y > 0) + y.to(torch.int64) * y),
    "frozen-parameter": (with_layer(lambda: nn.Linear(6, 6).requires_grad_(False)), layer),
    "function-under-no-grad": (keep, function_without_gradient),
    "checkpoint": (
        with_layer(lambda: nn.Linear(6, 6)),
        lambda self, y: checkpoint(self.layer, y, use_reentrant=False),
    ),
    "save-on-cpu": (keep, on_cpu),
    "vmap": (keep, lambda _, y: torch.func.vmap(torch.tanh, in_dims=1, out_dims=1)(y)),
    "jvp": (keep, lambda _, y: torch.func.jvp(torch.tanh, (y,), (torch.ones_like(y),))[1]),
    "functional-call": (
        with_layer(lambda: nn.Linear(6, 6)),
        lambda self, y: torch.func.functional_call(self.layer, {"bias": self.layer.bias.detach()}, (y,)),
    ),
    "forward-hook": (hooked("register_forward_hook", lambda _m, _i, output: 3 * output.tanh()), layer),
    "forward-pre-hook": (hooked("register_forward_pre_hook", lambda _m, inputs: (inputs[0].tanh(),)), layer),
    "retain-grad": (keep, retained),
    "padding-idx": (table(padding_idx=2), looked_up),
    "sparse": (table(sparse=True), looked_up),
    "weight-norm": (with_layer(lambda: parametrizations.weight_norm(nn.Linear(6, 6))), layer),
    "spectral-norm": (with_layer(lambda: parametrizations.spectral_norm(nn.Linear(6, 6))), layer),
    "parametrization": (with_layer(custom_parametrization), layer),
    "pruning": (with_layer(lambda: prune.l1_unstructured(nn.Linear(6, 6), "weight", 0.5)), layer),
    "buffer-in-place": (with_buffer, buffer_in_place),
    "buffer-assigned": (with_buffer, buffer_assigned),
    "momentum-encoder": (with_encoders, momentum_encoder),
    "auxiliary-loss": (keep, auxiliary),
    "compiled-function": (
        keep,
        lambda _, y: torch.compiler.disable(torch.tanh)(torch.compile(torch.tanh, backend="eager")(y)),
    ),
    "script-function": (keep, lambda _, y: scripted(y)),
}


class Row(nn.Module):
    def __init__(self, prepare, compute):
        super().__init__()
        self.w, self.compute = nn.Parameter(torch.rand(6) + 0.5), compute
        prepare(self)

    def forward(self, x):
        return self.compute(self, x * self.w)


def rows(names):
    torch.manual_seed(5)
    return nn.ModuleDict({name: Row(*TAKEN[name]) for name in names})


class Rows(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.rows = rows(names)

    def forward(self, x):
        return [row(x) for row in self.rows.values()]


def scaled_loss(module):
    """The sum of the rows, a loss that a row keeps, a penalty, and a factor."""

    def loss_fn(outputs, target):
        total = sum((output - target[: output.shape[0]]).pow(2).mean() for output in outputs)
        return 1024 * (total + module.rows["auxiliary-loss"].kept + module.rows["detach"].w.pow(2).sum())

    return loss_fn


@pytest.fixture(scope="module")
def taken():
    """The module that ran in PyTorch, and the training graph's outputs and their roles."""
    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(8, 6, generator=generator) for _ in range(2))
    module, twin = Rows(TAKEN).train(), Rows(TAKEN).train()
    handles = [
        nn.modules.module.register_module_forward_hook(
            lambda layer, _, output: output * 1.5 if isinstance(layer, Tanh) else None
        )
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own
            warnings.simplefilter("error", bngrad.BngradWarning)
            graph = bngrad.torch.differentiate(module, scaled_loss(module), (x, target))
            scaled_loss(twin)(twin(x), target).backward()
    finally:
        for handle in handles:
            handle.remove()
    roles = bngrad.read_training_graph(graph)
    session = bngrad.session(graph)
    names = [output.name for output in session.get_outputs()]
    return (
        twin,
        roles,
        dict(zip(names, session.run(names, {"x": x.numpy(), "target": target.numpy()}), strict=True)),
    )


@pytest.mark.parametrize("name", TAKEN)
def test_taken_over(taken, name):
    twin, roles, results = taken
    row = f"rows.{name}."
    checked = 0
    for key, parameter in twin.named_parameters():
        if key.startswith(row) and parameter.requires_grad:
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
            if key not in roles.gradients:
                assert not expected.any(), key
                continue
            assert np.allclose(results[roles.gradients[key]], expected, rtol=2e-4, atol=1e-2), key
            checked += bool(expected.any())
        elif key.startswith(row):
            assert key not in roles.gradients
    changed = {**dict(twin.named_buffers()), **dict(twin.named_parameters())}
    for key, output in roles.running_statistics.items():
        if key.startswith(row):
            assert np.allclose(results[output], changed[key].detach(), rtol=1e-5, atol=1e-6), key
    assert checked


def test_refused_step_hook_of_an_optimizer():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(InputError, match="the optimizer has step hooks"):
        bngrad.torch.training_step(net, functional.cross_entropy, EXAMPLE, optimizer=optimizer)


class Net(nn.Module):
    """Two layers and a batch norm, and something in its forward."""

    def __init__(self, compute=lambda _, y: y, prepare=keep):
        super().__init__()
        self.fc, self.bn, self.compute = nn.Linear(6, 3), nn.BatchNorm1d(3), compute
        prepare(self)

    def forward(self, x):
        return self.compute(self, self.bn(self.fc(x)))


def add_hook(_, y):
    y.register_hook(lambda gradient: 2 * gradient)
    return y


def add_multi_hook(_, y):
    torch.autograd.graph.register_multi_grad_hook((y,), lambda _: None)
    return y


def add_node_hook(_, y):
    y.grad_fn.register_prehook(lambda gradients: tuple(2 * gradient for gradient in gradients))
    return y


def saved_hooks(_, y):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 2, lambda tensor: tensor):
        return y.tanh()


def detach_in_place(_, y):
    z = y.clone()
    z.detach_()
    return y * z


def penalty(self, y):
    x = y.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(self.bn(x).sum(), x, create_graph=True)
    return y + gradient


def backward_inside(_, y):
    y.sum().backward(retain_graph=True)
    return y


def functional_gradient(_, y):
    return y * torch.func.grad(lambda x: x.tanh().sum())(y)


def write_gradient(self, y):
    self.fc.weight.grad = torch.ones_like(self.fc.weight)
    return y


def freeze_inside(self, y):
    self.fc.requires_grad_(False)
    return self.fc(torch.cat([y, y], 1))


def inference(_, y):
    with torch.inference_mode():
        gate = torch.sigmoid(y)
    return y * gate


def times_gradient(parameter):
    parameter.grad.mul_(2)


def with_list(self):
    self.held = [self.fc.weight]


class Counter:
    calls = 0


def counted(_, y):
    Counter.calls += 1
    return y * Counter.calls


REFUSED = {
    "tensor-hook": (lambda: Net(add_hook), "calls Tensor.register_hook in its forward.*test_gradient_sources.py:"),
    "multi-grad-hook": (lambda: Net(add_multi_hook), "calls Tensor.register_hook"),
    "forward-hook-with-tensor-hook": (
        lambda: with_hook(lambda net: net.fc.register_forward_hook(lambda _m, _i, output: add_hook(None, output))),
        "calls Tensor.register_hook",
    ),
    "node-hook": (lambda: Net(add_node_hook), "reads Tensor.grad_fn"),
    "parameter-hook": (
        lambda: with_hook(lambda net: net.fc.bias.register_hook(lambda gradient: gradient)),
        "'fc.bias' has a gradient hook",
    ),
    "post-accumulate-hook": (
        lambda: with_hook(lambda net: net.fc.bias.register_post_accumulate_grad_hook(times_gradient)),
        "'fc.bias' has a gradient hook",
    ),
    "backward-pre-hook": (
        lambda: with_hook(lambda net: net.bn.register_full_backward_pre_hook(lambda *_: None)),
        "module 'bn' has a backward hook",
    ),
    "saved-tensors-hooks": (lambda: Net(saved_hooks), "uses saved_tensors_hooks"),
    "detach-in-place": (lambda: Net(detach_in_place), "calls Tensor.detach_"),
    "grad-in-forward": (lambda: Net(penalty), "calls torch.autograd.grad in its forward"),
    "func-grad": (lambda: Net(functional_gradient), "calls torch.autograd.grad in its forward"),
    "backward-in-forward": (lambda: Net(backward_inside), "calls Tensor.backward in its forward"),
    "grad-written": (lambda: Net(write_gradient), "writes to Tensor.grad"),
    "freeze-in-forward": (lambda: Net(freeze_inside), "requires_grad"),
    "inference-mode": (lambda: Net(inference), "use `torch.no_grad"),
    "parameter-in-a-list": (
        lambda: Net(lambda self, y: y * self.held[0].sum(), with_list),
        "reads the parameter 'fc.weight' by another reference",
    ),
    "kept-detach": (
        lambda: Net(
            lambda self, y: y * self.kept.sum(), lambda self: setattr(self, "kept", self.fc.weight.detach())
        ),
        "reads the memory of the parameter 'fc.weight' by another tensor, .*test_gradient_sources.py:",
    ),
    "kept-part-of-data": (
        lambda: Net(
            lambda self, y: y + self.kept[0], lambda self: setattr(self, "kept", [self.fc.weight.data[1]])
        ),
        "reads the memory of the parameter 'fc.weight'",
    ),
    "kept-view": (
        lambda: Net(lambda self, y: y + self.kept.sum(), lambda self: setattr(self, "kept", self.fc.weight.t())),
        "reads the memory of the parameter 'fc.weight'",
    ),
    "kept-statistic": (
        lambda: Net(lambda self, y: y + self.kept[0], lambda self: setattr(self, "kept", [self.bn.running_mean])),
        "reads the memory of the buffer 'bn.running_mean'",
    ),
    "global-counter": (lambda: Net(counted), "two calls of the module with the same inputs have the losses"),
    "fake-quantize": (
        lambda: Net(lambda _, y: torch.fake_quantize_per_tensor_affine(y, 0.1, 0, -8, 7)),
        "fake_quantize",
    ),
    "cond": (lambda: Net(lambda _, y: torch.cond(y.sum() > 0, torch.tanh, torch.sigmoid, (y,))), "cond"),
    "is-exporting": (
        lambda: Net(lambda _, y: y * (2 if torch.compiler.is_exporting() else 1)),
        "a step of the exported model is not PyTorch's: .*exporter writes an op",
    ),
    "branch-on-values": (
        lambda: Net(lambda _, y: y if y.sum() > 0 else -y),
        "torch.export cannot trace.*__bool__ at",
    ),
    "item": (
        lambda: Net(lambda _, y: y * range(9)[int(y.abs().max().item())]),
        "torch.export cannot trace.*item at",
    ),
    "numpy": (
        lambda: Net(lambda _, y: y * torch.from_numpy(np.tanh(y.detach().numpy()))),
        "torch.export cannot trace.*numpy at",
    ),
    "autocast-bfloat16": (
        lambda: Net(prepare=with_layer(lambda: nn.Linear(3, 3)), compute=in_bfloat16),
        "for bfloat16",
    ),
    "max-norm": (
        lambda: Net(lambda self, y: y * self.layer(torch.arange(3)).sum(), table(max_norm=1.0)),
        "max_norm|writes to 'layer.weight', which is trained",
    ),
}


def in_bfloat16(self, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.layer(y).float()


def with_hook(register):
    net = Net()
    register(net)
    return net


EXAMPLE = torch.randn(8, 6, generator=torch.Generator().manual_seed(2)), torch.arange(8) % 3


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, text = REFUSED[name]
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own
        with pytest.raises((InputError, ModelError), match=text) as raised:
            bngrad.torch.differentiate(make(), functional.cross_entropy, EXAMPLE)
    assert "\n" not in str(raised.value)


def test_refused_with_a_global_hook():
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
    with ExitStack() as stack:
        stack.callback(handle.remove)
        with pytest.raises(UnsupportedNodeError, match="all modules have a global backward hook"):
            bngrad.torch.differentiate(Net(), functional.cross_entropy, EXAMPLE)


def test_refused_parameter_in_a_closure():
    net = Net()
    parameters = list(net.parameters())
    with pytest.raises(UnsupportedNodeError, match=r"the parameter 'fc.weight' by another reference"):
        bngrad.torch.differentiate(
            net, lambda output, t: functional.cross_entropy(output, t) + parameters[0].pow(2).sum(), EXAMPLE
        )


def test_warned_of_a_foreign_parameter():
    scale = nn.Parameter(torch.ones(3))
    with pytest.warns(
        bngrad.BngradWarning, match=r"neither the module nor loss_fn has as parameters: '\[3\] at test"
    ):
        graph = bngrad.torch.differentiate(
            Net(), lambda output, t: functional.cross_entropy(output * scale, t), EXAMPLE
        )
    assert len(bngrad.read_training_graph(graph).gradients) == 4


def test_each_row_of_the_page_names_a_test():
    page = (ROOT / "docs" / "reference" / "gradient-sources.md").read_text()
    section = page.partition("## PyTorch, by bngrad.torch")[2].partition("\n## ")[0]
    tables = {"test_taken_over": TAKEN.keys(), "test_refused": REFUSED.keys()}
    named = {name: set() for name in tables}
    for row in re.findall(r"^\|.*\|$", section, re.MULTILINE):
        current = ""
        for test, name in re.findall(r"`([\w.:]*)\[([\w-]+)\]`", row):
            current = test or current
            named.setdefault(current, set()).add(name)
    assert {test: named[test] for test in tables} == tables
