"""Quantization-aware training beside the fused modules of PyTorch, `torch.ao.nn.intrinsic.qat`."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

import bngrad  # noqa: E402
import bngrad.torch  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    quantization = pytest.importorskip("torch.ao.quantization", reason="this PyTorch has none")
    from torch.ao.nn.intrinsic.qat import ConvBnReLU2d
    from torch.ao.nn.qat import Linear
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,3,6,6] x, int64[N] labels) => (float loss, float[N,4] logits) {
    h = Conv <pads = [1,1,1,1]> (x, kernel)
    b, mean_new, var_new = BatchNormalization <training_mode = 1> (h, scale, shift, mean, var)
    r = Relu (b)
    p = GlobalAveragePool (r)
    flat = Flatten (p)
    logits = Gemm <transB = 1> (flat, weight, offset)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""
NAMES = {
    "kernel": "0.weight",
    "scale": "0.bn.weight",
    "shift": "0.bn.bias",
    "mean": "0.bn.running_mean",
    "var": "0.bn.running_var",
    "weight": "1.weight",
    "offset": "1.bias",
}
RANGES = {"x": "x", "r": "0.activation_post_process", "p": "p", "logits": "1.activation_post_process"}


class Network(torch.nn.Sequential):
    """The network with fused modules, and the roundings that stand between them."""

    def __init__(self, activations, *, learned=False):
        low, high = (0, 255) if activations == "uint8" else (-128, 127)
        dtype = torch.quint8 if activations == "uint8" else torch.qint8
        rounded = quantization.FakeQuantize.with_args(
            observer=quantization.MovingAverageMinMaxObserver, quant_min=low, quant_max=high, dtype=dtype
        )
        if learned:
            rounded = partial(
                _LearnableFakeQuantize,
                quantization.MovingAverageMinMaxObserver,
                quant_min=low,
                quant_max=high,
                use_grad_scaling=True,
                dtype=dtype,
            )
        weights = quantization.FakeQuantize.with_args(
            observer=quantization.MovingAveragePerChannelMinMaxObserver,
            averaging_constant=1.0,
            quant_min=-127,
            quant_max=127,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
        )
        config = quantization.QConfig(activation=rounded, weight=weights)
        super().__init__(
            ConvBnReLU2d(3, 5, 3, padding=1, bias=False, qconfig=config, momentum=0.1),
            Linear(5, 4, qconfig=config),
        )
        self.x, self.p = rounded(), rounded()
        for layer in (self[0], self[1]):
            layer.activation_post_process = rounded()

    def forward(self, x):
        images = self[0].activation_post_process(self[0](self.x(x)))
        pooled = self.p(images.mean((2, 3)))
        return self[1].activation_post_process(self[1](pooled))


def pair(activations, seed=0, *, learned=False, **options):
    """The training step and PyTorch's network, with the same values."""
    rng = np.random.default_rng(seed)
    values = {
        "kernel": rng.normal(size=(5, 3, 3, 3)) / 3,
        "scale": rng.uniform(0.5, 1.5, 5) * [1, -1, 1, 1, -1],
        "shift": rng.normal(size=5) / 5,
        "mean": rng.normal(size=5) / 5,
        "var": rng.uniform(0.5, 2, 5),
        "weight": rng.normal(size=(4, 5)) / 2,
        "offset": rng.normal(size=4) / 5,
    }
    values = {name: array.astype(np.float32) for name, array in values.items()}
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())
    options |= {"running_variance": "unbiased", "learned_scales": learned}
    step = bngrad.training_step(model, quantize=activations, **options)
    network = Network(activations, learned=learned)
    tensors = network.state_dict()
    for name, array in values.items():
        tensors[NAMES[name]].copy_(torch.from_numpy(array))
    return step, network, values


def batches(count, size=8, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.normal(size=(size, 3, 6, 6)).astype(np.float32), rng.integers(0, 4, size)


@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_steps_of_the_fused_modules(activations):
    """Losses, weights, running statistics and ranges of some steps."""
    weights = ["kernel", "shift", "weight", "offset"]
    step, network, _ = pair(activations, wrt=weights)
    network[0].bn.weight.requires_grad_(False)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    optimizer = torch.optim.SGD([value for value in network.parameters() if value.requires_grad], lr=0.1)
    for x, labels in batches(6):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x, labels=labels), loss.item(), rtol=1e-5)
    state, tensors = trainer.state_dict(), network.state_dict()
    for name in [*weights, "mean", "var"]:
        np.testing.assert_allclose(state[name], tensors[NAMES[name]], rtol=1e-4, atol=1e-6, err_msg=name)
    for name, prefix in RANGES.items():
        limits = [tensors[f"{prefix}.activation_post_process.{end}_val"].item() for end in ("min", "max")]
        expected = [min(limits[0], 0), max(limits[1], 0)]
        if limits[0] <= 0 <= limits[1]:  # else PyTorch averages before it takes 0 in
            np.testing.assert_allclose(state[f"{name}/range"], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    network.eval()
    x, labels = next(batches(1, 40, seed=2))
    logits = trainer.evaluate(x=x, labels=labels)["logits"]
    scale = np.diff(state["logits/range"])[0] / 255
    assert np.abs(logits - network(torch.from_numpy(x)).detach().numpy()).max() <= 1.01 * scale


def test_learned_scales():
    """Scales follow the ranges for two updates, and are trained then."""
    names = ["kernel", "shift", "weight", "offset"]
    step, network, _ = pair("uint8", learned=True, wrt=names, freeze_ranges=2)
    network[0].bn.weight.requires_grad_(False)
    trainer = bngrad.Trainer(step, learning_rate=0.02)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    roundings = [module for module in network.modules() if isinstance(module, _LearnableFakeQuantize)]
    for index, (x, labels) in enumerate(batches(6)):
        for rounding in roundings:
            rounding.enable_static_estimate() if index < 2 else rounding.enable_param_learning()
            rounding.zero_point.requires_grad_(False)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x, labels=labels), loss.item(), rtol=1e-5)
    state, tensors = trainer.state_dict(), network.state_dict()
    for name in names:
        np.testing.assert_allclose(state[name], tensors[NAMES[name]], rtol=1e-4, atol=1e-6, err_msg=name)
    for name, prefix in RANGES.items():
        expected = tensors[f"{prefix}.scale"].item()
        np.testing.assert_allclose(state[f"{name}/scale"], expected, rtol=1e-5, err_msg=name)


