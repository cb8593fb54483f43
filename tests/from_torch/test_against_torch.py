"""Compares training graphs of files of ``torch.onnx.export(dynamo=True)`` with autograd."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import bngrad

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript")

from exported_files import CASES, example, export, module_of


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_gradients_and_statistics_are_autograds():
    module, data = module_of("raw"), example()
    loss = module(*data)
    loss.backward()
    graph = bngrad.differentiate(export("raw"))
    info, session = bngrad.read_training_graph(graph), bngrad.session(graph)
    assert set(info.gradients) == {name for name, _ in module.named_parameters()}
    names = [value.name for value in session.get_outputs()]
    feeds = dict(zip(("x", "labels"), (tensor.numpy() for tensor in data), strict=True))
    got = dict(zip(names, session.run(None, feeds), strict=True))
    np.testing.assert_allclose(got["loss"], loss.detach().numpy(), rtol=1e-6)
    for name, parameter in module.named_parameters():
        want = parameter.grad.numpy()
        np.testing.assert_allclose(got[info.gradients[name]], want, rtol=1e-4, atol=1e-6, err_msg=name)
    buffers = dict(module.named_buffers())
    assert set(info.running_statistics) == {"bn.running_mean", "bn.running_var"}
    for old, new in info.running_statistics.items():
        np.testing.assert_allclose(got[new], buffers[old].numpy(), rtol=1e-5, atol=1e-6, err_msg=old)


@pytest.mark.parametrize("case", CASES)
def test_the_installed_exporter_records_what_the_committed_files_have(case):
    model = export(case)
    if case == "folded":
        with pytest.raises(bngrad.ModelError, match="were in training mode"):
            bngrad.differentiate(model)
        return
    info = bngrad.read_training_graph(bngrad.differentiate(model))
    trained = {"raw": {"bn"}, "evaluation": set(), "merged": {"bn", "other"}}[case]
    assert {name.rpartition(".")[0] for name in info.running_statistics} == trained
