"""The threads that the C interface keeps: many callers, forks, a process that ends. Each has its own process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """
import os, sys, threading, time
import numpy as np
from bngrad.runtime import native

rng = np.random.default_rng(0)
X, dY = rng.normal(size=(2, 8, 32, 40, 50)).astype(np.float32)
scale, mean, inv_std = rng.uniform(0.5, 1.5, (3, 32)).astype(np.float32)


def grad(num_threads, dY=dY):
    outputs = native.batch_normalization_grad(dY, X, scale, mean, inv_std, (0, 2, 3), 1, num_threads=num_threads)
    return [output.tobytes() for output in outputs]


wanted = grad(1)
assert grad(1, dY + 1) != wanted
"""


def run(body, *, succeeds=True):
    source = PRELUDE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == succeeds, done.stderr
    return done.stdout


def test_a_wrong_result_is_seen():
    run("assert grad(2, dY + 1) == wanted", succeeds=False)


def test_many_callers_at_once():
    """More threads are asked for than there are cores, by some, and one alone by others."""
    run(
        """
        wrong = []
        def calls(threads):
            wrong.extend(threads for _ in range(40) if grad(threads) != wanted)
        callers = [threading.Thread(target=calls, args=[threads]) for threads in (1, 2, 2, 3, 4, 7, 0, 16)]
        for caller in callers: caller.start()
        for caller in callers: caller.join()
        assert not wrong, wrong
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize(
    "before", ["grad(4)", "pass", "threading.Thread(target=lambda: [grad(4) for _ in range(50)]).start()"]
)
def test_a_fork_has_threads_of_its_own(before):
    """Also a child of that, and the parent still has its own."""
    out = run(
        f"""
        {before}
        child = os.fork()
        if child == 0:
            assert grad(4) == wanted
            grandchild = os.fork()
            if grandchild == 0:
                assert grad(3) == wanted
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
            assert grad(2) == wanted
            os._exit(7)
        assert grad(4) == wanted
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert out == "7\n"


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "__register_atfork"),
    reason="this is not GNU's C library",
)
def test_a_fork_while_the_first_call_is_made():
    """The child has the parent's pool, and none of its threads, whatever it was doing when memory was copied."""
    out = run(
        """
        import ctypes
        # After the system has decided what to do in the child.
        during_fork = ctypes.CFUNCTYPE(None)(lambda: grad(4))
        ctypes.CDLL(None).__register_atfork(during_fork, None, None, None)
        child = os.fork()
        if child == 0:
            before = len(os.listdir("/proc/self/task"))
            assert grad(4) == wanted
            os._exit(len(os.listdir("/proc/self/task")) - before)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert out == "3\n"


def test_threads_end_with_the_process():
    """However many sleep, or still look for work."""
    run("grad(32); print(threading.active_count())")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc on this system")
def test_threads_are_kept_and_no_more_than_asked_for():
    out = run(
        """
        def count(): return len(os.listdir("/proc/self/task"))
        before = count()
        counts, most = [], 0
        for threads in (1, 4, 4, 2, 4, 6, 6):
            most = max(most, threads - 1)
            # A thread that ends its part early is given another, and one fewer is started.
            for _ in range(100):
                grad(threads)
                if count() - before >= most: break
            counts.append(count() - before)
        print(counts)
        """
    )
    assert out == "[0, 3, 3, 3, 3, 5, 5]\n"


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc on this system")
@pytest.mark.parametrize(
    ("callers", "most"), [([16] * 40, 15), ([2] * 12, 1), ([1] * 4, 0), ([3, 9, 2, 5] * 5, 8)]
)
def test_callers_share_as_many_threads_as_one_asks_for(callers, most):
    """However many call at once: a caller that finds all threads taken does its work alone."""
    out = run(
        f"""
        def count(): return len(os.listdir("/proc/self/task"))
        callers, wrong = {callers}, []
        before = count()
        barrier = threading.Barrier(len(callers))
        def call(threads):
            barrier.wait()
            wrong.extend(threads for _ in range(5) if grad(threads) != wanted)
        started = [threading.Thread(target=call, args=[threads]) for threads in callers]
        for thread in started: thread.start()
        for thread in started: thread.join()
        assert not wrong, wrong
        # A thread that is joined may still be about to end.
        end = time.monotonic() + 30
        while count() - before > {most} and time.monotonic() < end: time.sleep(0.01)
        print(count() - before)
        """
    )
    assert out == f"{most}\n"


def test_idle_threads_take_no_time():
    """They look for work for a moment, then sleep."""
    out = run(
        """
        grad(2)
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        print(time.process_time() - before)
        """
    )
    assert float(out) < 0.1
