"""The sizes for which a training step is right: the assumptions of torch.export, and `dynamic_shapes`."""

from __future__ import annotations

import json
import warnings

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.export import Dim  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402
from bngrad.autodiff.size_conditions import condition_text, holds  # noqa: E402
from bngrad.errors import InputError, ModelError, UnsupportedNodeError  # noqa: E402


class Net(nn.Module):
    """A layer, a batch norm, and a loss of its own."""

    def __init__(self, compute):
        super().__init__()
        self.fc, self.bn, self.compute = nn.Linear(4, 3), nn.BatchNorm1d(4), compute

    def forward(self, x, t):
        return self.compute(self, x, t)


def asserts(self, x, _):
    assert x.shape[0] >= 3
    return self.fc(x).sum()


def halves(self, x, _):
    first, second = x.chunk(2)
    return (self.fc(first) - self.fc(second)).pow(2).sum()


def loops(self, x, _):
    y = self.fc(x)
    return sum(y[index].sum() * index for index in range(min(3, y.shape[0])))


def checks(self, x, _):
    torch._check(x.shape[0] < 100)
    return self.fc(x).sum()


BRANCHES = {
    "branch": (lambda self, x, _: self.fc(self.bn(x) if x.shape[0] > 6 else x).sum(), ["N > 6", "N != 1"]),
    "branch-on-one": (lambda self, x, _: self.fc(x * 2 if x.shape[0] > 1 else x).sum(), ["N > 1"]),
    "branch-on-parity": (lambda self, x, _: self.fc(x).sum() * (2 if x.shape[0] % 2 == 0 else 1), ["N % 2 == 0"]),
    "branch-on-elements": (lambda self, x, _: self.fc(x).sum() * (2 if x.numel() > 20 else 1), ["4 * N > 20"]),
    "branch-on-a-ratio": (
        lambda self, x, _: self.fc(x).sum() * (2 if x.shape[0] / 3 > 1.5 else 1),
        ["N / 3 > 3 / 2"],
    ),
    "not-a-size": (lambda self, x, _: self.fc(x).sum() * (2 if x.shape[0] != 5 else 1), ["N != 5"]),
    "assert": (asserts, ["N >= 3"]),
    "check": (checks, ["N < 100"]),
    "blocks": (
        lambda self, x, _: self.fc(x.reshape(-1, 4, 4)).sum(),
        ["4 * N % 16 == 0", "4 * N == 16 * (N // 4)"],
    ),
    "loop": (loops, ["min(3, N) == 3", "N > 1", "N > 2"]),
    "squeeze": (lambda self, x, _: self.fc(x).squeeze().sum(), ["N != 1"]),
    "batch-norm": (lambda self, x, _: self.fc(self.bn(x)).sum(), ["N != 1"]),
    "every-size": (lambda self, x, t: functional.cross_entropy(self.fc(x), t), []),
}
FIXED = {
    "rounded": lambda self, x, _: self.fc(x[: int(x.shape[0] * 0.3) + 1]).sum(),
    "rounded-quotient": lambda self, x, _: self.fc(x).sum() * (2 if x.shape[0] / 3 > 1 / 3 else 1),
    "length": lambda self, x, _: self.fc(x).sum() * (2 if len(x) < 9 else 1),
    "number": lambda self, x, _: self.fc(x).sum() / float(x.shape[0]),
    "rows": lambda self, x, _: (self.fc(x) * torch.arange(8.0)[:, None]).sum(),
}
X, T = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def plain(text):
    return text.replace("(", "").replace(")", "")


def info_of(model):
    return json.loads({entry.key: entry.value for entry in model.metadata_props}["bngrad.forward"])


def conditions_of(model):
    info = info_of(model)
    return list(map(condition_text, info["size_conditions"] + info["training_size_conditions"]))


@pytest.mark.parametrize("name", BRANCHES)
def test_what_the_module_asks_of_sizes_is_recorded(name):
    compute, expected = BRANCHES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", bngrad.BngradWarning)
        model = bngrad.torch.export(Net(compute), None, (X, T), check=False)
    assert sorted(map(plain, conditions_of(model))) == sorted(map(plain, expected))


def test_halves_of_a_batch_need_even_sizes():
    model = bngrad.torch.export(Net(halves), None, (X, T), check=False)
    conditions = info_of(model)["size_conditions"]
    right = [size for size in range(1, 9) if all(holds(condition, {"N": size}) for condition in conditions)]
    assert right == [2, 4, 6, 8]


@pytest.mark.parametrize("name", FIXED)
def test_a_size_that_is_a_number_is_fixed(name):
    with pytest.warns(bngrad.BngradWarning, match="the batch size of 'x'.* is fixed at 8"):
        model = bngrad.torch.export(Net(FIXED[name]), None, (X, T), check=False)
    written = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 8
    assert written or conditions_of(model) == ["N == 8"]


