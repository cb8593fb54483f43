"""The versions, the device, and where the nodes of a training step run."""

from __future__ import annotations

import collections
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import bngrad
from bngrad.runtime.device import DeviceOptions
from bngrad.runtime.device_session import open_session
from bngrad.runtime.environment import environment
from results import check, report

MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_resnet20.onnx"


def placement(device, folder):
    """The number of nodes of each execution provider, from the profile of a session."""
    optimizer = bngrad.SGD(momentum=0.9)
    step = bngrad.training_step(MODEL, optimizer=optimizer, conv_grad=True, group_updates=True)
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(Path(folder, "profile"))
    bngrad.register(options, device=device)
    session = open_session(step.model.SerializeToString(), options, device, DeviceOptions())
    data = {"images": np.zeros((8, 1, 8, 8), np.float32), "labels": np.zeros(8, np.int64)}
    feeds = {step.info.learning_rate: np.array(0.1, np.float32), **data, **step.state}
    session.run([step.info.loss], feeds)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes = {
        event["name"]: (event["args"]["provider"], event["args"]["op_name"])
        for event in events
        if event["name"].endswith("_kernel_time")
    }
    return collections.Counter(provider for provider, _ in nodes.values()), collections.Counter(
        op for provider, op in nodes.values() if provider.startswith("CPU") or op.startswith("Memcpy")
    )


def main(device):
    facts = environment()
    for name, value in {**facts.versions, **facts.machine}.items():
        report("environment", what=name, **{"is": value})
    try:
        import torch
    except ImportError:
        report("environment", what="torch", **{"is": "not installed"})
    else:
        cudnn = torch.backends.cudnn.version() if device.startswith("cuda") else None
        report("environment", what="torch", **{"is": f"{torch.__version__}, cuDNN {cudnn}"})
    with check("a session on the device"), tempfile.TemporaryDirectory() as folder:
        providers, elsewhere = placement(device, folder)
        for provider, count in providers.items():
            report("placement", provider=provider, nodes=count)
        if not device.startswith("cpu"):
            for op, count in elsewhere.items():
                report("placement", provider=f"CPU or copy: {op}", nodes=count)


main(sys.argv[1])
