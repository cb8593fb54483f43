"""Tests that the source distribution builds a wheel, and that the wheel works without a compiler."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

USE = """
import numpy as np, onnx_ir as ir, bngrad
from onnx import parser
model = parser.parse_model('''
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[2,3,4] dY, float[2,3,4] X, float[3] scale, float[3] mean, float[3] inv_std)
  => (float[2,3,4] dX, float[3] dscale, float[3] dbias) {
  dX, dscale, dbias = com.microsoft.BatchNormalizationGrad <epsilon = 0.1> (dY, X, scale, mean, inv_std)
}''')
feeds = {v.name: np.random.default_rng(0).random([d.dim_value for d in v.type.tensor_type.shape.dim], np.float32)
         for v in model.graph.input}
rewritten = bngrad.rewrite(model)
answers = [bngrad.session(rewritten, name).run(None, feeds) for name in ("native", "python", "function")]
for answer in answers[1:]:
    for one, other in zip(answers[0], answer):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
print("works", bngrad.get_library_path())
"""


def _run(*command, cwd, env=None):
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution of this tree and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.long
def test_distributions_hold_what_they_should(distributions):
    sdist, wheel = distributions
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "ops/CMakeLists.txt", "bngrad/opset/functions.py"} <= names
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "bngrad").rglob("*.py")}
    pages = ROOT / "bngrad" / "reports" / "html"
    sources |= {
        path.relative_to(ROOT).as_posix() for path in pages.rglob("*.*") if path.suffix in (".css", ".js", ".j2")
    }
    assert sources <= names
    assert sources <= files
    assert {"bngrad/lib/libbngrad.so", "bngrad/include/bngrad.h", "bngrad/oracle/requirements.txt"} <= files
    assert all(name.startswith(("bngrad/", "bngrad-")) for name in files)
    assert "-py3-none-" in wheel.name


@pytest.mark.long
def test_wheel_works_without_a_compiler(distributions, tmp_path):
    _, wheel = distributions
    _run(sys.executable, "-m", "venv", str(tmp_path / "venv"), cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    _run(str(python), "-m", "pip", "install", "--quiet", str(wheel), cwd=tmp_path)
    bare = {"PATH": str(python.parent), "HOME": str(tmp_path)}
    assert "works" in _run(str(python), "-c", USE, cwd=tmp_path, env=bare)
    assert "rewrite" in _run(str(python.parent / "bngrad"), "--help", cwd=tmp_path, env=bare)
