"""docs/examples/federated/flower.py: clients of Flower, and its own average as the reference."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import bngrad
from bngrad.federated import average
from bngrad.runtime import native_library
from digits_training import EXAMPLES
from environments import cached_environment, run

REQUIREMENTS = ("flwr[simulation]==1.42.0",)
FEDERATED = EXAMPLES / "federated"
SHARE = EXAMPLES.parents[1] / "tests" / "from_torch" / "share_packages.py"


@pytest.fixture(scope="module")
def flower(request):
    """An interpreter that has Flower beside our packages: that of BNGRAD_FLOWER_PYTHON, or a new one."""
    python = os.environ.get("BNGRAD_FLOWER_PYTHON") or cached_environment(
        request.config.cache.mkdir("flower"), REQUIREMENTS
    )
    run(python, SHARE, sys.executable)
    return python


def rows_of(table):
    """The rounds of a table: number, accuracy, difference of the means, ratio of the variances."""
    return re.findall(r"^\| (\d) \| ([\d.]+) \| (\S+) \| ([\d.]+) \|$", table, re.MULTILINE)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_flower(flower, tmp_path):
    pytest.importorskip("sklearn")
    table = run(flower, FEDERATED / "flower.py", "--rounds", "3", cwd=tmp_path)
    rows = rows_of(table)
    assert [int(number) for number, *_ in rows] == [1, 2, 3]
    # Flower adds in float32, bngrad in double; the union of clients with other classes varies more.
    assert all(float(difference) < 1e-5 for _, _, difference, _ in rows)
    assert all(float(ratio) > 1.01 for *_, ratio in rows)
    assert float(rows[-1][1]) > 25


CONNECTION = """[superlink.loopback]
address = "127.0.0.1:{port}"
insecure = true
"""


@pytest.fixture
def loopback(flower, tmp_path):
    """A SuperLink and two SuperNodes on this machine, as the environment and the programs of Flower."""
    programs, ports = Path(flower).parent, free_ports(3)
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "BNGRAD_LIBRARY": str(native_library.library_path().resolve()),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",  # they start programs of their own
    }
    environment.pop("PYTHONPATH", None)
    (tmp_path / "config.toml").write_text(CONNECTION.format(port=ports[0]), encoding="utf-8")
    with ExitStack() as stack:

        def start(name, *arguments):
            log = stack.enter_context((tmp_path / f"{name}{arguments[1]}.log").open("w"))
            command = [programs / f"flower-{name}", "--insecure", *arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.enter_context(process)
            stack.callback(process.terminate)

        start("superlink", "--port", str(ports[0]), "--disable-runtime-dependency-installation")
        wait_for(ports[0])
        for number, port in enumerate(ports[1:]):
            config = f"partition-id={number} num-partitions=2"
            start(
                "supernode", "--port", str(port), "--superlink", f"127.0.0.1:{ports[0]}", "--node-config", config
            )
        yield environment, programs


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def wait_for(port):
    """Waits until a server listens."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_flower_over_loopback(loopback, monkeypatch):
    """Two clients in processes of their own have the accuracy of the same rounds in one process."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(FEDERATED))
    import digits

    environment, programs = loopback
    config = f'rounds=2 model="{digits.MODEL}"'
    command = [programs / "flwr", "run", FEDERATED, "loopback", "--stream", "--run-config", config]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    rows = rows_of(printed)
    assert [int(number) for number, *_ in rows] == [1, 2], printed
    assert all(float(difference) < 1e-5 for _, _, difference, _ in rows)

    data = digits.Digits(0)
    clients = data.rows_of_clients(skewed=True)[:2]
    step = bngrad.training_step(digits.MODEL, optimizer=bngrad.SGD(momentum=0.9))
    trainer, expected = bngrad.Trainer(step, learning_rate=0.05), []
    state = trainer.state_dict()
    for number in range(2):
        states = []
        for client, chosen in enumerate(clients):
            trainer.load_state_dict(state)
            digits.train(trainer, data, chosen, np.random.default_rng([number, client]))
            states.append(trainer.state_dict())
        state = average(states, [len(chosen) for chosen in clients], optimizer="reset")
        trainer.load_state_dict(state)
        expected.append(f"{100 * digits.hits(trainer, data, data.test).mean():.1f}")
    assert [accuracy for _, accuracy, *_ in rows] == expected
