"""The environment's life, with real installations, all but one of them `long`: the first one needs the network."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bngrad
from bngrad.errors import OracleError
from bngrad.oracle import Oracle, ensure, install, packages, remove, status
from bngrad.oracle import environment as life
from bngrad.oracle.process import WorkerStartError

ROOT = Path(bngrad.__file__).parents[1]


@pytest.fixture
def base(tmp_path, monkeypatch):
    """An empty folder for environments."""
    folder = tmp_path / "oracle"
    monkeypatch.setenv("BNGRAD_ORACLE_DIR", str(folder))
    return folder


@pytest.fixture
def copy(environment, base):
    """A copy of the shared environment in a folder of its own: as good as installed, and may be broken."""
    base.mkdir()
    return shutil.copytree(environment.path, base / environment.path.name, symlinks=True)


@pytest.fixture
def offline(monkeypatch):
    """No index, no network and none of the user's settings for pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def site_packages(path):
    return path / json.loads((path / "bngrad-oracle.json").read_text())["site_packages"]


def start_install(base):
    program = "from bngrad.oracle import install\nprint(install(progress=lambda s, _: print(s, flush=True)).build)"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "BNGRAD_ORACLE_DIR": str(base)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=pipe, stderr=pipe, text=True)


def test_install_use_and_remove(base):
    assert (status().ready, status().installed, status().problem) == (False, False, "not installed")
    stages = []
    installed = install(lambda stage, fraction: stages.append((stage, fraction)))
    assert names(base) == [installed.path.name]
    words = [stage for stage, _ in stages]
    assert words[0] == "creating environment"
    assert "fetching onnxruntime-training-cpu 1.19.2" in words
    assert words[-2:] == ["checking", "ready"]
    fractions = [fraction for _, fraction in stages]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    assert status().environment == installed
    assert install() == ensure() == installed
    with Oracle():
        pass
    (base / "ort-mine").mkdir()
    assert remove() == [installed.path]
    assert names(base) == ["ort-mine"]
    assert remove() == []


def test_remove_what_was_never_there(base):
    assert remove() == []
    assert not base.exists()


def test_other_versions_and_leftovers_are_removed_too(copy):
    base = copy.parent
    copy.rename(base / "ort-1.18.0-0123456789")
    (base / "ort-1.19.2-0123456789.partial-abc").mkdir()
    (base / "unrelated").mkdir()
    assert remove() == [base / "ort-1.18.0-0123456789"]
    assert names(base) == ["unrelated"]


def drop_marker(path):
    (path / "bngrad-oracle.json").unlink()


def garble_marker(path):
    (path / "bngrad-oracle.json").write_text("{")


def empty_marker(path):
    (path / "bngrad-oracle.json").write_text("[]")


def other_pins(path):
    marker = json.loads((path / "bngrad-oracle.json").read_text())
    (path / "bngrad-oracle.json").write_text(json.dumps({**marker, "key": "ort-1.18.0-0123456789"}))


def drop_interpreter(path):
    (path / "bin" / "python").unlink()


def dangling_interpreter(path):
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to("/nonexistent/python3.11")


def unexecutable_interpreter(path):
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").write_text("")


def drop_module(path):
    (site_packages(path) / "onnxruntime" / "__init__.py").unlink()


def cut_library(path):
    (library,) = (site_packages(path) / "onnxruntime" / "capi").glob("onnxruntime_pybind11_state*")
    with library.open("r+b") as file:
        file.truncate(1000)


def drop_record(path):
    (site_packages(path) / "numpy-2.1.3.dist-info" / "RECORD").unlink()


def drop_all_packages(path):
    shutil.rmtree(site_packages(path))


DAMAGE = {
    drop_marker: "marker bngrad-oracle.json is missing or unreadable",
    garble_marker: "marker bngrad-oracle.json is missing or unreadable",
    empty_marker: "marker bngrad-oracle.json is missing or unreadable",
    other_pins: "marker has ort-1.18.0-0123456789",
    drop_interpreter: "bin/python is missing or not executable",
    dangling_interpreter: "bin/python is missing or not executable",
    unexecutable_interpreter: "bin/python is missing or not executable",
    drop_module: "onnxruntime/__init__.py is missing",
    cut_library: "has 1000 bytes instead of",
    drop_record: "numpy 2.1.3 is not installed",
    drop_all_packages: "numpy 2.1.3 is not installed",
}


@pytest.mark.skipif(os.name != "posix", reason="damages bin/python")
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_seen(copy, damage):
    assert status().ready
    damage(copy)
    assert (status().ready, status().installed) == (False, True)
    assert DAMAGE[damage] in status().problem


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="damages bin/python")
@pytest.mark.parametrize(
    "damage", [drop_all_packages, drop_interpreter, drop_marker], ids=lambda damage: damage.__name__
)
def test_damage_is_repaired(copy, damage):
    damage(copy)
    installed = ensure()
    assert status().environment == installed
    assert names(copy.parent) == [copy.name]
    with Oracle():
        pass


