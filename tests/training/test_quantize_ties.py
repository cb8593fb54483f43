"""Where the deployed model and the evaluation graph differ: only where a value lies between two integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

import bngrad
from trainer_cases import batch, network, samples

NEAR = 1e-4
"""The distance from the middle of two integers below which float additions in another order decide."""


def rounded(model, ranges):
    """The nodes that round, by the tensors that both models have."""
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    by_tensor = {node.input[0].removesuffix("/float"): node for node in nodes}
    return {name: by_tensor[name] for name in ranges}


def computed(model, names, feeds):
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.output[:]
    result.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(names, {value.name: feeds[value.name] for value in session.get_inputs()})


def test_the_integers_differ_by_one_and_only_between_two():
    step = bngrad.training_step(network(), optimizer=bngrad.SGD(momentum=0.9), quantize="uint8")
    trainer = bngrad.Trainer(step, learning_rate=0.05)
    for index in range(8):
        trainer.step(**batch(index))
    deployed, ranges = trainer.finalize(), step.info.quantization.ranges
    feeds = {**trainer.state_dict(), **samples(6_000)}
    nodes, of_deployed = rounded(step.evaluation, ranges), rounded(deployed, ranges)
    expected, scales = (
        computed(
            step.evaluation,
            [node.output[0] if index is None else node.input[index] for node in nodes.values()],
            feeds,
        )
        for index in (None, 1)
    )
    exact = computed(step.evaluation, [node.input[0] for node in nodes.values()], feeds)
    actual = computed(deployed, [node.output[0] for node in of_deployed.values()], feeds)
    same = np.ones(6_000, bool)  # the samples whose integers are the same up to this tensor
    for name, first, second, value, scale in zip(ranges, expected, actual, exact, scales, strict=True):
        difference = np.abs(first.astype(int) - second.astype(int)).reshape(len(same), -1)
        quotient = value.astype(np.float64).reshape(len(same), -1) / scale
        distance = np.abs(np.abs(quotient - np.floor(quotient)) - 0.5)
        new = same[:, None] & (difference > 0)
        assert new.mean() < 1e-4, name
        assert (difference[new] == 1).all(), name
        assert (distance[new] < NEAR).all(), name
        same &= (difference == 0).all(1)
    assert same.mean() > 0.999
