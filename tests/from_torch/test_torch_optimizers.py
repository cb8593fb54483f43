"""Optimizers of PyTorch as those of training steps: training that moves both ways, and what is refused."""

from __future__ import annotations

import copy
from importlib import import_module

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bngrad
from bngrad.errors import InputError

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from bngrad.torch.optimizer_state import to_tensor  # noqa: E402 - it imports torch
from bngrad.torch.optimizers import from_torch, into_step, into_torch  # noqa: E402
from pairwise import every_value, pairwise  # noqa: E402

nn = torch.nn
UPDATES, FIRST = 8, 3
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TOLERANCE = {"float32": 2e-6, "float64": 1e-12}


class Network(nn.Module):
    """Two linear layers with fixed weights."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.to(dtype)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def forward_model(parameters) -> onnx.ModelProto:
    """The forward model of a `Network`, with the names of its parameters, and the mean squared error."""
    weight1, bias1, weight2, bias2 = parameters
    arrays = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    dtype = helper.np_dtype_to_tensor_dtype(arrays[weight1].dtype)
    shapes = {"x": ["N", 3], "target": ["N", 2], "loss": []}
    x, target, loss = (helper.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items())
    nodes = [
        helper.make_node("Gemm", ["x", weight1, bias1], ["sum"], transB=1),
        helper.make_node("Tanh", ["sum"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", weight2, bias2], ["y"], transB=1),
        helper.make_node("Sub", ["y", "target"], ["difference"]),
        helper.make_node("Mul", ["difference", "difference"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "network", [x, target], [loss], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def step_of(source, module, **options):
    parameters = dict(module.named_parameters())
    return bngrad.training_step(
        forward_model(parameters), optimizer=source.optimizer, groups=source.groups, loss="loss", **options
    )


def batch(update, dtype):
    rng = np.random.default_rng(update)
    return rng.standard_normal((8, 3)).astype(dtype), rng.standard_normal((8, 2)).astype(dtype)


def train_in_torch(module, optimizer, updates):
    for update in updates:
        x, target = map(torch.from_numpy, batch(update, str(next(module.parameters()).dtype)[6:]))
        optimizer.zero_grad()
        ((module(x) - target) ** 2).mean().backward()
        optimizer.step()


def train_in_onnx(step, rate, updates):
    trainer = bngrad.Trainer(step, learning_rate=rate)
    for update in updates:
        dtype = step.info.data["x"].dtype
        x, target = batch(update, dtype)
        trainer.step(x=x, target=target)
    return trainer.state_dict()


def load_weights(module, state):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(state[name]))


def three_groups(module, **first):
    """Biases, the first weight and the second, in this order: not that of the parameters."""
    biases = [module.first.bias, module.second.bias]
    return [
        {"params": biases, "weight_decay": 0.0},
        {"params": [module.first.weight], **first},
        module.second.weight,
    ]


def in_groups(kind, **options):
    def make(module):
        biases, first, second = three_groups(module, lr=0.02)
        return kind(
            [biases, first, {"params": [second], "weight_decay": 0.3}], lr=0.05, weight_decay=0.1, **options
        )

    return make


def of(kind, **options):
    return lambda module: kind(module.parameters(), **{"lr": 0.05, **options})


def number(value):
    return torch.tensor(value, dtype=torch.float64)  # PyTorch computes a step size in the type of its tensors


SGD, Adam, AdamW, RMSprop = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
OPTIMIZERS = {
    "sgd": of(SGD),
    "sgd with weight decay": of(SGD, weight_decay=0.1),
    "momentum": of(SGD, momentum=0.9),
    "momentum and weight decay": of(SGD, momentum=0.9, weight_decay=0.01),
    "nesterov": of(SGD, momentum=0.8, nesterov=True, weight_decay=0.01),
    "sgd foreach": of(SGD, momentum=0.9, foreach=True),
    "sgd fused": of(SGD, momentum=0.9, fused=True),
    "sgd with tensors": of(SGD, lr=number(0.1), momentum=0.9, weight_decay=number(0.1)),
    "sgd groups": in_groups(SGD, momentum=0.9),
    "adam": of(Adam),
    "adam with weight decay": of(Adam, weight_decay=0.1, betas=(0.8, 0.99), eps=1e-6),
    "adam with decoupled weight decay": of(Adam, weight_decay=0.1, decoupled_weight_decay=True),
    "adam foreach": of(Adam, foreach=True),
    "adam with a tensor learning rate": of(Adam, lr=number(0.01)),
    "adam with tensor betas": of(Adam, betas=(number(0.8), number(0.99))),
    "adam groups": in_groups(Adam),
    "adamw": of(AdamW),
    "adamw with weight decay": of(AdamW, weight_decay=0.3, betas=(0.5, 0.999)),
    "adamw fused": of(AdamW, fused=True),
    "adamw groups": in_groups(AdamW),
    "rmsprop": of(RMSprop),
    "rmsprop centered": of(RMSprop, centered=True, alpha=0.9, eps=1e-3, weight_decay=0.1),
    "rmsprop with momentum": of(RMSprop, momentum=0.8, foreach=True),
    "rmsprop groups": in_groups(RMSprop, momentum=0.5, centered=True, eps=1e-2),
}


def trained_in_torch(make, dtype, updates):
    module = Network(DTYPES[dtype])
    optimizer = make(module)
    train_in_torch(module, optimizer, range(updates))
    return module, optimizer


def assert_same_weights(module, state, dtype):
    for name, parameter in module.named_parameters():
        expected = parameter.detach().numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(state[name], expected, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=name)


# Training that moves.


@pairwise(make=OPTIMIZERS, first=(0, FIRST), dtype=list(DTYPES))
def test_training_goes_on_in_a_training_step(make, first, dtype):
    expected, _ = trained_in_torch(make, dtype, UPDATES)
    module, optimizer = trained_in_torch(make, dtype, first)
    source = from_torch(optimizer, dict(module.named_parameters()))
    step = into_step(source, step_of(source, module))
    state = train_in_onnx(step, source.learning_rate, range(first, UPDATES))
    assert_same_weights(expected, state, dtype)


@every_value(make=OPTIMIZERS, layout=("named", "flat"), dtype=list(DTYPES))
def test_training_goes_back_to_torch(make, layout, dtype):
    expected, expected_optimizer = trained_in_torch(make, dtype, UPDATES)
    module, optimizer = trained_in_torch(make, dtype, 0)
    parameters = dict(module.named_parameters())
    source = from_torch(optimizer, parameters)
    step = step_of(source, module, layout=layout)
    state = train_in_onnx(step, source.learning_rate, range(FIRST))
    load_weights(module, state)
    into_torch(state, step.info, optimizer, parameters)
    train_in_torch(module, optimizer, range(FIRST, UPDATES))
    state = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    assert_same_weights(expected, state, dtype)
    ours, theirs = optimizer.state_dict(), expected_optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for key, entries in theirs["state"].items():
        assert {name for name, value in entries.items() if value is not None} <= set(ours["state"].get(key, {}))
        if "step" in entries:
            assert ours["state"][key]["step"] == entries["step"]
            assert ours["state"][key]["step"].dtype == entries["step"].dtype


@every_value(make=OPTIMIZERS, dtype=list(DTYPES))
def test_a_state_that_goes_and_comes_back_has_the_same_bits(make, dtype):
    module, optimizer = trained_in_torch(make, dtype, FIRST)
    parameters = dict(module.named_parameters())
    source = from_torch(optimizer, parameters)
    step = into_step(source, step_of(source, module))
    other = make(module)
    into_torch(step.state, step.info, other, parameters)
    assert_equal_states(other.state_dict(), {**optimizer.state_dict(), "state": kept(optimizer)})


def kept(optimizer):
    """The state without entries of None or nothing."""
    state = {
        key: {k: v for k, v in entries.items() if v is not None}
        for key, entries in optimizer.state_dict()["state"].items()
    }
    return {key: entries for key, entries in state.items() if entries}


def assert_equal_states(actual, expected):
    assert actual["param_groups"] == expected["param_groups"]
    assert actual["state"].keys() == expected["state"].keys()
    for key, entries in expected["state"].items():
        assert actual["state"][key].keys() == entries.keys()
        for name, value in entries.items():
            assert actual["state"][key][name].dtype == value.dtype
            assert torch.equal(actual["state"][key][name], value), (key, name)


# Reading.


def test_options_of_groups():
    module = Network()
    source = from_torch(in_groups(AdamW, betas=(0.8, 0.99), eps=1e-6)(module), dict(module.named_parameters()))
    assert source.optimizer == bngrad.AdamW(beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.0)
    assert source.learning_rate == 0.05
    assert source.weights == [name for name, _ in module.named_parameters()]
    assert source.state == {}
    assert source.groups == (
        bngrad.ParameterGroup(names=["first.weight"], learning_rate_scale=0.02 / 0.05, weight_decay=0.1),
        bngrad.ParameterGroup(names=["second.weight"], weight_decay=0.3),
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    {
        "sgd": (of(SGD, momentum=0.9, nesterov=True), bngrad.SGD(momentum=0.9, nesterov=True)),
        "adam": (of(Adam, weight_decay=0.1), bngrad.Adam(weight_decay=0.1)),
        "adamw": (of(AdamW), bngrad.AdamW(weight_decay=0.01)),
        "adam with decoupled decay": (of(Adam, decoupled_weight_decay=True), bngrad.AdamW(weight_decay=0)),
    }.values(),
)
def test_kinds(make, expected):
    module = Network()
    source = from_torch(make(module), dict(module.named_parameters()))
    assert (source.optimizer, type(source.optimizer)) == (expected, type(expected))


def test_a_learning_rate_of_zero_after_the_first_group_is_a_scale():
    module = Network()
    optimizer = SGD(
        [{"params": module.first.parameters()}, {"params": module.second.parameters(), "lr": 0.0}], lr=0.1
    )
    (group,) = from_torch(optimizer, dict(module.named_parameters())).groups
    assert group.learning_rate_scale == 0


def test_reading_changes_and_shares_nothing():
    module, optimizer = trained_in_torch(of(AdamW), "float32", FIRST)
    spare = nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [spare]})
    before = copy.deepcopy(optimizer.state_dict())
    source = from_torch(optimizer, {**dict(module.named_parameters()), "spare": spare})
    assert spare not in optimizer.state
    assert_equal_states(optimizer.state_dict(), before)
    arrays = copy.deepcopy(source.state)
    train_in_torch(module, optimizer, range(2))
    for name, array in source.state.items():
        np.testing.assert_array_equal(array, arrays[name])


def test_frozen_parameters_are_not_trained_and_keep_their_state():
    module, optimizer = trained_in_torch(of(AdamW), "float32", FIRST)
    module.first.requires_grad_(False)
    parameters = dict(module.named_parameters())
    source = from_torch(optimizer, parameters)
    weights = ["second.weight", "second.bias"]
    assert source.weights == weights
    assert set(source.state) == {f"{name}/{slot}" for name in weights for slot in bngrad.AdamW.slots} | {"step"}
    step = into_step(source, step_of(source, module, wrt=weights))
    before = kept(optimizer)
    into_torch(train_in_onnx(step, 0.05, range(2)), step.info, optimizer, parameters)
    after = optimizer.state_dict()["state"]
    assert [int(after[key]["step"]) for key in range(4)] == [FIRST, FIRST, FIRST + 2, FIRST + 2]
    assert torch.equal(after[0]["exp_avg"], before[0]["exp_avg"])
    assert not torch.equal(after[2]["exp_avg"], before[2]["exp_avg"])


def test_a_group_of_frozen_parameters_does_not_count():
    module = Network()
    module.first.requires_grad_(False)
    groups = [
        {"params": module.first.parameters(), "lr": 0.0, "momentum": 0.5},
        {"params": module.second.parameters()},
    ]
    source = from_torch(SGD(groups, lr=0.1, momentum=0.9), dict(module.named_parameters()))
    assert (source.optimizer, source.groups, source.learning_rate) == (bngrad.SGD(momentum=0.9), (), 0.1)


def test_a_parameter_that_the_step_does_not_use_is_no_obstacle():
    module = Network()
    unused = nn.ParameterDict({"a*": torch.zeros(3), "b": torch.zeros(3)})
    parameters = {**dict(unused.named_parameters()), **dict(module.named_parameters())}
    groups = [{"params": module.second.parameters()}, {"params": [unused["b"]], "lr": 0.3}]
    groups += [{"params": [unused["a*"], module.first.weight], "lr": 0.1}, {"params": [module.first.bias]}]
    optimizer = AdamW(groups, lr=0.05)
    train_in_torch(module, optimizer, range(FIRST))
    source = from_torch(optimizer, parameters)
    weights = [name for name, _ in module.named_parameters()]
    assert source.groups_of(weights) == [bngrad.ParameterGroup(names=["first.weight"], learning_rate_scale=2)]
    of_rates_and_of_updates = [["b"], ["a[*]"], ["a[*]", "b"]]
    assert [list(group.names) for group in source.groups_of(["a*", "b"])] == of_rates_and_of_updates
    step = into_step(source, step_of(source._replace(groups=source.groups_of(weights)), module))
    into_torch(step.state, step.info, optimizer, parameters)
    assert unused["b"] not in optimizer.state
    assert int(optimizer.state[module.first.weight]["step"]) == FIRST


def test_momentum_that_a_parameter_does_not_have_yet_is_zero():
    def trained(frozen_updates, updates):
        module = Network()
        optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
        module.first.requires_grad_(False)
        train_in_torch(module, optimizer, range(frozen_updates))
        module.first.requires_grad_(True)
        train_in_torch(module, optimizer, range(frozen_updates, updates))
        return module, optimizer

    module, optimizer = trained(FIRST, FIRST)
    source = from_torch(optimizer, dict(module.named_parameters()))
    assert set(source.state) == {"second.weight/momentum_buffer", "second.bias/momentum_buffer"}
    state = train_in_onnx(into_step(source, step_of(source, module)), 0.1, range(FIRST, UPDATES))
    assert_same_weights(trained(FIRST, UPDATES)[0], state, "float32")


def unfrozen_in_turn(kind, updates, **options):
    """The first weight is trained after `FIRST` updates, in a group of its own, and its bias after one more."""
    module = Network()
    optimizer = kind(module.second.parameters(), lr=0.05, **options)
    module.first.requires_grad_(False)
    for update in range(updates + 1):  # the parameters that are unfrozen last have no update yet
        if update == FIRST:
            module.first.weight.requires_grad_(True)
            optimizer.add_param_group({"params": list(module.first.parameters()), "lr": 0.02})
        if update == FIRST + 1:
            module.first.bias.requires_grad_(True)
        if update < updates:
            train_in_torch(module, optimizer, [update])
    return module, optimizer


@pytest.mark.parametrize("layout", ["named", "flat"])
@pytest.mark.parametrize("first", [FIRST + 1, FIRST + 2])
@pytest.mark.parametrize(
    ("kind", "options"), [(Adam, {"weight_decay": 0.1}), (AdamW, {}), (SGD, {"momentum": 0.9})]
)
def test_updates_are_counted_for_each_parameter(kind, options, first, layout):
    """Parameters with no update, with fewer and with more go over, and come back."""
    expected, expected_optimizer = unfrozen_in_turn(kind, UPDATES, **options)
    module, optimizer = unfrozen_in_turn(kind, first, **options)
    parameters = dict(module.named_parameters())
    source = from_torch(optimizer, parameters)
    behind = {
        name: group.updates_behind for group in source.groups for name in group.names if group.updates_behind
    }
    counted = {"first.weight": FIRST, "first.bias": FIRST + 1}
    assert behind == ({} if kind is SGD else counted)
    step = into_step(source, step_of(source, module, layout=layout))
    held = {name: entry.updates_behind for name, entry in step.info.state.items() if entry.updates_behind}
    assert held == behind
    trainer = bngrad.Trainer(step, learning_rate=0.05)
    assert trainer.updates == (0 if kind is SGD else first)
    state = train_in_onnx(step, 0.05, range(first, UPDATES))
    assert_same_weights(expected, state, "float32")
    into_torch(state, step.info, optimizer, parameters)
    counts = [optimizer.state[parameter].get("step") for parameter in module.parameters()]
    assert counts == [expected_optimizer.state[parameter].get("step") for parameter in expected.parameters()]


def test_groups_keep_their_ratio_where_a_warm_up_starts_at_zero():
    def warm(module):
        optimizer = halves(AdamW, {"lr": 0.01}, {"lr": 0.05})(module)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: update / 4)

    expected = Network()
    optimizer, scheduler = warm(expected)
    for update in range(UPDATES):
        train_in_torch(expected, optimizer, [update])
        scheduler.step()
    module = Network()
    optimizer, _ = warm(module)
    assert [group["lr"] for group in optimizer.param_groups] == [0, 0]
    source = from_torch(optimizer, dict(module.named_parameters()))
    assert [group.learning_rate_scale for group in source.groups] == [5.0]
    step = into_step(source, step_of(source, module))
    state = train_in_onnx(step, lambda update: 0.01 * update / 4, range(UPDATES))
    assert_same_weights(expected, state, "float32")


def test_a_scheduler_is_no_obstacle():
    module = Network()
    optimizer = AdamW(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train_in_torch(module, optimizer, [0])
    scheduler.step()
    assert from_torch(optimizer, dict(module.named_parameters())).learning_rate == 0.05


# Names.


def named(*names):
    """A `Network`, and its parameters under other names, as of a ParameterDict."""
    module = Network()
    return module, dict(zip(names, module.parameters(), strict=True))


NAMES = {
    "patterns": ("w*", "w[1]", "w1", "w?"),
    "the names of other state": ("step", "learning_rate", "step_new", "micro_step"),
    "slots": ("a", "a/exp_avg", "a/exp_avg_new", "a/accumulated_gradient"),
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_every_name_of_a_parameter_is_its_own(names, accumulate):
    module, parameters = named(*names)
    rates = (0.01, 0.02, 0.03, 0.04)
    optimizer = AdamW([{"params": [p], "lr": lr} for p, lr in zip(parameters.values(), rates, strict=True)])
    train_in_torch(module, optimizer, range(FIRST))
    source = from_torch(optimizer, parameters)
    step = into_step(
        source,
        bngrad.training_step(
            forward_model(parameters), optimizer=source.optimizer, groups=source.groups, accumulate=accumulate
        ),
    )
    repeated = [update for update in range(FIRST, UPDATES) for _ in range(accumulate)]
    state = train_in_onnx(step, source.learning_rate, repeated)
    train_in_torch(module, optimizer, range(FIRST, UPDATES))
    expected = kept(optimizer)
    for name, parameter in parameters.items():
        np.testing.assert_allclose(state[name], parameter.detach().numpy(), rtol=0, atol=1e-5)
    into_torch(state, step.info, optimizer, parameters)
    for key, entries in expected.items():
        actual = optimizer.state_dict()["state"][key]
        assert actual["step"] == entries["step"] == UPDATES
        for slot in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(actual[slot], entries[slot], rtol=1e-4, atol=1e-6)


# 16-bit parameters.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [SGD, AdamW, RMSprop])
def test_the_state_of_16_bit_parameters_is_float32(kind, dtype):
    options = {"momentum": 0.9} if kind is SGD else {}
    reference, optimizer = trained_in_torch(of(kind, **options), "float32", FIRST)
    module = Network(dtype)
    rounded = kind(module.parameters(), lr=0.05, **options)
    rounded.load_state_dict(optimizer.state_dict())
    source = from_torch(rounded, dict(module.named_parameters()))
    assert {array.dtype for name, array in source.state.items() if name != "step"} == {np.dtype(np.float32)}
    step = into_step(source, step_of(source, reference))
    again = kind(module.parameters(), lr=0.05, **options)
    into_torch(step.state, step.info, again, dict(module.named_parameters()))
    assert_equal_states(again.state_dict(), rounded.state_dict())
    assert again.state[module.first.weight][source.optimizer.slots[0]].dtype == dtype


@pytest.mark.parametrize(
    ("value", "dtype", "nonzero", "expected"),
    {
        "rounded": (1 + 2**-9, torch.bfloat16, True, 1),
        "a first moment that vanishes": (1e-9, torch.float16, False, 0),
        "a small value of a wide type": (1e-30, torch.bfloat16, True, torch.tensor(1e-30).bfloat16().item()),
        "infinity stays": (np.inf, torch.float16, True, np.inf),
    }.values(),
)
def test_values_that_a_16_bit_type_holds(value, dtype, nonzero, expected):
    tensor = to_tensor(np.array([value], np.float32), torch.zeros(1, dtype=dtype), "it", nonzero=nonzero)
    assert (tensor.dtype, tensor.item()) == (dtype, expected)


@pytest.mark.parametrize(
    ("value", "nonzero"), {"too large": (1e5, False), "a second moment that vanishes": (1e-9, True)}.values()
)
def test_values_that_a_16_bit_type_does_not_hold(value, nonzero):
    with pytest.raises(InputError, match=r"it has the value 1e.0\d, out of the range of torch.float16"):
        to_tensor(np.array([0, value], np.float32), torch.zeros(2, dtype=torch.float16), "it", nonzero=nonzero)


def test_the_state_has_the_memory_layout_of_the_parameter():
    parameter = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    array = np.arange(96, dtype=np.float32).reshape(2, 3, 4, 4)
    array.flags.writeable = False  # PyTorch warns of such arrays
    tensor = to_tensor(array, parameter, "it")
    assert tensor.stride() == parameter.stride()
    np.testing.assert_array_equal(tensor.numpy(), array)


# Refusals.


class OwnSGD(torch.optim.SGD):
    pass


def changed(make, **options):
    """An optimizer with options that its constructor refuses or does not have."""

    def make_changed(module):
        optimizer = make(module)
        optimizer.param_groups[0].update(options)
        return optimizer

    return make_changed


def stepped(make, change):
    """An optimizer after updates, and a change of it."""

    def make_stepped(module):
        optimizer = make(module)
        train_in_torch(module, optimizer, range(FIRST))
        change(module, optimizer)
        return optimizer

    return make_stepped


def halves(kind, first=None, second=None, **options):
    """An optimizer with the two layers as groups."""

    def make(module):
        groups = [{"params": module.first.parameters(), **(first or {})}]
        groups += [{"params": module.second.parameters(), **(second or {})}]
        return kind(groups, **{"lr": 0.1, **options})

    return make


def with_hook(module, register="register_step_pre_hook"):
    optimizer = SGD(module.parameters(), lr=0.1)
    getattr(optimizer, register)(lambda *_: None)
    return optimizer


def with_own_step(of_what):
    """An optimizer, built from a module or passed, whose step was assigned."""
    optimizer = SGD(of_what.parameters(), lr=0.1) if isinstance(of_what, nn.Module) else of_what
    optimizer.step = lambda closure=None, step=optimizer.step: step(closure)
    return optimizer


def scheduled(schedule, kind=None, **options):
    """An optimizer with a scheduler."""

    def make(module):
        optimizer = (kind or (lambda of_what: SGD(of_what, lr=0.1, momentum=0.9)))(module.parameters())
        schedule(optimizer, **options)
        return optimizer

    return make


def set_state(slot, value):
    return lambda module, optimizer: optimizer.state[module.first.weight].__setitem__(slot, value)


def lose(slot):
    return lambda module, optimizer: optimizer.state[module.first.weight].pop(slot)


def convert(dtype):
    return lambda module, _: setattr(module, "first", module.first.to(dtype))


def with_sparse(module):
    module.first.weight = nn.Parameter(torch.zeros(5, 3).to_sparse())
    return SGD(module.parameters(), lr=0.1)


def with_complex(module):
    module.first.weight = nn.Parameter(torch.zeros(5, 3, dtype=torch.complex64))
    return SGD(module.parameters(), lr=0.1)


def with_foreign(module):
    return SGD([*module.parameters(), nn.Parameter(torch.zeros(7, 9))], lr=0.1)


def all_frozen(module):
    module.requires_grad_(False)
    return SGD(module.parameters(), lr=0.1)


MOMENTUM = of(SGD, momentum=0.9)
READ_REFUSALS = {
    "a class of another formula": (
        of(torch.optim.Adagrad),
        r"is a torch\.optim\.adagrad\.Adagrad; expected a torch",
    ),
    "a subclass": (of(OwnSGD), r"OwnSGD; expected a torch.optim.SGD, Adam, AdamW or RMSprop, not a subclass"),
    "no optimizer": (lambda _: "sgd", r"the optimizer is a builtins\.str; expected"),
    "a hook": (with_hook, "has step hooks"),
    "a hook behind the step": (
        lambda module: with_hook(module, "register_step_post_hook"),
        "has step hooks, which a training step does not run",
    ),
    "a step of its own": (with_own_step, r"a step of its own \(optimizer.step was assigned\)"),
    "a step of its own behind a scheduler": (
        lambda module: with_own_step(scheduled(torch.optim.lr_scheduler.ConstantLR)(module)),
        "a step of its own",
    ),
    "a schedule of momentum": (
        scheduled(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=9),
        "group 0 of the optimizer has a schedule of momentum or betas, .*with cycle_momentum=False",
    ),
    "a schedule of betas": (
        scheduled(torch.optim.lr_scheduler.CyclicLR, Adam, base_lr=0.1, max_lr=0.2),
        "has a schedule of momentum or betas",
    ),
    "amsgrad": (of(Adam, amsgrad=True), "group 0 of the optimizer has amsgrad=True; expected amsgrad=False"),
    "amsgrad of a later group": (
        halves(AdamW, {}, {"amsgrad": True}),
        "group 1 of the optimizer has amsgrad=True",
    ),
    "maximize sgd": (of(SGD, maximize=True), "has maximize=True; expected maximize=False"),
    "maximize rmsprop": (of(RMSprop, maximize=True), "has maximize=True"),
    "alpha of groups": (
        halves(RMSprop, {}, {"alpha": 0.9}),
        "group 1 of the optimizer has alpha 0.9, and group 0",
    ),
    "maximize adam": (of(Adam, maximize=True), "has maximize=True"),
    "dampening": (of(SGD, momentum=0.9, dampening=0.1), "has dampening=0.1; expected dampening=0"),
    "differentiable": (of(Adam, differentiable=True), "has differentiable=True"),
    "momentum of groups": (
        halves(SGD, {}, {"momentum": 0.8}, momentum=0.9),
        "group 1 of the optimizer has momentum 0.8, and group 0 of the optimizer has 0.9; expected one value",
    ),
    "nesterov of groups": (halves(SGD, {}, {"nesterov": True}, momentum=0.9), "has nesterov True, and group 0"),
    "betas of groups": (halves(Adam, {}, {"betas": (0.9, 0.99)}), "group 1 of the optimizer has beta2 0.99, and"),
    "eps of groups": (halves(AdamW, {}, {"eps": 1e-6}), "has eps 1e-06, and group 0 of the optimizer has 1e-08"),
    "decoupling of groups": (
        halves(Adam, {}, {"decoupled_weight_decay": True}),
        "group 1 of the optimizer has name adamw, and group 0 of the optimizer has adam",
    ),
    "a first learning rate of 0": (halves(SGD, {"lr": 0.0}), "lr of group 0 of the optimizer is 0, and"),
    "a first learning rate that starts at 0": (
        halves(SGD, {"lr": 0.0, "initial_lr": 0.0}, {"lr": 0.0, "initial_lr": 0.2}),
        "lr of group 0 of the optimizer is 0, and",
    ),
    "a group that a scheduler does not know": (
        halves(SGD, {"lr": 0.0, "initial_lr": 0.1}, {"lr": 0.0}),
        "lr of all groups is 0, and group 1 of the optimizer has no initial_lr; expected one in each group",
    ),
    "a negative learning rate": (
        changed(of(SGD), lr=-0.1),
        "lr of group 0 of the optimizer is -0.1; expected a fi",
    ),
    "a learning rate that is no number": (changed(of(SGD), lr="high"), "lr of group 0 of the optimizer is 'high'"),
    "learning rates in a tensor": (changed(of(SGD), lr=torch.ones(2)), "lr of group 0 of the optimizer is tensor"),
    "NaN": (changed(MOMENTUM, momentum=float("nan")), "SGD: momentum is nan; expected a finite number"),
    "nesterov without momentum": (changed(of(SGD), nesterov=True), "nesterov is true and momentum is 0"),
    "a parameter of another module": (
        with_foreign,
        r"a parameter of shape \[7, 9\] that the module does not have",
    ),
    "nothing to train": (all_frozen, "no parameter that requires a gradient"),
    "a complex parameter": (
        with_complex,
        "parameter 'first.weight' is torch.complex64; expected one of torch.float",
    ),
    "a sparse parameter": (with_sparse, "parameter 'first.weight' has the layout torch.sparse_coo"),
    "a fractional step count": (
        stepped(of(Adam), set_state("step", 2.5)),
        "step of 'first.weight' is 2.5; expected",
    ),
    "a negative step count": (stepped(of(Adam), set_state("step", -1)), r"step of 'first.weight' is -1\.0"),
    "no step count": (stepped(of(Adam), lose("step")), "state of 'first.weight' lacks 'step'"),
    "no second moment": (stepped(of(AdamW), lose("exp_avg_sq")), "state of 'first.weight' lacks 'exp_avg_sq'"),
    "a momentum buffer of another shape": (
        stepped(MOMENTUM, set_state("momentum_buffer", torch.zeros(3, 5))),
        r"momentum_buffer of 'first.weight' has shape \[3, 5\]; expected \[5, 3\], that of the parameter",
    ),
    "a moment of a wider type": (
        stepped(of(Adam), set_state("exp_avg", torch.zeros(5, 3).double())),
        "exp_avg of 'first.weight' is torch.float64; expected torch.float32",
    ),
    "a sparse momentum buffer": (
        stepped(MOMENTUM, set_state("momentum_buffer", torch.zeros(5, 3).to_sparse())),
        "momentum_buffer of 'first.weight' has the layout torch.sparse_coo; expected a dense tensor",
    ),
}


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("ConstantLR", {}),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 9, "cycle_momentum": False}),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.2, "cycle_momentum": False}),
    ],
)
def test_schedules_of_the_learning_rate_alone(schedule, options):
    module = Network()
    optimizer = scheduled(getattr(torch.optim.lr_scheduler, schedule), **options)(module)
    assert from_torch(optimizer, dict(module.named_parameters())).optimizer.momentum == 0.9


@pytest.mark.parametrize(("make", "message"), READ_REFUSALS.values(), ids=READ_REFUSALS)
def test_optimizers_that_a_training_step_does_not_have(make, message):
    module = Network()
    optimizer = make(module)
    with pytest.raises(InputError, match=message) as caught:
        from_torch(optimizer, dict(module.named_parameters()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_all_optimizers(when):
    module = Network()
    register = getattr(import_module("torch.optim.optimizer"), f"register_optimizer_step_{when}_hook")
    handle = register(lambda *_: None)
    try:
        with pytest.raises(InputError, match="all optimizers have step hooks"):
            from_torch(SGD(module.parameters(), lr=0.1), dict(module.named_parameters()))
    finally:
        handle.remove()
    from_torch(SGD(module.parameters(), lr=0.1), dict(module.named_parameters()))


def test_a_name_that_no_pattern_matches_alone():
    _, parameters = named("w*", "w[*]", "b", "c")
    first, *others = parameters.values()
    with pytest.raises(InputError, match=r"no pattern matches parameter 'w\*' and not 'w\[\*\]'; rename"):
        from_torch(SGD([{"params": others}, {"params": [first], "lr": 0.5}], lr=0.1), parameters)


def unfrozen(module):
    """Adam after updates without the first layer."""
    optimizer = Adam(module.second.parameters(), lr=0.05)
    train_in_torch(module, optimizer, range(FIRST))
    optimizer.add_param_group({"params": list(module.first.parameters())})
    return optimizer


STEP_REFUSALS = {
    "another kind": (
        of(AdamW),
        {"optimizer": bngrad.Adam()},
        "kind of the optimizer is adamw, and that of the trai",
    ),
    "another momentum": (
        MOMENTUM,
        {"optimizer": bngrad.SGD(momentum=0.8)},
        "momentum of the optimizer is 0.9, and",
    ),
    "another weight decay": (
        of(Adam),
        {"optimizer": bngrad.Adam(weight_decay=1)},
        "weight_decay of the optimizer is",
    ),
    "a weight that it has not": (
        halves(SGD),
        {"wrt": None, "drop": "first"},
        "trains 'first.weight' and 'first.bias'",
    ),
    "groups without the updates of each weight": (
        unfrozen,
        {"groups": ()},
        "'first.weight' is 3 updates behind in the optimizer, and 0 in the training step; expected a step of",
    ),
    "defaults": (MOMENTUM, {"defaults": True}, "the inputs of the training step have defaults"),
}


@pytest.mark.parametrize(("make", "options", "message"), STEP_REFUSALS.values(), ids=STEP_REFUSALS)
def test_steps_that_are_not_of_the_optimizer(make, options, message):
    module = Network()
    source = from_torch(make(module), dict(module.named_parameters()))
    options = {"optimizer": source.optimizer, "groups": source.groups, **options}
    dropped = options.pop("drop", None)
    step = bngrad.training_step(forward_model(dict(module.named_parameters())), **options)
    if dropped:
        source = source._replace(weights=[name for name in source.weights if not name.startswith(dropped)])
    with pytest.raises(InputError, match=message):
        into_step(source, step)


ADAM = of(Adam, weight_decay=0.1)


def without(prefix):
    return lambda state, _: {name: array for name, array in state.items() if not name.startswith(prefix)}


def other_dtype(state, module):
    module.double()
    return state


def other_shape(state, module):
    module.first = nn.Linear(4, 5)
    return state


def huge(state, module):
    module.half()
    return state | {"first.bias/exp_avg": np.full(5, 1e6, np.float32)}


def tiny(state, module):
    module.half()
    return state | {"second.bias/exp_avg_sq": np.full(2, 1e-12, np.float32)}


def as_is(state, _):
    return state


BACK_REFUSALS = {
    "another class": (of(SGD), as_is, 2, "kind of the optimizer is sgd, and that of the training step is adam"),
    "decoupled weight decay": (of(AdamW, weight_decay=0.1), as_is, 2, "kind of the optimizer is adamw, and"),
    "amsgrad": (of(Adam, weight_decay=0.1, amsgrad=True), as_is, 2, "has amsgrad=True"),
    "beta1": (
        of(Adam, weight_decay=0.1, betas=(0.8, 0.999)),
        as_is,
        2,
        "beta1 of the optimizer is 0.8, and that of",
    ),
    "eps": (
        of(Adam, weight_decay=0.1, eps=1e-5),
        as_is,
        2,
        "eps of the optimizer is 1e-05, and that of the training",
    ),
    "weight decay of no group": (
        halves(Adam, {"weight_decay": 0.2}),
        as_is,
        2,
        r"weight_decay of the optimizer is 0.2 or 0.0, and that of the training step is 0.1; expected the same",
    ),
    "a weight that it has not": (
        lambda module: Adam(module.first.parameters(), weight_decay=0.1),
        as_is,
        2,
        "trains 'second.weight' and 'second.bias', and the optimizer does not",
    ),
    "accumulated gradients": (ADAM, as_is, 3, "1 of the 2 calls of an update.* until the next one: 1"),
    "no moments": (
        ADAM,
        without("first.weight/"),
        2,
        "the state lacks 'first.weight/accumulated_gradient', 'first",
    ),
    "another shape": (ADAM, other_shape, 2, r"exp_avg of 'first.weight' has shape \[5, 3\]; expected \[5, 4\]"),
    "another type": (ADAM, other_dtype, 2, "exp_avg of 'first.weight' is torch.float32; expected torch.float64"),
    "values too large for float16": (
        ADAM,
        huge,
        2,
        r"exp_avg of 'first.bias' has the value 1e\+06, out of the range",
    ),
    "values too small for float16": (ADAM, tiny, 2, "exp_avg_sq of '[a-z.]*' has the value .*, out of the range"),
}


@pytest.mark.parametrize(("make", "change", "calls", "message"), BACK_REFUSALS.values(), ids=BACK_REFUSALS)
def test_states_that_do_not_go_into_an_optimizer(make, change, calls, message):
    module = Network()
    source = from_torch(ADAM(module), dict(module.named_parameters()))
    step = step_of(source, module, accumulate=2)
    state = change(train_in_onnx(step, 0.05, range(calls)), module)
    optimizer = make(module)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(InputError, match=message) as caught:
        into_torch(state, step.info, optimizer, dict(module.named_parameters()))
    assert "\n" not in str(caught.value)
    assert_equal_states(optimizer.state_dict(), before)


def test_an_optimizer_and_a_state_share_no_memory():
    module = Network()
    parameters = dict(module.named_parameters())
    optimizer = ADAM(module)
    source = from_torch(optimizer, parameters)
    step = step_of(source, module)
    state = train_in_onnx(step, 0.05, range(2))
    before = copy.deepcopy(state)
    into_torch(state, step.info, optimizer, parameters)
    train_in_torch(module, optimizer, range(2))
    for name, array in state.items():
        np.testing.assert_array_equal(array, before[name])
