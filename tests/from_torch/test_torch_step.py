"""Training steps of modules: names, training beside PyTorch, and the way back."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402


class Pair(NamedTuple):
    logits: torch.Tensor
    features: list


class Output(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor


class Net(nn.Module):
    """Convolutions, batch norms of all kinds, and a Dropout."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, bias=False)
        self.bn = nn.BatchNorm2d(6)
        self.cumulative = nn.BatchNorm2d(6, momentum=None)
        self.frozen = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.0)
        self.fc = nn.Linear(6, 4)
        with torch.no_grad():
            self.frozen.running_mean.uniform_(-1, 1)
            self.frozen.running_var.uniform_(0.5, 2)

    def forward(self, images):
        y = functional.relu(self.bn(self.conv(images)))
        y = self.cumulative(self.bn(y))
        return self.fc(self.drop(self.frozen(y).mean((2, 3))))


def net():
    torch.manual_seed(3)
    module = Net().train()
    module.frozen.eval()
    module.frozen.requires_grad_(False)
    return module


def batch(size, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 6, 6, generator=generator)
    return images, torch.randint(4, (size,), generator=generator)


CASES = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), "named"),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2), "flat"),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01), "named"),
}


@pytest.mark.parametrize("name", CASES)
def test_training_equals_pytorch_and_comes_back(name):
    """Half of the updates in PyTorch, a quarter in ONNX Runtime, and the rest in PyTorch again."""
    make, layout = CASES[name]
    module, twin = net(), net()
    optimizer = make([parameter for parameter in module.parameters() if parameter.requires_grad])
    beside = make([parameter for parameter in twin.parameters() if parameter.requires_grad])

    def torch_updates(module, optimizer, seeds):
        for seed in seeds:
            images, labels = batch(5 + seed % 3, seed)  # the size of the batch differs
            optimizer.zero_grad()
            functional.cross_entropy(module(images), labels).backward()
            optimizer.step()

    torch_updates(module, optimizer, range(4))
    torch_updates(twin, beside, range(4))
    step = bngrad.torch.training_step(
        module,
        functional.cross_entropy,
        batch(5, 0),
        optimizer=optimizer,
        layout=layout,
        conv_grad=layout == "flat",
    )
    assert any(function.name == "ConvGrad" for function in step.model.functions) == (layout == "flat")
    assert list(step.info.data) == ["images", "target"]
    assert step.info.data["images"].shape == ("N", 1, 6, 6)
    trainer = bngrad.Trainer(step, learning_rate=optimizer.param_groups[0]["lr"])
    for seed in range(4, 8):
        images, labels = batch(5 + seed % 3, seed)
        trainer.step(images=images.numpy(), target=labels.numpy())
    torch_updates(twin, beside, range(4, 8))
    bngrad.torch.load_into(module, trainer, optimizer=optimizer)
    for key, value in twin.state_dict().items():
        assert torch.allclose(module.state_dict()[key].double(), value.double(), rtol=1e-4, atol=1e-6), key
    torch_updates(module, optimizer, range(8, 10))
    torch_updates(twin, beside, range(8, 10))
    for key, value in twin.state_dict().items():
        assert torch.allclose(module.state_dict()[key].double(), value.double(), rtol=1e-3, atol=1e-5), key
    assert int(module.bn.num_batches_tracked) == 20
    assert int(module.cumulative.num_batches_tracked) == 10


