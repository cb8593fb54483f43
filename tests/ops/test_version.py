"""The version of the library is that of pyproject.toml, which CMake reads when it configures."""

from __future__ import annotations

import subprocess

import pytest

from cmake_build import CMAKE, SOURCES

TEXTS = {
    "release": ('[project]\nversion = "1.2.3"  # a comment\n', "1.2.3"),
    "pre-release": ('version = "1.2.3rc1"\n', "1.2.3"),
    "two-numbers": ('version = "1.2"\n', None),
    "no-version": ("[project]\n", None),
    "no-file": (None, None),
}


@pytest.mark.skipif(CMAKE is None, reason="no cmake")
@pytest.mark.parametrize(("text", "version"), TEXTS.values(), ids=TEXTS)
def test_the_version(text, version, tmp_path):
    # Only the beginning: what follows looks for compilers.
    source = (SOURCES / "CMakeLists.txt").read_text(encoding="utf-8").partition("project(")[0]
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "version.cmake"
    script.write_text(f'{source}message("version ${{version}}")\n', encoding="utf-8")
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    done = subprocess.run([CMAKE, "-P", script], cwd=script.parent, capture_output=True, text=True, check=False)
    assert done.returncode == (version is None), done.stderr
    assert (f"version {version}" if version else "has no version, such as 1.2.3") in " ".join(done.stderr.split())
