"""Training graphs whose backward pass PyTorch's autograd computes: their results are PyTorch's."""

from __future__ import annotations

import copy
import warnings
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402
from joint_modules import CASES  # noqa: E402

FLOAT32, FLOAT64 = 2e-6, 1e-12
IN_FLOAT64 = ("rows", "layer-norm", "embedding", "tied", "attention", "slices", "dropout-of-0", "no-grad")
"""The cases whose ops ONNX Runtime has in float64."""


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def data_of(case, size):
    generator = torch.Generator().manual_seed(size)
    shape = (size, *case.shape)
    x = torch.randint(case.classes, shape, generator=generator) if case.classes else None
    return torch.randn(shape, generator=generator) if x is None else x, torch.arange(size) % 3


def eager(module, data, loss_fn=functional.cross_entropy):
    """The loss, the gradients and the new buffers in PyTorch."""
    module = copy.deepcopy(module)
    loss = loss_fn(module(data[0]), *data[1:])
    loss.backward()
    tensors = {"loss": loss.detach()}
    gradients = {f"{name}_grad": parameter.grad for name, parameter in module.named_parameters()}
    tensors |= {name: gradient for name, gradient in gradients.items() if gradient is not None}
    tensors |= {f"{name}_new": buffer for name, buffer in module.named_buffers()}
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def run(model, data):
    """All outputs of a training graph, and its metadata."""
    session, info = bngrad.session(model), bngrad.read_training_graph(model)
    feeds = [
        value.name for value in model.graph.input if value.name not in {*info.gradients, *info.running_statistics}
    ]
    names = [value.name for value in session.get_outputs()]
    values = session.run(None, {name: tensor.numpy() for name, tensor in zip(feeds, data, strict=True)})
    return dict(zip(names, values, strict=True)), info


def require_equal(got, want, tolerance):
    """Compares values; the rounding error of a sum that is nearly 0 has the size of its terms."""
    size = max(np.linalg.norm(value) for name, value in want.items() if name.endswith("_grad"))
    for name, value in want.items():
        if name.endswith("_new") and name not in got:
            continue
        assert got[name].dtype == value.dtype, name
        assert np.linalg.norm(got[name] - value) <= tolerance * (np.linalg.norm(value) + size), name


