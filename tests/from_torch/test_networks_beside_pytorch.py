"""Small networks of many kinds, trained 20 steps beside PyTorch: equal losses and equal weights."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import beside_networks as networks  # noqa: E402
import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, RTOL = 20, 1e-5
CLASSES = networks.CLASSES


def frames():
    """Four sequences of nine frames; the labels after the end of each are ignored."""
    labels = torch.randint(CLASSES, (4, 9))
    for row, length in zip(labels, (9, 7, 4, 6), strict=True):
        row[length:] = -100
    return (torch.randn(4, 6, 9),), (labels,)


def labeled(*size):
    return lambda: ((torch.randn(8, *size),), (torch.randint(CLASSES, (8,)),))


def smooth_images():
    """Images without steps between pixels, at which the gradient of a grid jumps."""
    images = functional.interpolate(torch.randn(8, 1, 3, 3), size=8, mode="bicubic")
    return (images,), (torch.randint(CLASSES, (8,)),)


def boxes():
    return (torch.randn(6, 3, 8, 8),), (torch.randn(6, 4, 4), torch.randint(CLASSES, (6, 4)))


def tokens():
    return (torch.randint(19, (6, 8)),), (torch.randint(19, (6, 8)),)


def nodes_and_edges():
    return (torch.randn(10, 6), torch.randint(10, (2, 30))), (torch.randint(CLASSES, (10,)),)


class Case(NamedTuple):
    """A network, its data, and the ops that the exporter writes for it."""

    network: Callable
    batch: Callable
    ops: tuple[str, ...]
    rate: float = 0.05
    loss_fn: Callable = functional.cross_entropy
    opset: int = 18
    """18 is the opset of `bngrad.torch`; files of newer ones are read from PyTorch's exporter."""


def lstm():
    return networks.Speech(nn.LSTM(6, 7, batch_first=True, bidirectional=True))


def gru():
    return networks.Speech(nn.GRU(6, 7, 3, batch_first=True))


def vision_transformer():
    return networks.VisionTransformer(networks.SelfAttention)


def vision_transformer_of_layers():
    return networks.VisionTransformer(networks.MultiheadAttention)


def graph_network(pool):
    return lambda: networks.GraphNetwork(pool)


CASES = {
    "lstm": Case(lstm, frames, ("BatchNormalization", "LSTM")),
    "gru": Case(gru, frames, ("BatchNormalization", "GRU")),
    "detector": Case(
        networks.Detector,
        boxes,
        ("BatchNormalization", "TopK", "GatherElements", "GridSample"),
        loss_fn=networks.detection_loss,
    ),
    "regions": Case(
        networks.RegionDetector, labeled(3, 8, 8), ("BatchNormalization", "TopK", "RoiAlign"), opset=20
    ),
    "vit": Case(vision_transformer, labeled(3, 16, 16), ("BatchNormalization", "LayerNormalization")),
    "vit-layers": Case(vision_transformer_of_layers, labeled(3, 16, 16), ("BatchNormalization", "Softmax")),
    "vit-23": Case(vision_transformer, labeled(3, 16, 16), ("BatchNormalization", "Attention"), opset=23),
    "vit-layers-23": Case(
        vision_transformer_of_layers, labeled(3, 16, 16), ("BatchNormalization", "Attention"), opset=23
    ),
    "stn": Case(networks.SpatialTransformer, smooth_images, ("BatchNormalization", "GridSample"), rate=0.01),
    "audio": Case(networks.Audio, labeled(96), ("BatchNormalization", "STFT")),
    "gpt2": Case(networks.LanguageModel, tokens, ("Gather", "LayerNormalization", "Tanh")),
    "gpt2-23": Case(networks.LanguageModel, tokens, ("Gather", "Gelu", "Attention"), opset=23),
    "scatter-add": Case(
        graph_network(networks.scatter_add), nodes_and_edges, ("BatchNormalization", "ScatterElements")
    ),
    "index-add": Case(graph_network(networks.index_add), nodes_and_edges, ("BatchNormalization", "ScatterND")),
    "scatter-max": Case(
        graph_network(networks.scatter_max), nodes_and_edges, ("BatchNormalization", "ScatterElements")
    ),
}


def optimizer_of(module, rate):
    return torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)


def losses_of_torch(module, case, batches):
    optimizer, losses = optimizer_of(module, case.rate), []
    for inputs, targets in batches:
        loss = case.loss_fn(module(*inputs), *targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def step_of(module, case, batch):
    if case.opset == 18:
        inputs, targets = batch
        example = (inputs, *targets)
        optimizer = optimizer_of(module, case.rate)
        return bngrad.torch.training_step(
            module, case.loss_fn, example, optimizer=optimizer, dynamic_batch=False, check=False
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, batch[0], dynamo=True, opset_version=case.opset, optimize=False, verbose=False
        )
    return bngrad.training_step(program.model_proto, loss_fn="cross_entropy", optimizer=bngrad.SGD(momentum=0.9))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_curves_and_weights_are_those_of_pytorch(name):
    """Every step has a batch of its own; the largest relative difference of the losses is printed."""
    case = CASES[name]
    module = case.network()
    batches = [case.batch() for _ in range(STEPS)]
    step = step_of(module, case, batches[0])
    assert set(case.ops) <= {node.op_type for node in step.evaluation.graph.node}
    trainer = bngrad.Trainer(step, learning_rate=case.rate)
    losses = [
        trainer.step(
            **{key: tensor.numpy() for key, tensor in zip(step.info.data, (*inputs, *targets), strict=True)}
        )
        for inputs, targets in batches
    ]
    start = copy.deepcopy(module.state_dict())
    expected = losses_of_torch(module, case, batches)
    print(f"{name}: {np.max(np.abs(np.divide(losses, expected) - 1)):.1e}")  # noqa: T201 - for pytest -s
    np.testing.assert_allclose(losses, expected, rtol=RTOL)
    state, final = trainer.state_dict(), module.state_dict()
    parameters = dict(module.named_parameters(remove_duplicate=False))  # a tied one may have either name
    trained = [weight for weight in parameters if weight in state]
    assert {id(parameters[weight]) for weight in trained} == {id(weight) for weight in module.parameters()}
    for weight in [*trained, *(buffer for buffer, _ in module.named_buffers() if buffer in state)]:
        actual = torch.from_numpy(state[weight])
        torch.testing.assert_close(actual, final[weight], rtol=1e-4, atol=1e-5, check_dtype=False, msg=weight)
    assert any((final[weight] - start[weight]).abs().max() > 1e-2 for weight in trained)


REFUSED = {
    "packed sequences": (
        lambda: networks.PackedSpeech(nn.GRU(6, 7, batch_first=True)),
        frames,
        functional.cross_entropy,
        bngrad.UnsupportedNodeError,
        "the module packs sequences",
    ),
    # the CTC loss is no op of ONNX, and the size of its result depends on the data
    "CTC loss": (lstm, frames, networks.ctc, bngrad.ModelError, "cannot trace the module.*_ctc_loss"),
    # PyTorch's exporter leaves the reduction out
    "mean of messages": (
        graph_network(networks.scatter_mean),
        nodes_and_edges,
        functional.cross_entropy,
        bngrad.ModelError,
        "a step of the exported model is not PyTorch's",
    ),
}
"""Networks that cannot be trained from PyTorch, with the reason."""


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    network, batch, loss_fn, error, message = REFUSED[name]
    inputs, targets = batch()
    with pytest.raises(error, match=message):
        bngrad.torch.training_step(network(), loss_fn, (inputs, *targets), dynamic_batch=False)