POOLS = {
    "average": (lambda y: functional.adaptive_avg_pool2d(y, 4), True),
    "largest": (lambda y: functional.adaptive_max_pool2d(y, (2, 4)), True),
    "line": (lambda y: functional.adaptive_avg_pool1d(y.flatten(2), 6), True),
    "area": (lambda y: functional.interpolate(y, (3, 2), mode="area"), True),
    "unequal windows": (lambda y: functional.adaptive_avg_pool2d(y, 5), True),
    "one": (lambda y: functional.adaptive_avg_pool2d(y, 1) + functional.adaptive_max_pool2d(y, 1), False),
    "other pools": (lambda y: functional.avg_pool2d(functional.max_pool2d(y, 2), 2), False),
}


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 2, 3, padding=1), pool

    def forward(self, x):
        return self.pool(self.conv(x)).pow(2).mean()


@pytest.mark.parametrize("name", POOLS)
def test_adaptive_windows_are_of_one_size(name):
    pool, fixed = POOLS[name]
    example = (torch.rand(2, 1, 12, 8),)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", bngrad.BngradWarning)
        model = bngrad.torch.export(
            Pooled(pool), None, example, dynamic_shapes=[{0: "N", 2: "H", 3: "W"}], check=False
        )
    said = [str(warning.message) for warning in caught if "is fixed at" in str(warning.message)]
    equations = [condition for condition in conditions_of(model) if "==" in condition]
    assert equations == (["H == 12", "W == 8"] if fixed else [])
    assert len(said) == (2 if fixed else 0)


@pytest.mark.parametrize(("size", "refused"), [(4, True), (5, True), (1, False)])
def test_adaptive_windows_in_files(size, refused):
    pool = nn.AdaptiveAvgPool2d(size)
    axes = ({0: Dim("N"), 2: Dim("H"), 3: Dim("W")},)
    net, example = Pooled(pool).eval(), (torch.rand(2, 1, 12, 8),)
    program = torch.onnx.export(net, example, dynamo=True, dynamic_shapes=axes, optimize=False, verbose=False)
    if not refused:
        bngrad.differentiate(program.model_proto)
        return
    with pytest.raises(UnsupportedNodeError, match=r"adaptive pooling .* leave that size out of dynamic_shapes"):
        bngrad.differentiate(program.model_proto)


