"""The same as step_worker.py for PyTorch: one forward and backward pass a line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

from models.in_torch import forward
from step_worker import serve


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("feeds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    graph = onnx.load(options.model).graph
    values = {t.name: torch.from_numpy(np.array(onnx.numpy_helper.to_array(t))) for t in graph.initializer}
    values |= {name: torch.from_numpy(array) for name, array in np.load(options.feeds).items()}
    if options.channels_last:
        values = {
            name: value.to(memory_format=torch.channels_last) if value.ndim == 4 else value
            for name, value in values.items()
        }
    statistics = {name for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    weights = [values[t.name] for t in graph.initializer if t.data_type == 1 and t.name not in statistics]
    for value in weights:
        value.requires_grad_()

    def step() -> None:
        for value in weights:
            value.grad = None
        results = forward(graph, values)
        results["loss"].backward()

    serve(step)


if __name__ == "__main__":
    main()
