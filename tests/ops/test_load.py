"""Sessions under load: many threads, many sessions, other libraries beside ours, forks. Always the same bits."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnxruntime
import pytest

from test_ort_op import every_op, grad_op, library, make_feeds, make_session

HERE = Path(__file__).parent
SHAPE, AXES = [4, 32, 20, 20], [0, 2, 3]  # enough elements that threads share them


def in_process(body, *arguments):
    """Runs a script that can import these tests; returns what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(body), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def given(op, seed):
    feeds = make_feeds(op, SHAPE, AXES, seed=seed)
    return {name: array for name, array in feeds.items() if name != "axes"}


def bits(session, feeds):
    return [output.tobytes() for output in session.run(None, feeds)]


@every_op
@pytest.mark.parametrize("runs", [160, pytest.param(10_000, marks=pytest.mark.long)])
def test_one_session_in_16_threads(op, runs):
    """Four different inputs at once, so that a value of another run would be seen."""
    model = op.model(make_feeds(op, SHAPE, AXES))
    feeds = [given(op, seed) for seed in range(4)]
    expected = [bits(make_session(model, 1), f) for f in feeds]
    assert len({outputs[0] for outputs in expected}) == 4
    session = make_session(model, 2)
    with ThreadPoolExecutor(16) as pool:
        wrong = [i for i, same in enumerate(pool.map(
            lambda i: bits(session, feeds[i % 4]) == expected[i % 4], range(runs)
        )) if not same]  # fmt: skip
    assert wrong == []


SESSIONS = """
import gc, resource, sys
from concurrent.futures import ThreadPoolExecutor
from test_load import AXES, SHAPE, bits, given
from test_ort_op import MODES, make_feeds, make_session

ops = [MODES[name] for name in ("grad", "relu_grad", "grad_grad", "training", "statistics")]
models = [op.model(make_feeds(op, SHAPE, AXES)) for op in ops]
feeds = [given(op, 0) for op in ops]
expected = [bits(make_session(m), f) for m, f in zip(models, feeds, strict=True)]

def one(i):
    return bits(make_session(models[i % 5], 1 + i % 3), feeds[i % 5]) == expected[i % 5]

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def batch(count):
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(count)))
    return resident()

count = int(sys.argv[1])
print(*[batch(count) for _ in range(4)])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="there is no /proc on this system")
@pytest.mark.parametrize("sessions", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_sessions_made_and_destroyed_in_parallel(sessions):
    """Four rounds; memory that the first has taken serves the others. What a session leaked would add up."""
    first, *_, last = map(int, in_process(SESSIONS, sessions).split())
    assert last - first < 16 << 20


# Registrations.


def test_library_registered_twice_for_one_session():
    """ONNX Runtime's own refusal, and nothing is broken afterwards."""
    op = grad_op()
    model = op.model(make_feeds(op, SHAPE, AXES))
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library())
    options.register_custom_ops_library(library())
    with pytest.raises(Exception, match="Domain already set in registry"):
        onnxruntime.InferenceSession(model, options)
    assert bits(make_session(model, 2), given(op, 0)) == bits(make_session(model), given(op, 0))


def test_options_used_for_several_sessions():
    op = grad_op()
    model = op.model(make_feeds(op, SHAPE, AXES))
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library())
    expected = bits(make_session(model), given(op, 0))
    sessions = [onnxruntime.InferenceSession(model, options) for _ in range(3)]
    del options
    for session in (*sessions, *sessions):
        assert bits(session, given(op, 0)) == expected


def test_library_loaded_from_two_places(tmp_path):
    """Two copies in one process, each with its sessions, and both for one session refused."""
    copy = shutil.copy(library(), tmp_path)
    out = in_process(
        """
        import sys, onnxruntime
        from test_load import AXES, SHAPE, bits, given
        from test_ort_op import grad_op, library, make_feeds
        op = grad_op()
        model = op.model(make_feeds(op, SHAPE, AXES))
        def options(*paths):
            options = onnxruntime.SessionOptions()
            for path in paths: options.register_custom_ops_library(path)
            return options
        one, other = (onnxruntime.InferenceSession(model, options(p)) for p in (library(), sys.argv[1]))
        expected = bits(one, given(op, 0))
        assert bits(other, given(op, 0)) == expected
        try:
            onnxruntime.InferenceSession(model, options(library(), sys.argv[1]))
        except Exception as error:
            print(error)
        assert bits(one, given(op, 0)) == expected
        """,
        copy,
    )
    assert "Domain already set in registry" in out


