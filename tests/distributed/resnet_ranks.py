"""Run on each rank: ResNet-20 on digits, and the losses of the whole batch as JSON.

Usage: resnet_ranks.py STEP.onnx DATA.npz BATCHSIZE STEPS
"""

from __future__ import annotations

import json
import sys

import numpy as np

import bngrad
from bngrad.distributed import Communicator
from bngrad.training.dataset import Dataset, permutation


def main():
    step, data, size, steps = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    comm = Communicator(timeout=100)
    trainer = bngrad.Trainer(step, learning_rate=0.05, threads=1, comm=comm)
    dataset = Dataset(dict(data), trainer.info.data)
    losses = []
    while True:
        order = permutation(len(dataset), 0, 1 + len(losses) // (len(dataset) // size))
        for _, batch in dataset.batches(size, order, part=comm.rank, parts=comm.size, drop_last=True):
            losses.append(trainer.step(**batch))
            if len(losses) == steps:
                sys.stdout.write(json.dumps(losses))
                return


if __name__ == "__main__":
    main()