def test_the_inference_model_equals_the_module():
    module = net()
    step = bngrad.torch.training_step(module, functional.cross_entropy, batch(5, 0), optimizer="adamw")
    trainer = bngrad.Trainer(step, learning_rate=0.05)
    for seed in range(5):
        images, labels = batch(6, seed)
        trainer.step(images=images.numpy(), target=labels.numpy())
    images, labels = batch(7, 9)
    bngrad.torch.load_into(module, trainer.state_dict())
    module.eval()
    expected = module(images).detach().numpy()
    (got,) = bngrad.session(trainer.finalize()).run(None, {"images": images.numpy()})
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    evaluated = trainer.evaluate(images=images.numpy(), target=labels.numpy())
    np.testing.assert_allclose(evaluated["output"], expected, rtol=1e-6, atol=1e-6)
    loss = functional.cross_entropy(torch.from_numpy(expected), labels)
    np.testing.assert_allclose(evaluated["loss"], loss.numpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_positions_of_a_transformer_encoder():
    """PyTorch returns 0 there in evaluation mode without gradients, unless nested tensors are off."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    modules = [nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested) for nested in (True, False)]
    x, mask = torch.randn(3, 5, 8), torch.arange(5).repeat(3, 1) > torch.tensor([[2], [3], [3]])

    class Net(nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def forward(self, x, mask):
            return self.encoder(x, src_key_padding_mask=mask)

    nets = [Net(module) for module in modules]
    nets[1].load_state_dict(nets[0].state_dict())
    step = bngrad.torch.training_step(nets[0], lambda y, t: (y - t).square().mean(), ((x, mask), x * 0))
    feeds = dict(zip(step.info.data, (x, mask, x * 0), strict=True))
    output = bngrad.Trainer(step, learning_rate=0.1).evaluate(**feeds)["output"]
    with torch.no_grad():
        zeros, computed = (net.eval()(x, mask).numpy() for net in nets)
    np.testing.assert_allclose(output, computed, rtol=1e-4, atol=1e-5)
    assert not zeros[0, 4].any()
    np.testing.assert_allclose(zeros[0, :3], computed[0, :3], rtol=1e-4, atol=1e-5)


def test_the_module_and_the_random_state_stay():
    module = net()
    module.drop.p = 0.5
    before = copy.deepcopy(module.state_dict())
    modes = [part.training for part in module.modules()]
    attributes = [sorted(vars(part)) for part in module.modules()]
    random = torch.random.get_rng_state()
    bngrad.torch.training_step(module, functional.cross_entropy, batch(5, 0))
    bngrad.torch.compare(module, functional.cross_entropy, batch(5, 0), steps=1)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [part.training for part in module.modules()] == modes
    assert [sorted(vars(part)) for part in module.modules()] == attributes
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_dropout_draws_other_numbers_in_each_step():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1)).train()
    example = torch.randn(8, 6), torch.randn(8, 1)
    step = bngrad.torch.training_step(module, functional.mse_loss, example)
    trainer = bngrad.Trainer(step, learning_rate=0.0)
    data = {"input": example[0].numpy(), "target": example[1].numpy()}
    assert len({trainer.step(**data) for _ in range(6)}) == 6
    assert len({float(trainer.evaluate(**data)["loss"]) for _ in range(6)}) > 0


def test_dropout_of_attention_stays():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.bn = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True), nn.BatchNorm1d(3)

        def forward(self, x):
            y = self.bn(x)
            return self.attention(y, y, y, need_weights=False)[0].mean(1)

    module, example = Attention(), (torch.randn(5, 3, 4), torch.randn(5, 4))
    assert bngrad.torch.compare(module, functional.mse_loss, example, steps=1).passed
    trainer = bngrad.Trainer(bngrad.torch.training_step(module, functional.mse_loss, example), learning_rate=0.0)
    assert len({trainer.step(x=example[0].numpy(), target=example[1].numpy()) for _ in range(6)}) == 6


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x, mask=None, scale=2.0, more=()):
        y = self.bn(self.fc(x)) * scale
        y = y if mask is None else y * mask
        for term in more:
            y = y + term
        return {"out": Pair(y, [y * 2, y + 1])}


class OwnLoss(Keywords):
    kind = "scalar"

    def forward(self, x, target):
        out = super().forward(x)["out"].logits
        loss = functional.mse_loss(out, target)
        if self.kind == "scalar":
            return loss
        if self.kind == "tuple":
            return loss, out
        return {"loss": loss, "logits": out} if self.kind == "dict" else Output(out, loss)


def own_loss(kind):
    module = OwnLoss()
    module.kind = kind
    return module


def of_pair(output, target):
    return functional.mse_loss(output["out"].logits, target)


def of_targets(output, first, others):
    return of_pair(output, first) + others["weight"].mean() * output["out"].features[0].mean()


X, T, M = torch.randn(5, 4), torch.randn(5, 3), torch.rand(5, 3)

EXAMPLES = {
    "tensor": (Keywords, of_pair, (X, T), ["x", "target"]),
    "list": (Keywords, of_pair, [X, T], ["x", "target"]),
    "positional": (Keywords, of_pair, ((X, M), T), ["x", "mask", "target"]),
    "keywords": (Keywords, of_pair, ({"x": X, "mask": M, "scale": 3.0}, T), ["x", "mask", "target"]),
    "nested": (Keywords, of_pair, ({"x": X, "more": (M, T)}, T), ["x", "more_0", "more_1", "target"]),
    "targets": (Keywords, of_targets, (X, T, {"weight": M}), ["x", "first", "others_weight"]),
    "own-loss": (lambda: own_loss("scalar"), None, (X, T), ["x", "target"]),
    "own-loss-of-tuple": (lambda: own_loss("tuple"), None, (X, T), ["x", "target"]),
    "own-loss-of-dict": (lambda: own_loss("dict"), None, {"x": X, "target": T}, ["x", "target"]),
    "own-loss-attribute": (lambda: own_loss("attribute"), None, (X, T), ["x", "target"]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    make, loss_fn, example, names = EXAMPLES[name]
    module = make().train()
    step = bngrad.torch.training_step(module, loss_fn, example)
    assert list(step.info.data) == names
    assert all(isinstance(data.shape[0], str) for data in step.info.data.values())
    assert step.info.names("weight") == [name for name, _ in module.named_parameters()]


def test_names_of_outputs():
    model = bngrad.torch.export(Keywords().train(), of_pair, (X, T))
    new = ["bn.running_mean_new", "bn.running_var_new", "bn.num_batches_tracked_new"]
    assert [value.name for value in model.graph.output] == [
        "loss",
        "out_logits",
        "out_features_0",
        "out_features_1",
        *new,
    ]
    step = bngrad.torch.training_step(Keywords().train(), of_pair, (X, T), outputs=["out_logits", "fc.bias_grad"])
    assert step.info.outputs == ("out_logits", "fc.bias_grad")


class Named(nn.Module):
    """An input with the name of a parameter, and one with the name of the loss."""

    def __init__(self):
        super().__init__()
        self.weight, self.output = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.zeros(3))

    def forward(self, weight, loss):
        return weight @ self.weight * loss + self.output


def test_names_of_inputs_and_outputs_are_no_others():
    step = bngrad.torch.training_step(Named(), functional.mse_loss, ((X, M), T), outputs=["output_1"])
    assert list(step.info.data) == ["weight_1", "loss_1", "target"]
    assert step.info.names("weight") == ["weight", "output"]
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    loss = trainer.step(weight_1=X.numpy(), loss_1=M.numpy(), target=T.numpy())
    np.testing.assert_allclose(loss, functional.mse_loss(Named()(X, M), T).item(), rtol=1e-6)


def test_a_loss_with_the_name_of_a_child():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.loss_fn = Keywords()

        def forward(self, x):
            return self.loss_fn(x)["out"].logits

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, output, target):
            return functional.mse_loss(output * self.scale, target)

    step = bngrad.torch.training_step(Wrapped(), Scaled(), (X, T))
    assert step.info.names("weight") == [
        "loss_fn.fc.weight",
        "loss_fn.fc.bias",
        "loss_fn.bn.weight",
        "loss_fn.bn.bias",
        "loss_fn.scale",
    ]


def test_lists_of_a_module_stay():
    class Seen(Keywords):
        def __init__(self):
            super().__init__()
            self.seen, self.last = [1], {}

        def forward(self, x):
            self.seen.append(x)
            self.last["x"] = x
            return super().forward(x)

    module = Seen()
    seen = module.seen
    bngrad.torch.training_step(module, of_pair, (X, T))
    assert module.seen is seen
    assert (module.seen, module.last) == ([1], {})


def test_input_names():
    step = bngrad.torch.training_step(Keywords().train(), of_pair, (X, T), input_names=["data", "wanted"])
    assert list(step.info.data) == ["data", "wanted"]


def test_a_loss_with_parameters_is_trained():
    class Center(nn.Module):
        def __init__(self):
            super().__init__()
            self.center = nn.Parameter(torch.ones(3))

        def forward(self, output, target):
            return functional.mse_loss(output["out"].logits + self.center, target)

    loss_fn = Center()
    module = Keywords().train()
    step = bngrad.torch.training_step(module, loss_fn, (X, T))
    assert "loss_fn.center" in step.info.names("weight")
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    trainer.step(x=X.numpy(), target=T.numpy())
    bngrad.torch.load_into(module, trainer, loss_fn=loss_fn)
    assert not torch.equal(loss_fn.center, torch.ones(3))
    with pytest.raises(bngrad.InputError, match=r"loss_fn\.center"):
        bngrad.torch.load_into(module, trainer)


def test_a_fixed_batch_is_said():
    class Fixed(Keywords):
        def forward(self, x):
            return super().forward(x.reshape(5, 4))

    with pytest.warns(bngrad.BngradWarning, match="the batch size of 'x' and 'target' is fixed at 5"):
        step = bngrad.torch.training_step(Fixed().train(), of_pair, (X, T))
    assert step.info.data["x"].shape == (5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", bngrad.BngradWarning)
        bngrad.torch.training_step(Fixed().train(), of_pair, (X, T), dynamic_batch=False)


def test_synchronization_is_said():
    module = nn.SyncBatchNorm.convert_sync_batchnorm(Keywords()).train()
    with pytest.warns(bngrad.BngradWarning, match="'bn': a SyncBatchNorm becomes a batch norm over"):
        bngrad.torch.export(module, of_pair, (X, T))
    with warnings.catch_warnings():
        warnings.simplefilter("error", bngrad.BngradWarning)
        step = bngrad.torch.training_step(module, of_pair, (X, T), sync=True)
    assert "BatchNormalizationMoments" in {node.op_type for node in step.model.graph.node}


def test_evaluation_mode_is_said():
    with pytest.warns(bngrad.BngradWarning, match=r"call module.train\(\)"):
        bngrad.torch.differentiate(Keywords().eval(), of_pair, (X, T))


def test_an_exported_file_needs_no_names(tmp_path):
    """The same step by `bngrad step` of the file, with the state in the same names."""
    module = net()
    path = tmp_path / "net.onnx"
    bngrad.save(bngrad.torch.export(module, functional.cross_entropy, batch(5, 0)), path)
    step = bngrad.training_step(path, optimizer="adamw")
    whole = bngrad.torch.training_step(module, functional.cross_entropy, batch(5, 0), optimizer="adamw")
    assert step.info.fingerprint.graph == whole.info.fingerprint.graph
    # The evaluation graph of the file is derived from the training graph, and `cumulative` has no running
    # statistics in it.
    first, second = (replace(info, fingerprint=None, batch_norms=()) for info in (step.info, whole.info))
    assert first == second
    trainers = [bngrad.Trainer(candidate, learning_rate=0.01) for candidate in (step, whole)]
    images, labels = batch(6, 1)
    first, second = (trainer.step(images=images.numpy(), target=labels.numpy()) for trainer in trainers)
    assert first == second
    for key, value in trainers[0].state_dict().items():
        np.testing.assert_array_equal(value, trainers[1].state_dict()[key], err_msg=key)


def test_an_incomplete_state_is_said():
    module = net()
    state = {name: value.numpy() for name, value in module.state_dict().items() if name != "fc.weight"}
    with pytest.warns(bngrad.BngradWarning, match="the state lacks 'fc.weight', which the module trains"):
        bngrad.torch.load_into(module, state)


STATISTICS = {
    "a batch norm": (
        ["bn.running_mean", "bn.running_var"],
        {},
        "lacks 'bn.running_mean' and 'bn.running_var', so",
    ),
    "a mean": (["bn.running_mean"], {}, "lacks 'bn.running_mean', so that 'bn' would keep old running"),
    "half of a frozen one": (["frozen.running_var"], {}, "lacks 'frozen.running_var', so that 'frozen'"),
    "a count that momentum=None needs": (["cumulative.num_batches_tracked"], {}, "lacks 'cumulative.num_ba"),
    "of a call": ([], {"bn_1/running_mean": np.zeros(6, np.float32)}, "has the running statistics 'bn_1/running"),
}


@pytest.mark.parametrize(("left_out", "more", "text"), STATISTICS.values(), ids=STATISTICS)
def test_a_state_that_leaves_statistics_untouched(left_out, more, text):
    module = net()
    state = {name: 2 * value.numpy() for name, value in module.state_dict().items() if name not in left_out} | more
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(bngrad.InputError, match=text):
        bngrad.torch.load_into(module, state)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_statistics_that_nothing_needs_may_be_left_out():
    module = net()
    unneeded = ("num_batches_tracked", "frozen.running_mean", "frozen.running_var")
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    bngrad.torch.load_into(
        module, {name: value for name, value in state.items() if name[:2] == "cu" or not name.endswith(unneeded)}
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("x.safetensors", r"state is a str; expected a bngrad\.Trainer, or arrays by name"),
        ({}, "the state has no arrays, none of which"),
    ],
)
def test_states_that_are_none(state, text):
    with pytest.raises(bngrad.InputError, match=text):
        bngrad.torch.load_into(net(), state)


def _other_shape(state):
    return state | {"fc.bias": np.zeros(9, np.float32)}


def _other_type(state):
    return state | {"fc.bias": np.zeros(4, np.int64)}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda _: {}, "none of which"),
        (lambda _: {"other": np.zeros(3)}, "none of which"),
        (_other_shape, r"'fc.bias' has shape \[9\]; the module's has \[4\]"),
        (_other_type, "'fc.bias' is int64; the module's is float32"),
    ],
    ids=["empty", "of-another", "shape", "type"],
)
def test_states_that_do_not_fit_change_nothing(change, text):
    module = net()
    state = {name: 2 * value.numpy() for name, value in module.state_dict().items()}
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(bngrad.InputError, match=text):
        bngrad.torch.load_into(module, change(state))
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
