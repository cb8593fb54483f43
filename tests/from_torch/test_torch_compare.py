"""Modules whose training graph is compared with PyTorch: loss, gradients and buffers of three steps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad.torch  # noqa: E402


class Twice(nn.Module):
    """One batch norm that is called twice, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.frozen = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        y = self.bn(functional.relu(self.bn(self.conv(x))))
        return self.fc(self.frozen(y).mean((2, 3)))


class Detached(nn.Module):
    """A gradient that is stopped by detach, by no_grad, and at a buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.bn = nn.BatchNorm1d(6)
        self.register_buffer("average", torch.ones(6))

    def forward(self, x):
        y = self.bn(self.a(x))
        with torch.no_grad():
            target = self.b(y)
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
            z = y * 2
            with torch.enable_grad():
                z = z * y
        return self.b(y) * y.detach() + target * y + self.average * y + z


class Teacher(nn.Module):
    """A student, and a teacher whose weights follow it: parameters without gradient that a pass changes."""

    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.teacher = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        for parameter in self.teacher.parameters():
            parameter.requires_grad = False

    def forward(self, x):
        with torch.no_grad():
            for new, old in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
            target = self.teacher(x)
        return self.student(x) * target


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.bn = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.b(self.bn(self.a(x)))


class Padded(nn.Module):
    """Embeddings with a row of padding, whose gradient is 0."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative = nn.Embedding(4, 6, padding_idx=1), nn.Embedding(4, 6, padding_idx=-1)
        self.bn = nn.BatchNorm1d(6)

    def forward(self, x):
        rows = (x > 0).long() + (x > 1).long() * 2
        return self.bn((self.positive(rows) * self.negative(rows)).sum(1))


class Ghost(nn.Module):
    """A batch norm for each half of a batch of any size."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return torch.cat([self.bn(part) for part in self.fc(x).chunk(2)])


class Variance(nn.Module):
    """Statistics as features; PyTorch traces a variance as a primitive op with a torch.autograd.Function."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(6, 6), nn.BatchNorm1d(12)

    def forward(self, x):
        y = self.fc(x).unsqueeze(1) * x.unsqueeze(2)
        return self.bn(torch.cat([y.mean(1), y.var(1).clamp(min=1e-4).sqrt()], 1))


class Random(nn.Module):
    """Draws of all kinds: stochastic depth, noise, a random number, and Dropout inside of other modules."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.lstm = nn.LSTM(1, 3, num_layers=2, dropout=0.3, batch_first=True)
        self.attention = nn.MultiheadAttention(3, 1, dropout=0.3, batch_first=True)
        self.dropouts = nn.Sequential(nn.Dropout(0.2), nn.Dropout(0.2, inplace=True), nn.Dropout2d(0.2))

    def forward(self, x):
        y = self.bn(self.fc(x))
        for keep in (0.8, 0.3):
            y = y + torch.relu(y) * y.new_empty(x.shape[0], 1).bernoulli_(keep).div_(keep)
        y = y * torch.bernoulli(torch.full_like(y, 0.7)) + torch.rand_like(y) * y
        y = y + torch.randn(x.shape[0], 6) * y + y * torch.randint(1, 5, (6,))
        z, _ = self.lstm(y.unsqueeze(-1))
        z, _ = self.attention(z, z, z)
        return y + self.dropouts(z[:, None] * 1).mean((1, 3))


class Attention(nn.Module):
    """A chunk after a transpose, whose gradient is a Pad that ONNX Runtime moves a Transpose over."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 24, 1, bias=False), nn.BatchNorm2d(24)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        z = self.bn(self.conv(x)).reshape(x.shape[0], -1, 24, 36).transpose(-1, -2)
        q, k, v = z.chunk(3, -1)
        out = torch.relu(q) @ (torch.relu(k).transpose(-1, -2) @ v)
        return self.fc(out.transpose(-1, -2).mean(-1).squeeze(1))


class With(nn.Module):
    """Layers, and something that is done between them."""

    def __init__(self, between, **children):
        super().__init__()
        self.between = between
        self.first, self.bn, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x):
        return self.last(self.between(self, self.bn(self.first(x))))