def sample(*short, of):
    """Parametrizes a test by names; those that are not among the short ones are marked ``long``."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in short)) for name in of]
    )


@sample(
    "conv-bn-relu", "resnet", "1d", "frozen", "twice", "rows", "group-norm", "embedding", "transposed", "slices",
    "max-pool-overlap", "adaptive-average", "attention", "lstm", "custom-function", "checkpoint",
    of=CASES,
)  # fmt: skip
def test_a_training_graph_computes_what_pytorch_does(name):
    """In another batch size than that of the example."""
    case = CASES[name]
    torch.manual_seed(1)
    module = case.make()
    before = copy.deepcopy(module.state_dict())
    model = bngrad.torch.import_joint(module, functional.cross_entropy, data_of(case, 6), check=False)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    data = data_of(case, 5)
    want = eager(module, data)
    got, info = run(model, data)
    assert set(info.gradients.values()) == {key for key in want if key.endswith("_grad")}
    changed = {key for key, old in module.named_buffers() if not np.array_equal(want[f"{key}_new"], old.numpy())}
    assert set(info.running_statistics) == changed
    require_equal(got, want, FLOAT32)


@pytest.mark.parametrize("name", IN_FLOAT64)
def test_a_module_in_float64_is_computed_in_float64(name):
    case = CASES[name]
    torch.manual_seed(1)
    module = case.make().double()
    x, target = data_of(case, 6)
    data = (x.double() if x.is_floating_point() else x, target)
    # With a symbolic batch, PyTorch's exporter computes 1 / N in float32.
    model = bngrad.torch.import_joint(
        module, functional.cross_entropy, data, dynamic_batch=False, check=False, recognize=False
    )
    require_equal(run(model, data)[0], eager(module, data), FLOAT64)


@sample("conv-bn-relu", "rows", of=["conv-bn-relu", "resnet", "twice", "rows"])
def test_batch_norms_are_recognized_unless_that_is_off(name):
    case = CASES[name]
    torch.manual_seed(1)
    module, data = case.make(), data_of(case, 6)
    calls = {"conv-bn-relu": 1, "resnet": 6, "twice": 2, "rows": 1}[name]
    for recognize in (True, False):
        model = bngrad.torch.import_joint(module, functional.cross_entropy, data, check=False, recognize=recognize)
        ops = Counter(node.op_type for node in model.graph.node if "BatchNorm" in node.op_type)
        gradients = ops["BatchNormalizationGrad"] + ops["BatchNormalizationReluGrad"]
        assert gradients == (calls if recognize else 0), ops
        require_equal(run(model, data)[0], eager(module, data), FLOAT32)


def test_what_needs_no_sum_is_equal_bit_for_bit():
    class Elements(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.offset = nn.Parameter(torch.randn(6, 2, 4, 4)), nn.Parameter(torch.randn(6, 2, 4, 4))

        def forward(self, x):
            return functional.max_pool2d(torch.relu(x * self.scale + self.offset), 2)

    torch.manual_seed(1)
    module, data = Elements(), (torch.randn(6, 2, 4, 4),)
    model = bngrad.torch.import_joint(module, lambda y: y.sum(), data, dynamic_batch=False)
    got, want = run(model, data)[0], eager(module, data, lambda y: y.sum())
    for name in ("scale_grad", "offset_grad"):
        assert np.array_equal(got[name], want[name]), name


def test_dropout_is_random_and_its_gradient_has_the_mask_of_the_forward_pass():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(4, 400), nn.Dropout(0.25))
    model = bngrad.torch.import_joint(module, lambda y: y.sum(), (torch.randn(6, 4),))
    got, _ = run(model, (torch.ones(6, 4),))
    kept = got["output"] != 0
    assert 0.7 < kept.mean() < 0.8
    np.testing.assert_allclose(got["0.bias_grad"], kept.sum(0) / 0.75, rtol=1e-6)


LOSSES = {
    "label-smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weights-and-ignored": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), ignore_index=1),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "margin": nn.MultiMarginLoss(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_pytorchs(name):
    torch.manual_seed(1)
    module, data, loss_fn = nn.Linear(4, 3), data_of(CASES["rows"], 6), LOSSES[name]
    model = bngrad.torch.import_joint(module, loss_fn, data)
    require_equal(run(model, data)[0], eager(module, data, loss_fn), FLOAT32)


BATCH_SIZES = {
    "number": (lambda m, x: m[0](x) * int(x.shape[0]), False),
    "condition": (lambda m, x: m[0](x) * (2 if x.shape[0] > 4 else 3), False),
    "symbol": (lambda m, x: m[0](x) * x.shape[0], True),
}


@pytest.mark.parametrize("name", BATCH_SIZES)
def test_a_batch_size_that_the_module_computes_with_is_fixed(name):
    from joint_modules import Function

    function, symbolic = BATCH_SIZES[name]
    module, data = Function(function, nn.Linear(4, 3)), data_of(CASES["rows"], 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", bngrad.BngradWarning)
        model = bngrad.torch.import_joint(module, functional.cross_entropy, data)
    assert bool(model.graph.input[0].type.tensor_type.shape.dim[0].dim_param) == symbolic
    assert any("fixed at 6" in str(warning.message) for warning in caught) != symbolic
    require_equal(run(model, data)[0], eager(module, data), FLOAT32)


def hooked_parameter():
    module = nn.Linear(4, 3)
    module.weight.register_hook(lambda gradient: gradient)
    return module


def image_module(*modules):
    return lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), *modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


IMAGES, ROWS = (torch.randn(6, 3, 9, 9), torch.arange(6) % 3), (torch.randn(6, 4), torch.arange(6) % 3)
REFUSED = {
    "a-hook-of-a-parameter": (hooked_parameter, ROWS, bngrad.UnsupportedNodeError, "'weight' has a gradient hook"),
    "windows-that-differ": (
        image_module(nn.AdaptiveMaxPool2d(3)),
        IMAGES,
        bngrad.UnsupportedNodeError,
        r"adaptive max pooling of \[7, 7\] elements to \[3, 3\]",
    ),
    "a-divisor": (
        image_module(nn.AvgPool2d(3, divisor_override=2)),
        IMAGES,
        bngrad.UnsupportedNodeError,
        "divisor_override=2",
    ),
    "an-op-without-translation": (
        image_module(nn.FractionalMaxPool2d(2, output_size=3)),
        IMAGES,
        bngrad.BngradError,
        "fractional_max_pool2d",
    ),
    "a-branch-on-values": (Branch, ROWS, bngrad.ModelError, "cannot trace"),
    "a-loss-per-row": (
        lambda: nn.Linear(4, 3),
        ROWS,
        bngrad.InputError,
        r"the loss is float32\[6\]; expected a float scalar",
    ),
    "nothing-to-train": (
        lambda: nn.Linear(4, 3).requires_grad_(False),
        ROWS,
        bngrad.InputError,
        "no parameter of the module requires a gradient",
    ),
    "a-batch-of-one": (lambda: nn.Linear(4, 3), [tensor[:1] for tensor in ROWS], bngrad.InputError, "batch of 1"),
    "no-module": (lambda: nn.functional.relu, ROWS, bngrad.InputError, "expected a torch.nn.Module"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_is_wrong(name):
    make, data, error, message = REFUSED[name]
    reduction = "none" if name == "a-loss-per-row" else "mean"
    with pytest.raises(error, match=message):
        bngrad.torch.import_joint(make(), nn.CrossEntropyLoss(reduction=reduction), data)


def test_a_wrong_translation_is_found_by_the_check(monkeypatch):
    from bngrad.torch.joint import translations

    def no_gradient(gradient, x, threshold):  # noqa: ARG001
        return gradient

    table = translations.joint_translations()
    table[torch.ops.aten.threshold_backward.default] = no_gradient
    monkeypatch.setattr("bngrad.torch.joint.build.joint_translations", lambda: table)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(bngrad.ModelError, match=r"is not PyTorch's: 0\.(bias|weight)_grad is .* off"):
        bngrad.torch.import_joint(module, nn.CrossEntropyLoss(), ROWS)
    assert bngrad.torch.import_joint(module, nn.CrossEntropyLoss(), ROWS, check=False).graph.node


def test_defaults_can_be_left_out():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model = bngrad.torch.import_joint(module, nn.CrossEntropyLoss(), ROWS, defaults=False, functions=False)
    info = bngrad.read_training_graph(model)
    assert not {*info.gradients, *info.running_statistics} & {value.name for value in model.graph.initializer}
    assert not model.functions
