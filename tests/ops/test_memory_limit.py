"""Memory that runs out, by the limit that the system puts on a process: an error, and the process goes on."""

from __future__ import annotations

import sys

import pytest

from test_load import in_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")

PRELUDE = """
import contextlib, resource, sys
import numpy as np
from bngrad.runtime import native
from bngrad.errors import LibraryError
from test_ort_op import FLOAT, FLOAT16, grad_op, make_feeds, make_session, statistics_op, training_op

@contextlib.contextmanager
def room_for(megabytes):
    # Of address space, beyond what the process has by now.
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (megabytes << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

def prepared(op, shape, axes, types=(FLOAT,) * 3, threads=1):
    feeds = {name: np.ones(a.shape, a.dtype) for name, a in make_feeds(op, [1] * len(shape), axes, types).items()}
    session = make_session(op.model(feeds | {"axes": np.array(axes)}), threads)
    del feeds["axes"]
    kept = [extent for i, extent in enumerate(shape) if i not in axes]
    return session, {n: np.ones(shape if a.ndim == len(shape) else kept, a.dtype) for n, a in feeds.items()}

def refusal(session, feeds, megabytes):
    with room_for(megabytes):
        try:
            session.run(None, feeds)
        except Exception as error:
            return str(error)
    raise AssertionError("there was room")

op = grad_op()
small = make_feeds(op, [4, 3, 5], [0, 2])
small_session = make_session(op.model(small))
del small["axes"]
wanted = [output.tobytes() for output in small_session.run(None, small)]

def alive():
    # With the limit and without, the sessions that there are and new ones.
    with room_for(4):
        assert [output.tobytes() for output in small_session.run(None, small)] == wanted
    again = make_session(op.model(small | {"axes": np.array([0, 2])}), 2)
    assert [output.tobytes() for output in again.run(None, small)] == wanted
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["grad_op()", "training_op()"])
def test_no_room_for_an_output_of_the_op(op, threads):
    message = in_process(
        PRELUDE
        + f"""
session, feeds = prepared({op}, [64, 16, 128, 64], [0, 2, 3], threads={threads})
print(refusal(session, feeds, 8))
alive()
with room_for(200):
    assert np.isfinite(session.run(None, feeds)[0]).all()
"""
    )
    assert "the_node" in message
    assert "allocate" in message.lower() or "bad_alloc" in message or "memory" in message


def test_no_room_for_the_scratch_of_the_op():
    """Its output is small: what cannot be had are the sums of the parts that X is cut into."""
    message = in_process(
        PRELUDE
        + """
session, feeds = prepared(statistics_op(), [40000, 1024], [0], (FLOAT16,) * 3)
print(refusal(session, feeds, 1))
alive()
np.testing.assert_array_equal(session.run(None, feeds)[0], np.ones(1024))
"""
    )
    assert "bngrad.BatchNormalizationStatistics, node 'the_node': out of memory" in message


def test_no_room_in_the_c_abi():
    in_process(
        PRELUDE
        + """
x, expected = np.ones((40000, 1024), np.float16), np.ones(1024)
with room_for(1):
    try:
        native.batch_normalization_statistics(x, (0,), 1e-3, num_threads=1)
    except LibraryError as error:
        assert "bngrad_batch_normalization_statistics: out of memory" in str(error)
    else:
        raise AssertionError("there was room")
alive()
np.testing.assert_array_equal(native.batch_normalization_statistics(x, (0,), 1e-3)[0], expected)
"""
    )


def test_no_room_for_threads():
    """Then the caller does all of the work, with the same bits."""
    in_process(
        PRELUDE
        + """
import os, threading
# Stacks of threads that have ended are kept, up to 40 MB by glibc: a new thread would need no room.
ends = threading.Event()
for _ in range(8):
    threading.Thread(target=ends.wait, daemon=True).start()
rng = np.random.default_rng(0)
dy, x = rng.normal(size=(2, 8, 32, 20, 20)).astype(np.float32)
scale, mean, inv_std = np.ones((3, 32), np.float32)
def grad(threads):
    outputs = native.batch_normalization_grad(dy, x, scale, mean, inv_std, (0, 2, 3), 1, num_threads=threads)
    return [output.tobytes() for output in outputs]
expected, before = grad(1), len(os.listdir("/proc/self/task"))
with room_for(6):
    assert grad(8) == expected
    assert len(os.listdir("/proc/self/task")) == before
assert grad(8) == expected
assert len(os.listdir("/proc/self/task")) == before + 7
"""
    )
