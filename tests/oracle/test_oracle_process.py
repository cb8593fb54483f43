"""A worker that dies, hangs, is interrupted or abandoned: an OracleError names that, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bngrad
from bngrad.errors import OracleError
from bngrad.oracle import Oracle, process
from bngrad.oracle.process import Worker, WorkerStartError
from oracle_cases import CNN_WEIGHTS, cnn_feeds, parse

ROOT = Path(bngrad.__file__).parents[1]

# ORT does not check that a training-mode batch norm has its running outputs, and writes to them.
CRASHING = """m (float[2,3] x, float[3] s) => (float[2,3] y) {
    y, a, b = BatchNormalization <training_mode = 1> (x, s, s, s, s)
}"""


def crashing_model():
    model = parse(CRASHING)
    model.graph.node[0].output[1] = model.graph.node[0].output[2] = ""
    return model


STEPS = 2000


def slow_model():
    """About 10^13 multiplications, in steps that ORT cannot skip."""
    steps = "\n".join(f"y{index + 1} = MatMul (y{index}, x)" for index in range(STEPS))
    return parse(f"m (float[1800,1800] x) => (float[1800,1800] y{STEPS}) {{ y0 = Relu (x)\n{steps} }}")


SLOW_FEEDS = {"x": np.zeros((1800, 1800), np.float32)}


@pytest.fixture
def own(environment):
    with Oracle(python=environment.python) as opened:
        yield opened


def test_crash_names_the_job_and_the_next_one_works(own, training):
    feeds = {"x": np.ones((2, 3), np.float32), "s": np.ones(3, np.float32)}
    with pytest.raises(OracleError, match="ended by SIGSEGV while running the model 'm'"):
        own.run(crashing_model(), feeds)
    assert len(own.run(training, cnn_feeds())) == 1 + len(CNN_WEIGHTS)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_death_between_jobs(own, training, how):
    with own.load(training) as session:
        before = session.run(cnn_feeds(), ["loss"])
        os.kill(own._worker._process.pid, how)
        own._worker._process.wait()
        assert session.run(cnn_feeds(), ["loss"]) == before


def test_timeout(environment, training):
    with Oracle(python=environment.python, timeout=1) as opened:
        with pytest.raises(OracleError, match="running the model 'm' took the oracle longer than 1 s"):
            opened.run(slow_model(), SLOW_FEEDS)
        assert opened.run(training, cnn_feeds(), ["loss"])


def test_prints_do_not_disturb_the_channel(environment, tmp_path, monkeypatch):
    """Whatever ORT or NumPy write to file descriptor 1 goes where stderr goes."""
    script = tmp_path / "noisy.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"worker = runpy.run_path({process._WORKER.as_posix()!r})\n"
        "def noise(job):\n    os.write(1, b'noise\\n')\n    print('more', flush=True)\n    return {}\n"
        "worker['_JOBS']['noise'] = noise\n"
        "worker['main']()\n"
    )
    monkeypatch.setattr(process, "_WORKER", script)
    worker = Worker(environment.python, tmp_path)
    try:
        assert worker.ask({"job": "noise"}, "making noise", 10) == {}
        assert worker.ask({"job": "hello"}, "greeting", 10)["onnxruntime"] == "1.19.2"
        with pytest.raises(OracleError, match="unheard of"):
            worker.ask({"job": "unheard of"}, "asking for what there is not", 10)
        assert worker.alive
        assert (tmp_path / "stderr.txt").read_text() == "noise\nmore\n"
    finally:
        worker.stop()
    assert not worker.alive


def test_what_the_worker_said_last(environment, tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("import sys\nprint('one', file=sys.stderr)\nraise SystemExit('\\x1b[31mtwo\\x1b[m')\n")
    monkeypatch.setattr(process, "_WORKER", script)
    with pytest.raises(WorkerStartError, match=r"ended with exit code 1 while starting; it said: one \| two$"):
        Worker(environment.python, tmp_path)


# The program of a user that is stopped in the middle of a job.
PROGRAM = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from test_oracle_process import SLOW_FEEDS, slow_model
from bngrad.oracle import Oracle
with Oracle() as oracle, oracle.load(slow_model(), threads=1) as session:
    print(oracle._worker._process.pid, flush=True)
    session.run(SLOW_FEEDS)
"""


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_in_the_middle_of_a_job(environment, tmp_path, how):
    """Neither Ctrl-C nor a kill of the client leaves a worker or its files."""
    assert environment
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with program:
        worker = int(program.stdout.readline())
        time.sleep(0.5)
        assert running(worker)
        if how == signal.SIGINT:  # a terminal sends it to everybody in the foreground
            os.killpg(program.pid, how)
        else:
            program.send_signal(how)
        errors = program.stderr.read()
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)
    until = time.monotonic() + (0 if how == signal.SIGINT else 20)
    while running(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running(worker)
    assert not list(tmp_path.iterdir())


def test_worker_of_a_client_that_vanished_cleans_up(environment, tmp_path):
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    worker = Worker(environment.python, scratch)
    worker._process.stdin.close()
    worker._process.wait(20)
    worker.stop()
    assert not scratch.exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-200, "was ended by signal 200"),
        (0xC0000005, "crashed with status 0xC0000005"),
    ],
)
def test_how_it_ended(code, words):
    """The last one is what Windows makes of an access violation."""
    worker = Worker.__new__(Worker)
    worker._process = SimpleNamespace(wait=lambda _: code)
    assert worker._end() == words
