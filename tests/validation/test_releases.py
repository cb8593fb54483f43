"""`bngrad validate` of a whole network on ONNX Runtime from the oldest release to the newest."""

from __future__ import annotations

import tomllib

import pytest

from environments import make_environment, run
from models import digits_resnet20

RELEASES = {
    "1.17.3": ["onnxruntime==1.17.3", "numpy<2"],
    "1.23.2": ["onnxruntime==1.23.2"],
    "newest": ["onnxruntime"],
}


@pytest.fixture(scope="module", params=RELEASES.values(), ids=RELEASES)
def python(request, tmp_path_factory):
    """An interpreter that has a release and whatever else this project depends on."""
    project = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    others = [package for package in project["dependencies"] if not package.startswith("onnxruntime>")]
    return make_environment(tmp_path_factory.mktemp("release"), [*request.param, *others])


@pytest.mark.long
@pytest.mark.parametrize("builder", ["bngrad", "ort"])
def test_a_network_passes(python, builder, tmp_path, request):
    """With the gradients by either builder, and each of the three implementations of our ops."""
    model = tmp_path / "digits.onnx"
    model.write_bytes(digits_resnet20.build().SerializeToString())
    command = [python, "-m", "bngrad", "validate", model, "--dim", "N=2", "--builder", builder]
    report = run(*command, cwd=request.config.rootpath)
    assert "passed: ort, seed 0, implementations native, python, function" in report