def test_gradients_of_the_fused_modules():
    """The scale of the batch norm has another gradient in PyTorch, by the rounding error of the weights.

    There the weight is multiplied by the scale before it is rounded, and its result divided by it. In exact
    arithmetic neither changes the result.
    """
    names = ["kernel", "scale", "shift", "weight", "offset"]
    step, network, values = pair(
        "uint8", outputs=[f"{name}_grad" for name in ("kernel", "scale", "shift", "weight", "offset")]
    )
    ((x, labels),) = batches(1, 16)
    trainer = bngrad.Trainer(step, learning_rate=0)
    trainer.step(x=x, labels=labels)
    outputs = {}
    network[0].register_forward_hook(lambda _, __, y: outputs.update(y=y))
    network[0].bn.register_forward_hook(
        lambda _, inputs, __: (outputs.update(h=inputs[0]), inputs[0].retain_grad())[1]
    )
    network.x.register_forward_hook(lambda _, __, y: outputs.update(x=y))
    torch.nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(labels)).backward()
    expected = {name: value.grad.numpy() for name, value in network.named_parameters()}
    kernel = values["kernel"].astype(np.float64)
    steps = np.abs(kernel).max((1, 2, 3), keepdims=True) / 127
    error = torch.from_numpy((kernel - np.rint(kernel / steps) * steps).astype(np.float32))
    of_error = torch.nn.functional.conv2d(outputs["x"].detach(), error, padding=1)
    extra = (of_error * outputs["h"].grad).sum((0, 2, 3)).numpy() / values["scale"]
    assert np.abs(extra).max() > 1e-5
    expected["0.bn.weight"] = expected["0.bn.weight"] - extra
    for name in names:
        np.testing.assert_allclose(
            trainer.outputs[f"{name}_grad"], expected[NAMES[name]], rtol=1e-3, atol=2e-6, err_msg=name
        )


class Block(torch.nn.Module):
    """A block of MobileNetV2: a convolution of each channel, one of all, and a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.each = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.all = torch.nn.Conv2d(channels, channels, 1, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        y = torch.nn.functional.relu6(self.norms[0](self.each(x)))
        return x + self.norms[1](self.all(y))


@pytest.mark.parametrize("exporter", ["bngrad.torch", "torch.onnx"])
def test_exported_modules(exporter, tmp_path):
    """Each layer runs in int8, in files of both exporters."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        *(torch.nn.BatchNorm2d(8), torch.nn.ReLU6(), Block(8), torch.nn.MaxPool2d(2)),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4)),
    )
    x, labels = (torch.from_numpy(array) for array in next(batches(1)))
    options = {"quantize": "uint8"}
    if exporter == "torch.onnx":
        shapes = ({0: torch.export.Dim("N")},)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the module is in training mode
            program = torch.onnx.export(
                network, (x,), dynamo=True, optimize=False, verbose=False, dynamic_shapes=shapes
            )
        model, options["loss_fn"] = program.model_proto, "cross_entropy"
    else:
        model = bngrad.torch.export(network, torch.nn.functional.cross_entropy, (x, labels))
    step = bngrad.training_step(model, **options)
    trainer, names = bngrad.Trainer(step, learning_rate=0.01), list(step.info.data)
    data = dict(zip(names, (x.numpy(), labels.numpy()), strict=True))
    trainer.step(**data)
    session_options, path = onnxruntime.SessionOptions(), tmp_path / "optimized.onnx"
    session_options.optimized_model_filepath, session_options.log_severity_level = str(path), 3
    session = onnxruntime.InferenceSession(
        trainer.finalize().SerializeToString(), session_options, providers=["CPUExecutionProvider"]
    )
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert (ops.count("QLinearConv"), ops.count("QGemm")) == (3, 1)
    name = session.get_outputs()[0].name
    low, high = trainer.state_dict()[f"{name}/range"]
    logits, expected = session.run([name], {names[0]: data[names[0]]})[0], trainer.evaluate(**data)[name]
    assert np.abs(logits - expected).max() < 1.01 * (high - low) / 255
