"""Modules that cannot be exported or trained are refused by name, and not changed."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parameter import is_lazy  # noqa: E402

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402
from bngrad.errors import InputError, ModelError, UnsupportedNodeError  # noqa: E402


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.round()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


@torch.library.custom_op("bngrad_tests::straight", mutates_args=())
def straight(x: torch.Tensor) -> torch.Tensor:
    return x.round()


straight.register_fake(torch.empty_like)
straight.register_autograd(lambda _ctx, gradient: gradient)


FUNCTIONS = {
    "function": Straight.apply,
    "library": straight,
    "data-dependent-function": lambda y: nn.functional.gaussian_nll_loss(y, y * 0, y.exp(), reduction="none"),
    "number-of-a-size": lambda y: y * (torch.arange(3) % y.shape[0]),
}


class Custom(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what, self.fc, self.bn = what, nn.Linear(6, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.bn(self.fc(x))
        if self.what in FUNCTIONS:
            return FUNCTIONS[self.what](y)
        if self.what == "hook":
            y.register_hook(lambda gradient: 2 * gradient)
        if self.what == "data-dependent":
            return y if y.sum() > 0 else -y
        if self.what == "written-in-place":
            z = y * 1
            with torch.no_grad():
                z.clamp_(-1, 1)
            return z
        if self.what == "unknown-op":
            return torch.linalg.eigvalsh(y.T @ y) * y
        return y


def with_module_hook():
    module = Custom("")
    module.bn.register_full_backward_hook(lambda *_: None)
    return module


def with_parameter_hook():
    module = Custom("")
    module.fc.weight.register_hook(lambda gradient: gradient)
    return module


def with_counted_embedding():
    return nn.Sequential(nn.Embedding(4, 3, scale_grad_by_freq=True), nn.BatchNorm1d(3))


class Recurrent(nn.Module):
    """An LSTM of padded or packed sequences."""

    def __init__(self, *, packed=False, **options):
        super().__init__()
        self.packed, self.rnn, self.bn = packed, nn.LSTM(6, 4, batch_first=True, **options), nn.BatchNorm1d(3)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 5, -1)
        if self.packed:
            x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2, 1]), batch_first=True)
            y = nn.utils.rnn.pad_packed_sequence(self.rnn(x)[0], batch_first=True)[0]
        else:
            y, _ = self.rnn(x)
        return self.bn(y[:, 0, :3])


class Bag(nn.Module):
    def __init__(self, flat=False, **options):
        super().__init__()
        self.flat, self.bag, self.bn = flat, nn.EmbeddingBag(9, 3, **options), nn.BatchNorm1d(3)

    def forward(self, x):
        ids = (x.abs() * 4).long() % 9
        return self.bn(self.bag(ids.flatten(), torch.arange(4) * 6) if self.flat else self.bag(ids))


def average_by_data(self, y):
    self.k.data.mul_(0.9).add_(y.mean(0).detach(), alpha=0.1)
    return y * self.k


def eval_within_calls(self, y):
    """The output of a batch norm in evaluation mode between two calls in training mode."""
    y = self.other.train()(y) + self.other.eval()(y)
    return y + self.other.train()(y)


class Odd(nn.Module):
    """Two layers, and something before them or in their place."""

    def __init__(self, prepare, between=lambda _, y: y):
        super().__init__()
        self.fc, self.bn, self.between = nn.Linear(6, 3), nn.BatchNorm1d(3), between
        prepare(self)

    def forward(self, x):
        return self.between(self, self.bn(self.fc(x)))


def with_buffer(name, value=None):
    return lambda self: self.register_buffer(name, torch.zeros(3) if value is None else value)


def with_two(self):
    with_buffer("k")(self)
    with_buffer("k_new")(self)


def clamp(self, y):
    with torch.no_grad():
        self.w.clamp_(-0.5, 0.5)
    return y * self.w


def grow(self, y):
    self.k = torch.cat([self.k, torch.ones(1)])
    return y * self.k.sum()


def with_script_module():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(nn.Linear(3, 3))
    return Odd(lambda self: setattr(self, "s", script))


def share_memory(self):
    self.register_buffer("k", self.fc.bias.detach())


def frozen_before_training(self, y):
    z = self.other.eval()(y)
    return z + self.other.train()(y)


def loss_of_same_name():
    loss_fn = nn.Linear(3, 1)
    loss_fn.forward = lambda output, _: output.mean() * loss_fn.weight.mean()
    return loss_fn


def without_weights():
    module = Custom("")
    module.requires_grad_(False)
    return module


X, T = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
LOSS = functional.cross_entropy

REFUSALS = {
    "autograd-function": (
        lambda: Custom("function"),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "Straight, a torch.auto",
    ),
    "op-of-a-library": (
        lambda: Custom("library"),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "GeneratedBackwardFor_bngrad_tests_straight_default, a torch.auto",
    ),
    "hook": (lambda: Custom("hook"), LOSS, (X, T), UnsupportedNodeError, "Tensor.register_hook"),
    "module-hook": (with_module_hook, LOSS, (X, T), UnsupportedNodeError, "module 'bn' has a backward hook"),
    "parameter-hook": (
        with_parameter_hook,
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "parameter 'fc.weight' has a grad",
    ),
    "data-dependent": (lambda: Custom("data-dependent"), LOSS, (X, T), ModelError, "torch.export cannot trace"),
    "data-dependent-function": (
        lambda: Custom("data-dependent-function"),
        LOSS,
        (X, T),
        ModelError,
        r"torch.export cannot trace.*; it stops at test_torch_refusals.py:\d+, '.*gaussian_nll_loss",
    ),
    "number-of-a-size": (
        lambda: Custom("number-of-a-size"),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        r"cannot write aten.remainder.Scalar with a symbolic size.*dynamic_batch=False",
    ),
    "in-place": (lambda: Custom("written-in-place"), LOSS, (X, T), UnsupportedNodeError, "written in place"),
    "unknown-op": (lambda: Custom("unknown-op"), LOSS, (X, T), UnsupportedNodeError, "linalg_eig"),
    "gradient-by-counts": (
        with_counted_embedding,
        LOSS,
        (T, T),
        UnsupportedNodeError,
        "an embedding with scale_grad_by_freq=True",
    ),
    "no-weights": (without_weights, LOSS, (X, T), InputError, "no parameter of the module requires a gradient"),
    "no-tuple": (lambda: Custom(""), LOSS, X, InputError, r"example is a Tensor; expected \(inputs, \*targets\)"),
    "no-tensor": (lambda: Custom(""), None, (), InputError, "without a tensor"),
    "loss-not-scalar": (lambda: Custom(""), lambda y, _: y, (X, T), InputError, r"the loss is float32\[4, 3\]"),
    "loss-of-ints": (lambda: Custom(""), lambda y, _: y.argmax(), (X, T), InputError, "the loss is int64"),
    "no-loss": (lambda: Custom(""), None, X, InputError, r"the loss is float32\[4, 3\]"),
    "batch-of-one": (
        lambda: Custom("").eval(),
        LOSS,
        (X[:1], T[:1]),
        InputError,
        "a batch of 1; expected 2 or mo",
    ),
    "written-parameter": (
        lambda: Odd(lambda self: setattr(self, "w", nn.Parameter(torch.ones(3))), clamp),
        LOSS,
        (X, T),
        ModelError,
        "the forward pass writes to 'w', which is trained",
    ),
    "growing-buffer": (
        lambda: Odd(with_buffer("k"), grow),
        LOSS,
        (X, T),
        ModelError,
        r"replaces float32\[3\] 'k' by float32\[4\]",
    ),
    "shared-memory": (
        lambda: Odd(share_memory),
        LOSS,
        (X, T),
        InputError,
        "'fc.bias' and 'k' share memory|'k' and",
    ),
    "frozen-then-trained": (
        lambda: Odd(lambda self: setattr(self, "other", nn.BatchNorm1d(3)), frozen_before_training),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "BatchNormalization .* reads 'other.running_mean' in evaluation mode before the same pass updates it",
    ),
    "frozen-between-updates": (
        lambda: Odd(lambda self: setattr(self, "other", nn.BatchNorm1d(3)), eval_within_calls),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "in evaluation mode before the same pass updates it",
    ),
    "embedding-with-max-norm": (
        lambda: nn.Sequential(nn.Embedding(4, 3, max_norm=0.5), nn.BatchNorm1d(3)),
        LOSS,
        (T, T),
        UnsupportedNodeError,
        "an embedding with max_norm, which changes the weight in the forward pass; leave max_norm out",
    ),
    "bag-with-max-norm": (
        lambda: Bag(max_norm=0.5),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "embedding with max_norm",
    ),
    "bag-by-counts": (
        lambda: Bag(scale_grad_by_freq=True),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "an EmbeddingBag with scale_grad_by_freq=True",
    ),
    "largest-of-bags-of-other-sizes": (
        lambda: Bag(flat=True, mode="max"),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "an EmbeddingBag with mode='max' and offsets",
    ),
    "packed-sequences": (
        lambda: Recurrent(packed=True),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        r"packs sequences \(pack_padded_sequence\), .* run the recurrent layer on the padded tensor",
    ),
    "projection-of-lstm": (
        lambda: Recurrent(proj_size=3),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "module 'rnn' is an LSTM with proj_size",
    ),
    "average-by-data": (lambda: Odd(with_buffer("k"), average_by_data), LOSS, (X, T), ModelError, r"Tensor\.data"),
    "script-module": (
        with_script_module,
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "module 's' is a ScriptModule",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), LOSS, (X, T), InputError, "'0.weight' is not initialized"),
    "meta": (lambda: Custom("").to("meta"), LOSS, (X, T), InputError, "'fc.weight' is on the meta device"),
    "complex": (
        lambda: Odd(with_buffer("k", torch.zeros(3, dtype=torch.complex64))),
        LOSS,
        (X, T),
        InputError,
        "'k' is torch.complex64",
    ),
    "tensor-named-loss": (lambda: Odd(with_buffer("loss")), LOSS, (X, T), InputError, "has a tensor 'loss'"),
    "tensor-named-as-an-output": (
        lambda: Odd(with_two),
        LOSS,
        (X, T),
        InputError,
        "has a tensor 'k_new', which is the name of the next value of 'k'",
    ),
    "tensor-named-as-one-of-the-loss": (
        lambda: Odd(lambda self: setattr(self, "loss_fn", nn.Linear(3, 1))),
        loss_of_same_name(),
        (X, T),
        InputError,
        "both have a tensor 'loss_fn.weight'",
    ),
    "bfloat16": (
        lambda: Custom("").bfloat16(),
        LOSS,
        (X.bfloat16(), T),
        ModelError,
        "ONNX Runtime refuses|elem type",
    ),
    "wrong-shape": (lambda: Custom(""), LOSS, (X[:, :5], T), InputError, "PyTorch cannot run a step .* mat1 and"),
    "reentrant-checkpoint": (
        lambda: Odd(
            lambda _: None, lambda _, y: torch.utils.checkpoint.checkpoint(torch.relu, y, use_reentrant=True)
        ),
        LOSS,
        (X, T),
        UnsupportedNodeError,
        "use_reentrant=False",
    ),
    "random-numbers-of-python": (
        lambda: Odd(lambda _: None, lambda _, y: y * random.random()),  # noqa: S311
        LOSS,
        (X, T),
        ModelError,
        "draws random numbers of Python",
    ),
    "random-numbers-of-numpy": (
        lambda: Odd(lambda _: None, lambda _, y: y * float(np.random.rand())),  # noqa: NPY002 - the old kind
        LOSS,
        (X, T),
        ModelError,
        "draws random numbers of NumPy",
    ),
    "not-a-function": (lambda: Custom(""), "mse", (X, T), InputError, "loss_fn is a str"),
    "not-a-module": (lambda: LOSS, LOSS, (X, T), InputError, "module is a function"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, loss_fn, example, error, text = REFUSALS[name]
    module = make()
    tensors = module.state_dict().items() if isinstance(module, nn.Module) else ()
    before = {key: tensor.clone() for key, tensor in tensors if not is_lazy(tensor) and not tensor.is_meta}
    state = torch.random.get_rng_state()
    with pytest.raises(error, match=text) as raised:
        bngrad.torch.training_step(module, loss_fn, example)
    assert "\n" not in str(raised.value)
    assert torch.equal(torch.random.get_rng_state(), state)
    for key, tensor in before.items():
        assert torch.equal(module.state_dict()[key], tensor), key
    assert torch.Tensor.register_hook.__qualname__.startswith("Tensor")  # what was replaced is back
    assert float(Straight.apply(torch.tensor(0.4))) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"input_names": ["x"]}, "expected 2 different names"),
        ({"input_names": ["x", "x"]}, "expected 2 different names"),
        ({"input_names": "xy"}, "expected 2 different names"),
        ({"input_names": ["x", "fc.weight"]}, "input_names has 'fc.weight', which the module or its loss has"),
        ({"input_names": ["x", "loss"]}, "input_names has 'loss', which the module or its loss has"),
        ({"optimizer": "adagrad"}, "adagrad"),
        ({"optimizer": torch.optim.AdamW}, "optimizer is the class AdamW; expected an instance"),
        ({"optimizer": (1, 2)}, "optimizer is a tuple; expected an instance"),
        ({"layout": "round"}, "round"),
        ({"clip_norm": -1}, "clip_norm"),
        ({"outputs": ["nothing"]}, "nothing"),
    ],
)
def test_options_are_checked(options, text):
    with pytest.raises(InputError, match=text):
        bngrad.torch.training_step(Custom(""), LOSS, (X, T), **options)


def test_a_loss_that_hides_a_batch_norm():
    hidden = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with pytest.raises(InputError, match="loss_fn uses a Sequential with a batch norm in training mode"):
        bngrad.torch.export(Custom(""), lambda output, target: LOSS(hidden(output), target), (X, T))
    assert int(hidden[1].num_batches_tracked) == 0


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_steps_are_checked(steps):
    with pytest.raises(InputError, match="steps is"):
        bngrad.torch.compare(Custom(""), LOSS, (X, T), steps=steps)


def test_changing_attributes_are_said():
    def count(self, y):
        self.calls += 1
        return y * self.calls

    module = Odd(lambda self: setattr(self, "calls", 0), count)
    with pytest.warns(bngrad.BngradWarning, match="changes 'calls'.* register a buffer"):
        bngrad.torch.differentiate(module, LOSS, (X, T))
    assert module.calls == 0