def frozen_after_training(self, y):
    """A batch norm in training mode, and then in evaluation mode with its new statistics."""
    self.other(y)
    self.other.eval()
    z = self.other(y)
    self.other.train()
    return z


def checkpointed(self, y):
    return torch.utils.checkpoint.checkpoint(self.other, y, use_reentrant=False)


def of_both_modes(self, y):
    """One batch norm in training mode, in evaluation mode, in training mode without gradients, and at last."""
    late = self.other(y * 2 + 3)
    with torch.no_grad():
        self.other(y - 1)
    y = late * self.other(y.sigmoid()).detach() + self.other(y)
    self.other.eval()
    z = self.other(y)
    self.other.train()
    return y * 0.5 + z


class Grouped(nn.Module):
    """Attention with two queries for each key: PyTorch's exporter writes Unsqueeze with a scalar."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        n, t, _ = x.shape
        q = self.q(x).view(n, t, 4, 3).transpose(1, 2)
        k, v = (projected.view(n, t, 2, 3).transpose(1, 2) for projected in self.kv(x).chunk(2, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2).mean(1))


class Masked(nn.Module):
    """Attention with a fully masked row, by a mask of either type."""

    def __init__(self, *, floats):
        super().__init__()
        self.floats, self.q, self.out = floats, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        y = self.q(x)[:, None, None] * torch.arange(1.0, 4)[:, None]
        mask = (torch.arange(x.shape[0])[:, None] > torch.arange(3)).view(-1, 1, 1, 3)
        if self.floats:
            mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        return self.out(functional.scaled_dot_product_attention(y, y, y, attn_mask=mask).sum((1, 2)))


class LargeLogits(nn.Module):
    """Logarithms of sigmoids and of sums of exponentials of -100 to 100."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        z = self.fc(x) * 3 + torch.tensor([[-100.0, 0, 100], [50, -20, 16], [-15, 15, 30], [1, 0, 2], [0, 0, 0]])
        t, w = torch.sigmoid(x[:, :3]), torch.tensor([1.0, 5, 2])
        functions = functional.binary_cross_entropy_with_logits, functional.multilabel_soft_margin_loss
        y = functional.logsigmoid(z) + functions[0](z, t, weight=w, pos_weight=w, reduction="none")
        y = y + functions[0](z, t) + functions[0](z, t, reduction="sum") + functions[1](z, t, weight=w)
        y = y + torch.log(torch.sigmoid(z) + 1e-12) + torch.logaddexp(z, x[:, :1]) + torch.logaddexp2(z, z * 2)
        return y + functional.binary_cross_entropy(torch.sigmoid(z.clamp(-27, 9)), t)


class Bags(nn.Module):
    """Sums, means and largest rows of bags of one size, and of other sizes by offsets."""

    def __init__(self):
        super().__init__()
        self.sums = nn.EmbeddingBag(9, 6, mode="sum")
        self.means, self.largest = (nn.EmbeddingBag(9, 6, mode=mode, padding_idx=1) for mode in ("mean", "max"))
        self.last = nn.EmbeddingBag(9, 6, mode="mean", include_last_offset=True)
        self.share, self.fc = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        ids = (x.abs() * 7).long() % 9
        ids = torch.cat([ids, torch.ones_like(ids[:1])])  # a bag of only padding
        y = self.sums(ids, per_sample_weights=self.share(x.new_ones(ids.shape))) + self.means(ids)
        y = (y + self.largest(ids))[:5]
        flat, offsets = ids[:5].flatten(), torch.tensor([0, 4, 4, 11, 29])
        y = y + self.means(flat, offsets) * self.sums(flat, offsets, per_sample_weights=self.share(x).flatten())
        return self.fc(y + self.last(flat, torch.tensor([0, 2, 2, 9, 10, 30])))


def instance_norms(between, norm, **options):
    return lambda: nn.Sequential(between, norm(4, affine=True, track_running_stats=True, **options), nn.ReLU())


def frozen_instance_norm():
    module = instance_norms(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d)()
    module.train = lambda mode=True: nn.Module.train(module, mode) and module[1].eval() and module
    with torch.no_grad():
        module[1].running_mean.uniform_(-1, 1)
        module[1].running_var.uniform_(0.5, 2)
    return module


