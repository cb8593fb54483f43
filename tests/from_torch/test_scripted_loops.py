"""Gradients of scripted loops over time, which PyTorch's exporter of TorchScript writes with sequences."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

import bngrad  # noqa: E402


class Stepped(torch.nn.Module):
    """An RNN whose outputs are appended to a list, and stacked."""

    def __init__(self):
        super().__init__()
        self.data, self.state = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        h = torch.zeros(x.size(1), 4)
        ys: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h = torch.tanh(self.data(x[t]) + self.state(h))
            ys.append(h)
        return torch.stack(ys).square().mean()


class Unbound(Stepped):
    """The same over the elements of a list, stacked behind the batch."""

    def forward(self, x):
        h = torch.zeros(x.size(1), 4)
        ys: list[torch.Tensor] = []
        for step in x.unbind(0):
            h = torch.tanh(self.data(step) + self.state(h))
            ys.append(h)
        return torch.stack(ys, 1).square().mean()


@pytest.mark.parametrize("module", [Stepped, Unbound])
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_gradients(module):
    torch.manual_seed(0)
    net, file = module(), io.BytesIO()
    torch.onnx.export(
        torch.jit.script(net),
        (torch.rand(3, 2, 3),),
        file,
        dynamo=False,
        input_names=["x"],
        output_names=["loss"],
        dynamic_axes={"x": {0: "time", 1: "batch"}},
        opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
    )
    model = onnx.load_from_string(file.getvalue())
    assert "Loop" in {node.op_type for node in model.graph.node}
    graph = bngrad.differentiate(model, loss="loss")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.rand(5, 4, 3)
    net.zero_grad()
    loss = net(x)
    loss.backward()
    weights = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    outputs = ["loss", *(f"{name}_grad" for name in weights)]
    result, *gradients = session.run(outputs, {"x": x.numpy(), **weights})
    assert result == pytest.approx(loss.item(), rel=1e-6)
    for gradient, parameter in zip(gradients, net.parameters(), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=1e-5, atol=1e-7)
