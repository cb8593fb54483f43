"""Random draws of PyTorch: the right distribution, new numbers in each step, and fixed numbers in comparisons."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import distributions, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402
from bngrad.torch.compare import compare_steps  # noqa: E402
from bngrad.torch.example import read_example  # noqa: E402
from bngrad.torch.forward import Forward  # noqa: E402

SIZE = 4096
CATEGORIES = torch.tensor([0.1, 0.2, 0.7, 0.1, 0.1, 0.1])


def of(make):
    """A draw by `torch.distributions`, which checks its arguments."""

    def draw(h):
        distribution = make(h)
        return distribution.rsample() if distribution.has_rsample else distribution.sample()

    return draw


# h is 0 everywhere when the moments are measured.
DRAWS = {
    "rand": lambda h: torch.rand(h.shape),
    "randn_like": torch.randn_like,
    "randint": lambda h: torch.randint(2, 7, h.shape),
    "normal_": lambda h: torch.empty_like(h).normal_(std=3.0, mean=-1.0),
    "normal-of-numbers": lambda h: torch.normal(1.0, 2.0, h.shape),
    "normal-of-a-mean": lambda h: torch.normal(h + 1, 2.0),
    "normal-of-a-deviation": lambda h: torch.normal(1.0, h.exp() * 2),
    "normal-of-both": lambda h: torch.normal(torch.ones(6), h.exp() * 2),
    "uniform_": lambda h: torch.empty_like(h).uniform_(-1, 3),
    "log_normal_": lambda h: torch.empty_like(h).log_normal_(0.3, 0.5),
    "geometric_": lambda h: torch.empty_like(h).geometric_(0.25),
    "cauchy_": lambda h: torch.empty_like(h).cauchy_(1.0, 2.0).clamp(-30, 30),
    "exponential_": lambda h: torch.empty_like(h).exponential_(2.0),
    "bernoulli": lambda h: torch.bernoulli((h - 1.5).sigmoid()),
    "bernoulli_": lambda h: torch.empty_like(h).bernoulli_(0.3),
    "bernoulli_-of-a-tensor": lambda h: torch.empty_like(h).bernoulli_((h - 1.5).sigmoid()),
    "randperm": lambda h: torch.randperm(h.shape[0])[:, None].expand_as(h) / SIZE,
    "multinomial": lambda h: torch.multinomial((h + CATEGORIES).clamp(min=0.01), 6, replacement=True),
    "multinomial-of-one": lambda h: torch.multinomial((h + CATEGORIES).clamp(min=0.01), 1).expand_as(h),
    "multinomial-without-replacement": lambda h: (
        torch.multinomial((h + CATEGORIES).clamp(min=0.01), 3).repeat(1, 2).reshape(h.shape)
    ),
    "rrelu": lambda h: functional.rrelu(h - 1, 0.2, 0.4, training=True),
    "dropout": lambda h: functional.dropout(h + 1, 0.3),
    "dropout2d": lambda h: functional.dropout2d((h + 1)[:, :, None, None], 0.3)[..., 0, 0],
    "alpha-dropout": lambda h: functional.alpha_dropout(h + 1, 0.3, training=True),
    "feature-alpha-dropout": lambda h: functional.feature_alpha_dropout((h + 1)[..., None], 0.3, True)[..., 0],
    "gumbel-softmax": lambda h: functional.gumbel_softmax(h, tau=0.7),
    "hard-gumbel-softmax": lambda h: functional.gumbel_softmax(h, hard=True),
    "Normal": of(lambda h: distributions.Normal(h, h.exp())),
    "Normal-checked": of(lambda h: distributions.Normal(h, h.exp(), validate_args=True)),
    "Laplace": of(lambda h: distributions.Laplace(h, h.exp())),
    "Exponential": of(lambda h: distributions.Exponential(h.exp())),
    "Gumbel": of(lambda h: distributions.Gumbel(h, h.exp())),
    "Weibull": of(lambda h: distributions.Weibull(h.exp(), 2 * h.exp())),
    "Geometric": of(lambda h: distributions.Geometric((h - 1).sigmoid())),
    "Bernoulli": of(lambda h: distributions.Bernoulli(logits=h - 1)),
    "Categorical": lambda h: distributions.Categorical(logits=h).sample()[:, None].expand_as(h),
    "OneHotCategoricalStraightThrough": of(lambda h: distributions.OneHotCategoricalStraightThrough(logits=h)),
    "RelaxedBernoulli": of(lambda h: distributions.RelaxedBernoulli(torch.tensor(0.5), logits=h)),
    "log_prob": lambda h: distributions.Normal(h, h.exp()).log_prob(torch.randn_like(h)),
}


class Draws(nn.Module):
    def __init__(self, names=tuple(DRAWS)):
        super().__init__()
        self.fc, self.names = nn.Linear(6, 6), names
        self.fixed = nn.Parameter(torch.ones(6))

    def forward(self, x):
        h = self.fc(x)
        drawn = {name: DRAWS[name](h).to(h.dtype) for name in self.names}
        # Of sizes that are known when the module is exported.
        noise, mask = torch.randn(6) + torch.rand(6), functional.dropout(torch.ones(64), 0.5)
        loss = sum((draws * (h + 0.1 * index)).mean() for index, draws in enumerate(drawn.values()))
        loss = loss + (self.fixed * noise * mask.mean()).sum()
        return {"loss": loss, "noise": noise, "mask": mask, **drawn}


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    module = Draws().train()
    return module, bngrad.torch.export(module, None, torch.randn(7, 6), check=False)


def test_draws_have_the_distribution_of_pytorch(exported):
    module, model = exported
    torch.manual_seed(0)
    onnxruntime.set_seed(0)  # for the kernels of later sessions
    names = [f"output_{name}" if f"output_{name}" in DRAWS else name for name in DRAWS]
    zeros = {name: np.zeros(value.shape, np.float32) for name, value in module.fc.state_dict(prefix="fc.").items()}
    step = bngrad.training_step(model, outputs=[*names, "noise", "mask"], values=zeros)
    trainer, x = bngrad.Trainer(step, learning_rate=0.0), np.zeros((SIZE, 6), np.float32)
    trainer.step(x=x)
    first = trainer.outputs
    trainer.step(x=x)
    for name in ("noise", "mask"):
        assert not np.array_equal(first[name], trainer.outputs[name]), name
    assert set(np.unique(first["mask"])) == {0, 2}
    with torch.no_grad():
        expected = torch.func.functional_call(
            module, {name: torch.from_numpy(value) for name, value in zeros.items()}, torch.from_numpy(x)
        )
    for name in names:
        got, own = first[name].astype(np.float64), expected[name].double().numpy()
        assert not np.array_equal(got, trainer.outputs[name]), name
        assert got.mean() == pytest.approx(own.mean(), abs=0.05 * own.std() + 0.02), name
        assert got.std() == pytest.approx(own.std(), rel=0.06), name
        assert got.min() == pytest.approx(own.min(), rel=0.9, abs=0.6 * own.std()), name
        # Elements that PyTorch draws apart are apart.
        assert (np.unique(got[:5]).size > 1) == (np.unique(own[:5]).size > 1), name


def test_draws_are_fixed_in_a_comparison(exported):
    module, model = exported
    example = read_example(module, None, torch.randn(7, 6), None)
    trained = [name for name, _ in module.named_parameters()]
    check = compare_steps(Forward(module, None), example, ir.from_proto(model), trained, steps=1)
    assert not check.skipped
    assert len(check.rows) == 4
    assert not check.failures


def test_draws_by_numbers_alone():
    """Categories of a vector, and a permutation of a known size."""

    class Few(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            h = self.fc(x)[:, torch.randperm(6)]
            return (h[:, torch.multinomial(CATEGORIES, 2)] * torch.bernoulli(CATEGORIES)[:2]).square().mean()

    x = torch.randn(5, 6)
    assert bngrad.torch.compare(Few(), None, x, steps=1).passed
    trainer = bngrad.Trainer(bngrad.torch.training_step(Few(), None, x), learning_rate=0.0)
    assert len({trainer.step(x=x) for _ in range(60)}) > 2


REFUSED = {
    "poisson": (lambda h: torch.poisson(h.exp()), r"torch\.poisson, .* pass the numbers as an input"),
    "binomial": (lambda h: torch.binomial(h.exp().ceil(), h.sigmoid()), r"torch\.binomial"),
    "gamma": (of(lambda h: distributions.Gamma(h.exp(), h.exp())), "a Gamma, Chi2, StudentT or Beta"),
    "dirichlet": (of(lambda h: distributions.Dirichlet(h.exp())), "a Dirichlet or Beta distribution"),
    "student": (of(lambda h: distributions.StudentT(h.exp() + 2)), "StudentT"),
    "random_": (lambda h: torch.empty_like(h).random_(5), r"Tensor\.random_, .* torch\.randint\(low, high"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_draws_that_onnx_has_no_op_for(name):
    draw, text = REFUSED[name]

    class Draw(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            h = self.fc(x)
            return (h * draw(h)).mean()

    with pytest.raises(bngrad.UnsupportedNodeError, match=text):
        bngrad.torch.differentiate(Draw(), None, torch.randn(4, 6))
    assert distributions.Normal(0.0, 1.0)._validate_args  # the checks are on again


def test_distributions_check_their_arguments_in_pytorch():
    class Negative(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            return distributions.Normal(self.fc(x), x - 100).rsample().mean()

    with pytest.raises(bngrad.InputError, match="PyTorch cannot run a step"):
        bngrad.torch.differentiate(Negative(), None, torch.randn(4, 6))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        distributions.Normal(0.0, -1.0)
