"""Ranks of a distributed run as threads of onnx's reference evaluator, without MPI."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun


class Ranks:
    """The values that the ranks of a run exchange.

    Args:
        count: The number of ranks.
    """

    def __init__(self, count):
        self.count = count
        self.keys = [[] for _ in range(count)]
        self._barrier = threading.Barrier(count, timeout=20)
        self._sent = [None] * count

    def exchange(self, rank, key, value):
        """The values of all ranks, which have to be at the same key."""
        self.keys[rank].append(key)
        self._sent[rank] = (key, value)
        self._barrier.wait()
        sent = list(self._sent)
        self._barrier.wait()
        assert {key for key, _ in sent} == {key}
        return [value for _, value in sent]

    def run(self, model, feeds):
        """The outputs of each rank, by name."""
        assert len(feeds) == self.count
        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(lambda rank: self._run(rank, model, feeds[rank]), range(self.count)))

    def _run(self, rank, model, feeds):
        try:
            results = ReferenceEvaluator(model, new_ops=self._ops(rank)).run(None, feeds)
        except BaseException:
            self._barrier.abort()
            raise
        return dict(zip((output.name for output in model.graph.output), results, strict=True))

    def _ops(self, rank):
        def all_gather(_self, value, key):
            return (np.stack(self.exchange(rank, key, value)),)

        def all_reduce(_self, value, key):
            return (
                np.sum(np.stack(self.exchange(rank, key, value)), axis=0, dtype=np.float64).astype(value.dtype),
            )

        def op(name, run):
            return type(name, (OpRun,), {"op_domain": "bngrad", "op_schema": None, "_run": run})

        return [op("AllGather", all_gather), op("AllReduce", all_reduce)]