class Words(nn.Module):
    """An embedding whose row of padding gets no gradient."""

    def __init__(self, **options):
        super().__init__()
        self.words, self.bn, self.last = nn.Embedding(7, 6, **options), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.bn(self.words((x.abs() * 5).long() % 7).mean(1)))


def partly_frozen():
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    module[0].weight.requires_grad = False
    module[1].bias.requires_grad = False
    return module


def mlp(batch_norm):
    return nn.Sequential(nn.Linear(6, 6), batch_norm, nn.ReLU(), nn.Linear(6, 3))


def image(batch_norm):
    return nn.Sequential(nn.Conv2d(3, 4, 3), batch_norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


CONSTANT = torch.ones(1, 6)
VECTORS, IMAGES = (5, 6), (4, 3, 6, 6)
MODULES = {
    "batch-norm-1d": (lambda: mlp(nn.BatchNorm1d(6)), VECTORS),
    "batch-norm-1d-of-sequences": (lambda: nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4)), (5, 6, 7)),
    "batch-norm-2d": (lambda: image(nn.BatchNorm2d(4)), IMAGES),
    "batch-norm-3d": (lambda: nn.Sequential(nn.Conv3d(2, 3, 2, bias=False), nn.BatchNorm3d(3)), (2, 2, 3, 4, 4)),
    "sync-batch-norm": (lambda: image(nn.SyncBatchNorm(4)), IMAGES),
    "momentum": (lambda: image(nn.BatchNorm2d(4, momentum=0.37, eps=1e-3)), IMAGES),
    "momentum-of-one": (lambda: image(nn.BatchNorm2d(4, momentum=1.0)), IMAGES),
    "cumulative-average": (lambda: image(nn.BatchNorm2d(4, momentum=None)), IMAGES),
    "no-running-statistics": (lambda: image(nn.BatchNorm2d(4, track_running_stats=False)), IMAGES),
    "not-affine": (lambda: image(nn.BatchNorm2d(4, affine=False)), IMAGES),
    "neither": (lambda: image(nn.BatchNorm2d(4, affine=False, track_running_stats=False)), IMAGES),
    "instance-norm": (lambda: image(nn.InstanceNorm2d(4, affine=True)), IMAGES),
    "instance-norm-1d-statistics": (instance_norms(nn.Conv1d(3, 4, 3), nn.InstanceNorm1d), (4, 3, 8)),
    "instance-norm-2d-statistics": (instance_norms(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d, momentum=0.3), IMAGES),
    "instance-norm-3d-statistics": (instance_norms(nn.Conv3d(3, 4, 2), nn.InstanceNorm3d), (2, 3, 3, 3, 3)),
    "instance-norm-frozen": (frozen_instance_norm, IMAGES),
    "instance-norm-twice": (
        lambda: With(
            lambda self, y: self.other(self.other(y.unsqueeze(2) * torch.arange(4.0)) + y.unsqueeze(2)).mean(2),
            other=nn.InstanceNorm1d(6, track_running_stats=True),
        ),
        VECTORS,
    ),
    "group-norm": (lambda: nn.Sequential(image(nn.GroupNorm(2, 4)), nn.BatchNorm1d(4)), IMAGES),
    "layer-norm": (lambda: nn.Sequential(mlp(nn.LayerNorm(6)), nn.BatchNorm1d(3)), VECTORS),
    "called-twice-and-frozen": (Twice, IMAGES),
    "partly-frozen": (partly_frozen, VECTORS),
    "detached": (Detached, VECTORS),
    "teacher": (Teacher, VECTORS),
    "tied": (Tied, VECTORS),
    "padding-of-embeddings": (Padded, VECTORS),
    "halves-of-the-batch": (Ghost, VECTORS),
    "variance": (Variance, VECTORS),
    "random": (Random, VECTORS),
    "slice-behind-transpose": (Attention, (2, 3, 6, 6)),
    "spectral-norm": (lambda: mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))), VECTORS),
    "weight-norm": (lambda: mlp(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))), VECTORS),
    "dropout": (lambda: nn.Sequential(mlp(nn.BatchNorm1d(6)), nn.Dropout(0.4), nn.Linear(3, 3)), VECTORS),
    "statistics-read-after": (lambda: With(lambda self, y: y + self.bn.running_mean), VECTORS),
    "trained-then-frozen": (lambda: With(frozen_after_training, other=nn.BatchNorm1d(6)), VECTORS),
    "one-for-all": (lambda: With(of_both_modes, other=nn.BatchNorm1d(6)), VECTORS),
    "one-for-all-cumulative": (lambda: With(of_both_modes, other=nn.BatchNorm1d(6, momentum=None)), VECTORS),
    "checkpointed-batch-norm": (lambda: With(checkpointed, other=nn.BatchNorm1d(6)), VECTORS),
    "grouped-queries": (Grouped, (4, 7, 12)),
    "masked-rows": (lambda: Masked(floats=False), VECTORS),
    "masked-rows-of-floats": (lambda: Masked(floats=True), VECTORS),
    "large-logits": (LargeLogits, VECTORS),
    "bags": (Bags, VECTORS),
    "checkpoint": (lambda: With(checkpointed, other=nn.Linear(6, 6)), VECTORS),
    "variance-and-deviation": (lambda: With(lambda _, y: y * (y.var(1, keepdim=True) + y.std(0))), VECTORS),
    "constant-of-its-own": (lambda: With(lambda _, y: torch.cat([y, CONSTANT]).sum(0) + y.float()), VECTORS),
    "padding": (lambda: Words(padding_idx=0), VECTORS),
    "sparse": (lambda: Words(sparse=True), VECTORS),
    "conv-transpose": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 4, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Tanh()),
        IMAGES,
    ),
}