def spoil(path):
    """Damage that keeps sizes, and that only the worker's start shows."""
    module = site_packages(path) / "onnxruntime" / "__init__.py"
    module.write_text("?" * module.stat().st_size)


@pytest.mark.long
def test_worker_that_does_not_start_has_the_environment_made_anew(copy):
    spoil(copy)
    before = status().environment
    assert before is not None
    with Oracle() as oracle:
        assert oracle._worker.alive
    assert status().environment.build != before.build


def test_but_only_once(copy, monkeypatch):
    spoil(copy)
    calls = []

    def useless(_progress, *, replace):
        calls.append(replace)
        return replace

    monkeypatch.setattr(life, "install", useless)
    with pytest.raises(WorkerStartError, match="SyntaxError"):
        Oracle().__enter__()
    assert calls == [status().environment]


@pytest.mark.long
def test_nor_if_somebody_else_has_done_it(copy):
    stale = life.Environment(copy, copy / "bin" / "python", "3.11.0", "the build before")
    assert install(replace=stale).build != stale.build
    assert install(replace=stale) == status().environment


@pytest.mark.usefixtures("copy", "offline")
def test_ready_needs_no_network_no_pip_and_no_write_access(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(life, "_locked", None)
    with Oracle() as oracle:
        assert oracle._worker.alive


@pytest.mark.usefixtures("copy")
def test_variables_for_other_pythons_do_no_harm(monkeypatch, tmp_path):
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong numpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with Oracle() as oracle:
        assert oracle._worker.alive


@pytest.mark.usefixtures("offline")
def test_no_network(base):
    message = r"No matching distribution found for numpy==2\.1\.3.*check the network"
    with pytest.raises(OracleError, match=message) as caught:
        install()
    assert "\n" not in str(caught.value)
    assert names(base) == []
    assert not status().installed


@pytest.mark.usefixtures("offline")
def test_no_network_leaves_what_was_there(copy):
    drop_module(copy)
    with pytest.raises(OracleError, match="pip cannot install"):
        ensure()
    assert names(copy.parent) == [copy.name]


@pytest.mark.long
def test_wheel_with_another_hash(base, monkeypatch, tmp_path):
    wrong = tmp_path / "requirements.txt"
    wrong.write_text(re.sub("sha256:.{8}", "sha256:00000000", packages.REQUIREMENTS.read_text()))
    monkeypatch.setattr(packages, "REQUIREMENTS", wrong)
    with pytest.raises(OracleError, match="DO NOT MATCH THE HASHES"):
        install()
    assert names(base) == []


def test_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BNGRAD_ORACLE_DIR", str(tmp_path / "file"))
    with pytest.raises(OracleError, match="name another one with BNGRAD_ORACLE_DIR"):
        install()


def test_no_python(base, monkeypatch):
    def none():
        raise OracleError("no Python")

    monkeypatch.setattr(life, "find_interpreter", none)
    with pytest.raises(OracleError, match="no Python"):
        install()
    assert names(base) == []


@pytest.mark.long
def test_probe_that_fails(base, monkeypatch):
    def refuse(_oracle):
        raise OracleError("the gradient is wrong")

    monkeypatch.setattr("bngrad.oracle.probe.check_gradient", refuse)
    with pytest.raises(OracleError, match="the gradient is wrong"):
        install()
    assert names(base) == []


@pytest.mark.long
def test_two_at_once(base):
    first, second = start_install(base), start_install(base)
    outputs = []
    for process in (first, second):
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        outputs.append(output.split("\n")[:-1])
    assert outputs[0][-1] == outputs[1][-1] == status().environment.build
    assert sorted(output[0] for output in outputs) == [
        "creating environment", "waiting for another process that installs the oracle",
    ]  # fmt: skip
    assert names(base) == [status().path.name]


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("stage", ["creating", "fetching", "checking"])
def test_killed(base, stage):
    with start_install(base) as process:
        while stage not in process.stdout.readline():
            pass
        process.kill()
    assert not status().installed
    assert any(".partial-" in name for name in names(base))
    assert ensure() == status().environment
    assert names(base) == [status().path.name]


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_interrupted(base):
    with start_install(base) as process:
        while "fetching" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.stderr.read()
    assert names(base) == []


@pytest.mark.long
def test_installs_in_spite_of_settings_meant_for_others(base, monkeypatch, tmp_path):
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    install()
    assert names(base) == [status().path.name]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.long
@pytest.mark.usefixtures("base")
def test_without_a_pip_of_our_own(monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
    installed = install()
    with Oracle(python=installed.python):
        pass


def test_import_is_cheap():
    heavy = {"onnx", "numpy", "platformdirs", "filelock"}
    program = f"import sys, bngrad; heavy = {heavy} - set(sys.modules); import bngrad.oracle; "
    program += "print(sorted(heavy & set(sys.modules)))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names():
    import bngrad.oracle

    assert all(getattr(bngrad.oracle, name) for name in bngrad.oracle.__all__)
    with pytest.raises(AttributeError, match="unheard_of"):
        _ = bngrad.oracle.unheard_of
