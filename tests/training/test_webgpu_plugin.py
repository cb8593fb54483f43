"""The trainer on WebGPU, by ONNX Runtime's plugin and an adapter, mostly one in software, beside the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad.runtime import webgpu

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = ROOT / "models" / "digits_resnet20.onnx"
STEPS, BATCH = 3, 8

CHROMIUM = Path("/usr/lib/chromium")
"""Where Debian's package has a loader of Vulkan and an adapter in software, SwiftShader."""


def with_first(variable, *paths):
    """A path variable of the environment, with paths before those that it has."""
    return {variable: os.pathsep.join(filter(None, (*map(str, paths), os.environ.get(variable))))}


def environment_of(folder):
    """The environment with an adapter in software, where Chromium has one; else as it is."""
    variables = os.environ | with_first("PYTHONPATH", ROOT, HERE.parent)
    variables["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
    if (CHROMIUM / "vk_swiftshader_icd.json").exists():
        # The loader alone: the folder has other libraries of names that the system has, too.
        (folder / webgpu.VULKAN).symlink_to(CHROMIUM / webgpu.VULKAN)
        variables |= with_first("LD_LIBRARY_PATH", folder)
        variables["VK_ICD_FILENAMES"] = str(CHROMIUM / "vk_swiftshader_icd.json")
    return variables


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    if importlib.util.find_spec(webgpu.PLUGIN.replace("-", "_")) is None:
        pytest.skip(f"{webgpu.PLUGIN} is not installed")
    return environment_of(tmp_path_factory.mktemp("vulkan"))


@pytest.fixture(scope="module")
def seen(variables, tmp_path_factory):
    """The comparisons of train_on_webgpu.py."""
    command = [sys.executable, HERE / "train_on_webgpu.py", MODEL, STEPS, BATCH]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=variables,
        cwd=tmp_path_factory.mktemp("webgpu"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    if "absent" in result:
        pytest.skip(result["absent"])
    return result


@pytest.mark.parametrize("case", ["named", "flat", "adam"])
def test_a_training_is_that_on_the_cpu(case, seen):
    result = seen[case]
    assert result["losses"] == pytest.approx(result["expected"], rel=1e-5)
    assert result["state"] < 1e-3
    assert result["evaluation"] < 1e-3
    assert result["step"] == STEPS
    assert result["places"] == ["webgpu"]


def test_only_integers_and_the_losses_logarithm_are_on_the_cpu(seen):
    assert set(seen["on_cpu"]) == {"Add", "Cast", "LogSoftmax", "Shape", "Unsqueeze"}


@pytest.mark.parametrize("name", ["pooled", "grouped"])
def test_gradients_that_need_options_of_the_plugin(name, seen):
    assert seen["graphs"][name] < 1e-5


def test_a_saved_state_goes_on(seen):
    loss, again = seen["resumed"]
    assert again == loss


REFUSALS = {
    "nan": "InputError: 'images' has an infinity or a NaN; expected finite numbers on webgpu, where a ReLU of NaN "
    "is 0",
    "functions": "ModelError: the model has no function of BatchNormalizationTraining, and the library no kernel "
    "for device 'webgpu'; build it with functions",
    "sync": "LibraryError: the model was built with --sync: its AllGather and AllReduce, which exchange data with "
    "other processes, do not run on 'webgpu'; use another device, or build the model without --sync",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused(case, seen):
    assert seen["refusals"][case] == REFUSALS[case]
    assert seen["refusals"]["evaluated nan"] == REFUSALS["nan"]


def test_an_array_that_is_too_large(seen):
    """1.6 GB; an adapter with enough memory takes it."""
    assert seen["refusals"]["size"] in (
        None,
        "DeviceError: device 'webgpu' is out of memory; take smaller batches, or free its memory",
    ) or seen["refusals"]["size"].startswith("DeviceError: device 'webgpu' takes arrays of at most ")


def test_validation(seen):
    assert seen["validated"] == [True, ["function"]]
    assert seen["gpu"].endswith(" (webgpu)")


def test_without_an_adapter(variables, tmp_path):
    """One line by ONNX Runtime's own reason, after what the loader of Vulkan prints."""
    icd = tmp_path / "none.json"
    program = "import sys; from bngrad.cli import run; sys.exit(run(sys.argv[1:]))"
    command = ["inspect", str(MODEL), "--device", "webgpu"]
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        capture_output=True,
        text=True,
        check=False,
        env=variables | {"VK_ICD_FILENAMES": str(icd), "VK_DRIVER_FILES": str(icd)},
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("bngrad: error: device 'webgpu' ")