class Branches(nn.Module):
    """A batch norm for large batches in training mode, and another branch in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.bn, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        if self.training:
            return self.fc(self.bn(x) if x.shape[0] > 6 else x)
        return self.fc(x if x.shape[0] > 3 else 2 * x)


@pytest.fixture(scope="module")
def step():
    torch.manual_seed(2)
    return bngrad.torch.training_step(Branches(), functional.cross_entropy, (X, T))


def batch(size):
    return {"x": np.ones((size, 4), np.float32), "target": np.zeros(size, np.int64)}


@pytest.mark.parametrize("saved", [False, True])
def test_the_trainer_refuses_other_sizes(step, saved, tmp_path):
    if saved:
        step.save(tmp_path / "step.onnx")
        step = bngrad.read_training_step(tmp_path / "step.onnx")
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    for size in (7, 9):
        trainer.step(**batch(size))
    with pytest.raises(InputError, match=r"the data have N = 6; expected N > 6: for other sizes"):
        trainer.step(**batch(6))
    assert trainer.calls == 2
    trainer.evaluate(**batch(4))
    with pytest.raises(InputError, match=r"the data have N = 3; expected N > 3"):
        trainer.evaluate(**batch(3))


def test_a_file_has_the_conditions_of_the_example(tmp_path):
    bngrad.save(
        bngrad.torch.export(Branches(), functional.cross_entropy, (X, T), check=False), tmp_path / "net.onnx"
    )
    step = bngrad.training_step(tmp_path / "net.onnx")
    assert step.info.size_conditions == ([">", "N", 6], ["!=", "N", 1])
    assert step.info.evaluation_size_conditions == ([">", "N", 6],)


def test_a_file_with_other_conditions_is_refused():
    model = bngrad.torch.export(Net(asserts), None, (X, T), check=False)
    entry = next(entry for entry in model.metadata_props if entry.key == "bngrad.forward")
    entry.value = entry.value.replace('[">=", "N", 3]', '[">=", "M", 3]')
    with pytest.raises(ModelError, match=r"'bngrad.forward' cannot be read .*'M' is not a number"):
        bngrad.training_step(model)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, words, mask):
        return self.out((self.table(words) * mask[:, :, None]).mean(1))


WORDS, MASK = torch.randint(0, 20, (4, 7)), torch.ones(4, 7)
BAG = ((WORDS, MASK), T[:4])
N_T, N_ONLY = {0: "N", 1: "T"}, {0: "N"}
SAME = {"words": ("N", "T"), "mask": ("N", "T"), "target": ("N",)}

FORMS = {
    "list": ([N_T, N_T, N_ONLY], SAME, []),
    "example": (((N_T, N_T), N_ONLY), SAME, []),
    "names": ({"words": N_T, "mask": N_T, "target": N_ONLY}, SAME, []),
    "tuples": ((("N", "T"), ("N", "T"), ("N",)), SAME, []),
    "auto": (
        [{0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.DYNAMIC}, (Dim.AUTO,)],
        {
            "words": ("words_dim_0", "words_dim_1"),
            "mask": ("words_dim_0", "words_dim_1"),
            "target": ("words_dim_0",),
        },
        [],
    ),
    "dims": (
        [{0: "N", 1: Dim("T", min=2, max=32)}, {0: "N", 1: Dim("T", min=2, max=32)}, N_ONLY],
        SAME,
        [["<=", 2, "T"], [">=", 32, "T"]],
    ),
    "fixed-batch": ([{1: "T"}, {1: "T"}, None], {"words": (4, "T"), "mask": (4, "T"), "target": (4,)}, []),
}


@pytest.mark.parametrize("name", FORMS)
def test_dynamic_shapes(name):
    dynamic_shapes, shapes, conditions = FORMS[name]
    model = bngrad.torch.export(Bag(), functional.cross_entropy, BAG, dynamic_shapes=dynamic_shapes, check=False)
    actual = {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input[:3]
    }
    assert actual == shapes
    assert info_of(model)["size_conditions"] == conditions
    onnx.checker.check_model(model)


def test_every_length_trains_as_in_pytorch():
    torch.manual_seed(4)
    net = Bag()
    step = bngrad.torch.training_step(net, functional.cross_entropy, BAG, dynamic_shapes=FORMS["list"][0])
    trainer = bngrad.Trainer(step, learning_rate=0.0)
    for rows, length in ((4, 7), (3, 9), (2, 1)):
        words, mask, target = torch.randint(0, 20, (rows, length)), torch.rand(rows, length), T[:rows]
        expected = functional.cross_entropy(net(words, mask), target).item()
        assert trainer.step(words=words, mask=mask, target=target) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match="expected the same T"):
        trainer.step(words=words, mask=torch.rand(2, 3), target=target)


@pytest.mark.parametrize(
    ("dynamic_shapes", "text"),
    [
        ([N_T, N_T], "dynamic_shapes is .* for the tensors 'words', 'mask' and 'target'; expected an entry"),
        ({"word": N_T}, "expected an entry for each tensor"),
        ("N", "expected an entry for each tensor"),
        ([{2: "T"}, None, None], "has dimension 2 of 'words', which has 2"),
        ([("N",), None, None], "has 1 dimensions for 'words'; expected 2"),
        ([{0: "N", 1: "N"}, None, None], "'N' is 4 elsewhere; expected one size for one name"),
        ([{0: "a b"}, None, None], "has 'a b' for dimension 0 of 'words'; expected a name"),
        ([{0: 1.5}, None, None], "has 1.5 for dimension 0"),
    ],
    ids=str,
)
def test_other_forms_are_refused(dynamic_shapes, text):
    with pytest.raises(InputError, match=text):
        bngrad.torch.export(Bag(), functional.cross_entropy, BAG, dynamic_shapes=dynamic_shapes)


def test_dynamic_shapes_say_all():
    with pytest.raises(InputError, match="dynamic_batch=False and dynamic_shapes are both given"):
        bngrad.torch.export(
            Bag(), functional.cross_entropy, BAG, dynamic_shapes=[N_T, N_T, N_ONLY], dynamic_batch=False
        )


def test_a_dynamic_size_that_the_module_fixes_is_said():
    class Fixed(Bag):
        def forward(self, words, mask):
            return super().forward(words, mask * torch.ones(7))

    with pytest.warns(bngrad.BngradWarning, match=r"dimension 1 of .* is fixed at 7"):
        bngrad.torch.export(Fixed(), functional.cross_entropy, BAG, dynamic_shapes=FORMS["list"][0], check=False)
    strict = [{0: "N", 1: Dim.DYNAMIC}, {0: "N", 1: Dim.DYNAMIC}, None]
    with pytest.raises(ModelError, match=r"torch.export cannot trace"):
        bngrad.torch.export(Fixed(), functional.cross_entropy, BAG, dynamic_shapes=strict, check=False)