def loss_fn(output, target):
    return ((output - target) ** 2).mean()


@pytest.mark.filterwarnings("ignore:.*SyncBatchNorm:bngrad.BngradWarning")
@pytest.mark.filterwarnings("ignore:a checkpoint recomputes:bngrad.BngradWarning")
@pytest.mark.filterwarnings("ignore:the batch size:bngrad.BngradWarning")
@pytest.mark.parametrize("name", MODULES)
def test_training_graphs_agree_with_pytorch(name):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module = make().train()
    x = torch.randn(shape)
    target = torch.randn_like(module(x).detach())
    report = bngrad.torch.compare(module, loss_fn, (x, target))
    assert report.passed, report.reason
    names = {row.tensor for row in report.checks[0].rows}
    trained = {f"{name}_grad" for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained <= names
    assert "loss" in names
    assert {row.kind for row in report.checks[0].rows} <= {"loss", "gradient", "buffer"}


def test_double_precision():
    torch.manual_seed(0)
    module, x, target = mlp(nn.BatchNorm1d(6)).double(), torch.randn(VECTORS).double(), torch.randn(5, 3).double()
    report = bngrad.torch.compare(module, loss_fn, (x, target))
    assert report.passed, report.reason


def test_a_wrong_gradient_is_found():
    """The training graph of another module than the one that is compared."""
    from bngrad.torch.compare import compare_steps
    from bngrad.torch.dynamic_shapes import read_dynamic
    from bngrad.torch.example import read_example
    from bngrad.torch.export import export_training
    from bngrad.torch.forward import Forward

    class Other(Detached):
        def forward(self, x):
            y = self.bn(self.a(x))
            return self.b(y) * y + self.b(y) * y + self.average * y

    torch.manual_seed(0)
    module = Detached().train()
    example = read_example(module, loss_fn, (torch.randn(VECTORS), torch.randn(VECTORS)), None)
    forward = Forward(module, loss_fn)
    other = Other().train()
    other.load_state_dict(module.state_dict())
    trained = [name for name, _ in module.named_parameters()]
    dynamic = read_dynamic(example, None, dynamic_batch=True)
    exported = export_training(Forward(other, loss_fn), example, trained, dynamic)
    check = compare_steps(forward, example, exported.model, trained, steps=1)
    assert "a.weight_grad" in {row.tensor for row in check.failures}