def test_other_libraries_in_the_session(tmp_path):
    """Another custom-op library and onnxruntime-extensions, with a node of each, in every order."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    nothing = tmp_path / "libnothing.so"
    source = HERE.parent / "bench" / "nothing_op.cc"
    include = f"-I{HERE.parents[1] / 'ops'}"
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", include, source, "-o", nothing]
    subprocess.run(command, check=True)
    in_process(
        """
        import itertools, sys
        import numpy as np, onnx, onnxruntime, onnxruntime_extensions
        from onnx import helper
        from test_load import AXES, SHAPE, bits, given
        from test_ort_op import grad_op, library, make_feeds, make_session
        op = grad_op()
        model = onnx.load_model_from_string(op.model(make_feeds(op, SHAPE, AXES)))
        expected = bits(make_session(model.SerializeToString()), given(op, 0))
        model.graph.node.extend([
            helper.make_node("Nothing", list(op.inputs), ["n0", "n1", "n2"], domain="nothing"),
            helper.make_node("SegmentSum", ["dbias", "ids"], ["sums"], domain="ai.onnx.contrib"),
        ])
        model.graph.initializer.append(helper.make_tensor("ids", 7, [32], [0] * 16 + [1] * 16))
        model.opset_import.extend([helper.make_opsetid("nothing", 1), helper.make_opsetid("ai.onnx.contrib", 1)])
        model.graph.output.append(helper.make_tensor_value_info("sums", 1, None))
        paths = [library(), sys.argv[1], onnxruntime_extensions.get_library_path()]
        for order in itertools.permutations(paths):
            options = onnxruntime.SessionOptions()
            for path in order: options.register_custom_ops_library(path)
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
            *ours, sums = session.run(None, given(op, 0))
            assert [output.tobytes() for output in ours] == expected
            dbias = ours[2]
            np.testing.assert_allclose(sums, [dbias[:16].sum(), dbias[16:].sum()], rtol=1e-4)
        """,
        nothing,
    )


MODES_OF_CALLERS = """
import ctypes, sys
import numpy as np, onnx, onnxruntime
from onnx import helper
from test_ort_op import grad_op, library, make_feeds

op = grad_op(training=0)
feeds = make_feeds(op, [8, 64, 40, 40], [0, 2, 3])
feeds["dY"].reshape(-1)[::3] *= 1e-38
model = onnx.load_model_from_string(op.model(feeds))
# A node of ONNX Runtime's own, after ours and in the same threads.
model.graph.node.append(helper.make_node("Div", ["X", "three"], ["third"]))
model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3, np.float32), "three"))
model.graph.output.append(helper.make_tensor_value_info("third", 1, None))
del feeds["axes"]

def session(threads, flushes):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library())
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.set_denormal_as_zero", flushes)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)

def runs(session, count=8):
    return {tuple(output.tobytes() for output in session.run(None, feeds)) for _ in range(count)}

sessions = [session(threads, "0") for threads in (1, 2, 3)]
(plain,) = runs(sessions[0], 1)
assert all(runs(s) == {plain} for s in sessions)
if sys.argv[1] == "upward":
    assert ctypes.CDLL(None).fesetround(int(sys.argv[2])) == 0
    (expected,) = runs(sessions[0], 1)
    assert expected[:3] != plain[:3]
    # What ONNX Runtime's own node gives then is its own affair.
    assert all({outputs[:3] for outputs in runs(s)} == {expected[:3]} for s in sessions)
    ctypes.CDLL(None).fesetround(0)
else:
    # The option is of the session's threads; of the thread that runs it only for the first session of a process.
    assert all({outputs[:3] for outputs in runs(session(t, "1"))} == {plain[:3]} for t in (1, 2, 3))
assert all(runs(s) == {plain} for s in sessions)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library has another name, and the modes other numbers")
@pytest.mark.parametrize("mode", ["upward", "flush to zero"])
def test_floating_point_mode_of_the_caller(mode):
    """Also where threads of the session have another: as many as there may be, the same bits."""
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None:
        pytest.skip(f"the number of the mode on {platform.machine()}")
    in_process(MODES_OF_CALLERS, mode, upward)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_fork_after_load():
    """A child uses the session that it was born with, if that has no threads of its own, and makes others."""
    in_process(
        """
        import os
        import numpy as np
        from bngrad.runtime import native
        from test_load import AXES, SHAPE, bits, given
        from test_ort_op import grad_op, make_feeds, make_session
        op = grad_op()
        feeds = given(op, 0)
        model = op.model(make_feeds(op, SHAPE, AXES))
        session, threaded = make_session(model, 1), make_session(model, 2)
        expected = bits(session, feeds)
        assert bits(threaded, feeds) == expected

        def in_c(threads):
            names = ("dY", "X", "scale", "mean", "inv_std")
            outputs = native.batch_normalization_grad(*(feeds[n] for n in names), AXES, 1, num_threads=threads)
            return [output.tobytes() for output in outputs]

        assert in_c(4) == expected
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    assert bits(session, feeds) == expected
                    assert bits(make_session(model, 3), feeds) == expected
                    assert in_c(4) == expected
                    status = 7
                finally:
                    os._exit(status)
            children.append(child)
        assert bits(threaded, feeds) == expected
        assert in_c(4) == expected
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [7, 7, 7]
        """
    )
