# ruff: noqa: E402 - the environment and the path come first
"""Records what TensorFlow computes in tests/passes/tensorflow_recorded.json: `python record.py`."""

import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
PASSES = Path(__file__).parents[1] / "passes"
sys.path.append(str(PASSES))

import tensorflow as tf

from tensorflow_gradient_cases import CASES


def computed(case):
    """The outputs of TensorFlow; XLA computes what the CPU kernels leave out, channels after the batch."""
    channels_first = case.attributes.get("data_format", "NHWC").startswith("NC") and case.op_type != "BiasAddGrad"

    def call():
        tensors = {name: tf.constant(array) for name, array in case.inputs.items()}
        return getattr(tf.raw_ops, case.op_type)(**tensors, **case.attributes)

    outputs = tf.function(call, jit_compile=channels_first)()
    return list(outputs) if case.outputs > 1 else [outputs]


if __name__ == "__main__":
    recorded = {
        name: [
            {"shape": list(y.shape), "data": [float(f"{v:.7g}") for v in y.numpy().ravel()]}
            for y in computed(case)
        ]
        for name, case in CASES.items()
    }
    (PASSES / "tensorflow_recorded.json").write_text(json.dumps(recorded) + "\n", encoding="utf-8")
