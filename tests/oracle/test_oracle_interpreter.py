"""Which Python the environment is made with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bngrad.errors import OracleError
from bngrad.oracle import interpreter

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-ins for Python are shell scripts")


def pretend(monkeypatch, name="cpython", version=(3, 14, 0)):
    """Run the search as another Python would."""
    other = SimpleNamespace(
        implementation=SimpleNamespace(name=name), version_info=version, executable="/running/python"
    )
    monkeypatch.setattr(interpreter, "sys", other)


def script(folder, name, body):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def says(*lines):
    return "\n".join(f"echo {line}" for line in lines)


@pytest.mark.parametrize(
    ("system", "soabi", "refused"),
    [
        ("linux-x86_64", "cpython-312-x86_64-linux-gnu", None),
        ("macosx-11.0-universal2", "cpython-312-darwin", None),
        ("win-amd64", None, None),
        ("linux-aarch64", "cpython-312-aarch64-linux-gnu", "linux-aarch64"),
        ("linux-x86_64", "cpython-312-x86_64-linux-musl", "linux-x86_64 with musl"),
        ("win-arm64", None, "win-arm64"),
    ],
)
def test_systems(monkeypatch, system, soabi, refused):
    monkeypatch.setattr(interpreter.sysconfig, "get_platform", lambda: system)
    monkeypatch.setattr(interpreter.sysconfig, "get_config_var", {"SOABI": soabi}.get)
    if refused is None:
        interpreter.require_system()
        return
    with pytest.raises(OracleError, match=rf"only; this is {refused}: validate --against reference"):
        interpreter.require_system()


@pytest.mark.parametrize("version", [(3, 11, 7), (3, 12, 0)])
def test_the_running_one_if_it_fits(monkeypatch, version):
    pretend(monkeypatch, version=version)
    assert interpreter.find_interpreter() == Path("/running/python")


def test_this_very_one():
    if sys.version_info[:2] in interpreter.SUPPORTED:
        assert interpreter.find_interpreter() == Path(sys.executable)


@pytest.mark.parametrize(
    ("name", "version"), [("cpython", (3, 14, 0)), ("cpython", (3, 10, 9)), ("pypy", (3, 11, 9))]
)
def test_one_on_the_path_otherwise(monkeypatch, tmp_path, name, version):
    pretend(monkeypatch, name, version)
    script(tmp_path / "bin", "python3.11", says("cpython", 3, 11, "/usr/real/python3.11"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert interpreter.find_interpreter() == Path("/usr/real/python3.11")


def test_3_12_is_preferred(monkeypatch, tmp_path):
    pretend(monkeypatch)
    script(tmp_path / "bin", "python3.11", says("cpython", 3, 11, "/eleven"))
    script(tmp_path / "bin", "python3.12", says("cpython", 3, 12, "/twelve"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert interpreter.find_interpreter() == Path("/twelve")


BAD = {
    "shim of a version manager": "echo 'python3.12: command not found' >&2\nexit 127",
    "another version": says("cpython", 3, 13, "/x"),
    "not CPython": says("pypy", 3, 12, "/x"),
    "silent": "",
    "prints no text": "printf '\\377\\376'",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_bad_one_does_not_hide_a_good_one(monkeypatch, tmp_path, body):
    pretend(monkeypatch)
    script(tmp_path / "shims", "python3.12", body)
    script(tmp_path / "bin", "python3.12", says("cpython", 3, 12, "/good"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}{os.pathsep}{os.pathsep}{tmp_path / 'bin'}")
    assert interpreter.find_interpreter() == Path("/good")


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_none(monkeypatch, tmp_path, body):
    pretend(monkeypatch)
    script(tmp_path / "bin", "python3.12", body)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(OracleError, match=r"this is cpython 3\.14, and no working .* install one") as caught:
        interpreter.find_interpreter()
    assert "\n" not in str(caught.value)
