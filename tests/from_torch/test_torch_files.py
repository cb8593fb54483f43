"""Files of PyTorch's two exporters: each source of gradients is right, refused, or known to be lost."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad  # noqa: E402

IDS = torch.tensor([[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 1, 0], [2, 2, 2, 2]])
X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0])


class Function(torch.autograd.Function):
    """A gradient of its own."""

    @staticmethod
    def forward(_ctx, x):
        """Twice x."""
        return x * 2

    @staticmethod
    def backward(_ctx, gradient):
        """Five times the gradient."""
        return gradient * 5


class Net(nn.Module):
    """Two layers and an embedding, from which a function computes the scores."""

    def __init__(self, scores):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.e = nn.Linear(4, 4), nn.Linear(4, 4), nn.Embedding(6, 4)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.instance = nn.InstanceNorm1d(2, track_running_stats=True)
        self.register_buffer("average", torch.ones(4))
        self.scores = scores

    def forward(self, x, ids, labels):
        """The loss."""
        return self.scores(self, x, ids, labels)


def loss(scores, labels, **options):
    return functional.cross_entropy(scores, labels, **options)


def logits(net, x):
    return net.a(x) * 3 + torch.tensor([-100.0, -20, -15, 30])


def under_no_grad(net, x, _, labels):
    y = net.a(x)
    with torch.no_grad():
        target = net.b(y)
    return loss(y * target, labels)


def embedded(**options):
    def scores(net, x, ids, labels):
        return loss(functional.embedding(ids, net.e.weight, **options).mean(1) + net.a(x), labels)

    return scores


def straight_through(net, x, _, labels):
    y = net.a(x)
    return loss(y + (y.round() - y).detach(), labels)


def average_in_place(net, x, _, labels):
    y = net.a(x)
    with torch.no_grad():
        net.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
    return loss(y * net.average, labels)


def average_assigned(net, x, _, labels):
    y = net.a(x)
    net.average = 0.9 * net.average + 0.1 * y.detach().mean(0)
    return loss(y * net.average, labels)


def detach_in_place(net, x, _, labels):
    y = net.b(x)
    y.detach_()
    return loss(net.a(x) * y, labels)


SOURCES = {
    "detach-in-place": detach_in_place,
    "buffer": lambda net, x, _, labels: loss(net.a(x) * net.average, labels),
    "buffer-in-place": average_in_place,
    "buffer-assigned": average_assigned,
    "spectral-norm": lambda net, x, _, labels: loss(net.spectral(x), labels),
    "instance-norm": lambda net, x, _, labels: loss(net.instance(net.a(x).view(4, 2, 2)).flatten(1), labels),
    "detach": lambda net, x, _, labels: loss(net.a(x) * net.b(x).detach(), labels),
    "detach of both": lambda net, x, _, labels: loss((y := net.a(x)) * y.detach(), labels),
    "straight-through": straight_through,
    "no-grad": under_no_grad,
    "autograd-function": lambda net, x, _, labels: loss(Function.apply(net.a(x)), labels),
    "checkpoint": lambda net, x, _, labels: loss(
        torch.utils.checkpoint.checkpoint(net.b, net.a(x), use_reentrant=False), labels
    ),
    "padding-idx": embedded(padding_idx=0),
    "negative-padding-idx": embedded(padding_idx=-1),
    "sparse": embedded(sparse=True),
    "scale-grad-by-freq": embedded(scale_grad_by_freq=True),
    "max-norm": embedded(max_norm=1.0),
    "label-smoothing": lambda net, x, _, labels: loss(net.a(x), labels, label_smoothing=0.1),
    "ignore-index": lambda net, x, _, labels: loss(net.a(x), labels, ignore_index=1),
    "class-weights": lambda net, x, _, labels: loss(net.a(x), labels, weight=torch.tensor([1.0, 2, 3, 4])),
    "probabilities": lambda net, x, *_: loss(net.a(x), torch.softmax(x, 1)),
    "nll": lambda net, x, _, labels: functional.nll_loss(net.a(x).log_softmax(1), labels, ignore_index=1),
    "log-sigmoid": lambda net, x, *_: functional.logsigmoid(logits(net, x)).mean(),
    "pos-weight": lambda net, x, *_: functional.binary_cross_entropy_with_logits(
        logits(net, x), torch.sigmoid(x), pos_weight=torch.tensor([1.0, 2, 3, 4])
    ),
    "log-of-sigmoid": lambda net, x, *_: torch.log(torch.sigmoid(logits(net, x)) + 1e-12).mean(),
    "logaddexp": lambda net, x, *_: torch.logaddexp(logits(net, x), net.b(x) - 100).mean(),
    "logaddexp2": lambda net, x, *_: torch.logaddexp2(logits(net, x), net.b(x) - 200).mean(),
    "index-put": lambda net, x, _, labels: net.a(x).index_put((labels,), net.b(x)).square().sum(),
    "index-put-that-adds": lambda net, x, _, labels: (
        net.a(x).index_put((labels,), net.b(x), accumulate=True).square().sum()
    ),
    "fake-quantize": lambda net, x, _, labels: loss(
        torch.fake_quantize_per_tensor_affine(net.a(x), 0.1, 0, -128, 127) + net.b(x), labels
    ),
}
RIGHT, REFUSED, LOST = "right", "refused", "lost"
FILES = {
    "dynamo": {"optimize": False},
    "optimized": {"optimize": True},
    "TorchScript": {"dynamo": False},
}
TABLE = {
    # of dynamo=True with optimize=False, with optimize=True, of dynamo=False
    "detach-in-place": (LOST, LOST, LOST),
    "buffer": (RIGHT, RIGHT, RIGHT),
    "buffer-in-place": ("changes 'average', of which", "changes 'average', of which", LOST),
    "buffer-assigned": ("changes 'average', of which", "changes 'average', of which", LOST),
    "spectral-norm": ("changes 'spectral.", "changes 'spectral.", None),
    "instance-norm": ("changes 'instance.running_mean'", "changes 'instance.running_mean'", "has 5 outputs"),
    "detach": (RIGHT, "has removed the detach", LOST),
    "detach of both": (RIGHT, "has removed the detach", LOST),
    "straight-through": (RIGHT, "has removed the detach", LOST),
    "no-grad": (LOST, LOST, LOST),
    "autograd-function": (LOST, LOST, LOST),
    "checkpoint": (RIGHT, RIGHT, RIGHT),
    "padding-idx": (RIGHT, RIGHT, LOST),
    "negative-padding-idx": (RIGHT, RIGHT, LOST),
    "sparse": (RIGHT, RIGHT, RIGHT),
    "scale-grad-by-freq": ("scale_grad_by_freq=True", "scale_grad_by_freq=True", None),
    "max-norm": ("max_norm", "max_norm", RIGHT),  # of this step; the next one has the changed weight
    "label-smoothing": ("label_smoothing=0.1", "label_smoothing=0.1", None),
    "ignore-index": (RIGHT, RIGHT, RIGHT),
    "class-weights": (RIGHT, RIGHT, RIGHT),
    "probabilities": ("", "", ""),
    "nll": (RIGHT, RIGHT, RIGHT),
    "log-sigmoid": (RIGHT, RIGHT, RIGHT),
    "pos-weight": (RIGHT, RIGHT, RIGHT),
    "log-of-sigmoid": (RIGHT, RIGHT, RIGHT),
    "logaddexp": (RIGHT, RIGHT, None),
    "logaddexp2": (RIGHT, RIGHT, None),
    "index-put": (RIGHT, RIGHT, RIGHT),
    "index-put-that-adds": (RIGHT, RIGHT, LOST),  # the exporter leaves "add" out of the ScatterND
    "fake-quantize": (RIGHT, RIGHT, RIGHT),
}
"""The outcome of each source: right, lost, refused with a text, or None where PyTorch does not export it."""


def exported(net, kind):
    options = {"dynamo": True, "verbose": False, **FILES[kind]}
    names = {"input_names": ["x", "ids", "labels"], "output_names": ["loss"]}
    if options["dynamo"]:
        return torch.onnx.export(net, (X, IDS, LABELS), **names, **options).model_proto
    data = io.BytesIO()
    training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    torch.onnx.export(net, (X, IDS, LABELS), data, dynamo=False, **training, **names)
    return onnx.load_from_string(data.getvalue())


BY_NODES = ("log-sigmoid", "pos-weight")
PAIRS = [
    (source, kind)
    for source in TABLE
    for kind in FILES
    if kind == "dynamo" or set(TABLE[source]) != {RIGHT} or source in BY_NODES
]
"""A source that is right in all kinds of files, by their records, is tried only in the first."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("source", "kind"), PAIRS)
def test_gradients_of_files(source, kind):
    outcome = TABLE[source][list(FILES).index(kind)]
    net = Net(SOURCES[source]).train()
    if outcome is None:
        with pytest.raises(Exception):  # noqa: B017, PT011 - PyTorch's own
            exported(net, kind)
        return
    model = exported(net, kind)
    if outcome not in (RIGHT, LOST):
        with pytest.raises(bngrad.BngradError) as raised:
            bngrad.differentiate(model, loss="loss")
        assert outcome in str(raised.value)
        assert "\n" not in str(raised.value)
        return
    reference = Net(SOURCES[source]).train()
    reference(X, IDS, LABELS).backward()
    graph = bngrad.differentiate(model, loss="loss")
    names = bngrad.read_training_graph(graph).gradients
    session = bngrad.session(graph)
    inputs = {value.name for value in session.get_inputs()}
    feeds = {"x": X.numpy(), "ids": IDS.numpy(), "labels": LABELS.numpy()}
    got = dict(
        zip(names, session.run(list(names.values()), {k: v for k, v in feeds.items() if k in inputs}), strict=True)
    )
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    right = {name: gradient.to_dense().numpy() for name, gradient in gradients.items() if gradient is not None}
    differ = [name for name in right if name not in got or not np.allclose(got[name], right[name], 1e-4, 1e-6)]
    differ += [name for name in got if name not in right and np.any(got[name])]
    assert bool(differ) == (outcome == LOST), differ
