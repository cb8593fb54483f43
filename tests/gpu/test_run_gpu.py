"""The programs for a machine with a GPU, tried on the CPU; the parts with PyTorch are tried where that is."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("run_gpu.py")
sys.path.insert(0, str(PROGRAM.parent))

import run_gpu


def run(folder, *options):
    command = [sys.executable, str(PROGRAM), "--quick", "--out", str(folder), "--seconds", "600", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, json.loads((folder / "results.json").read_text())


def test_the_checks_pass_on_the_cpu(tmp_path):
    done, results = run(tmp_path, "--device", "cpu", "--only", "environment", "ops", "training")
    assert done.returncode == 0, done.stdout + done.stderr
    tables = results["tables"]
    assert {row["provider"] for row in tables["placement"]} == {"CPUExecutionProvider"}
    assert len(tables["checks"]) > 25
    assert all(row["passed"] for row in tables["checks"])
    assert "## placement" in (tmp_path / "results.md").read_text()


def test_a_failure_does_not_end_the_run(tmp_path):
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is built for CUDA")
    done, results = run(tmp_path, "--device", "cuda", "--only", "environment", "ops", "training")
    assert done.returncode == 1
    assert len(results["failed"]) == len(results["tables"]["checks"]) > 25
    assert all("needs a build of ONNX Runtime for CUDA" in line for line in results["failed"])


def test_a_part_is_ended_at_its_limit(tmp_path):
    options = argparse.Namespace(device="cpu", quick=True, out=tmp_path, seconds=600)
    all_parts = run_gpu.Run(options)
    program = 'import time; print(\'RESULT {"table": "a", "b": 1}\', flush=True); time.sleep(600)'
    all_parts.run("-c", program, limit=5)
    all_parts.run("-c", "raise SystemExit('an error')", limit=60)
    all_parts.end = 0
    all_parts.run("check_ops.py", limit=60)
    assert all_parts.tables["a"] == [{"b": 1}]  # what it had reported before
    assert [line.rpartition(": ")[2] for line in all_parts.failed] == ["ended at its limit", "an error"]
    assert all_parts.tables["skipped"] == [{"part": "check_ops.py", "reason": "no time is left"}]


def test_the_measurements_run_on_the_cpu(tmp_path):
    done, results = run(tmp_path, "--device", "cpu", "--only", "kernels", "steps")
    assert done.returncode == 0, done.stdout + done.stderr
    if importlib.util.find_spec("torch") is None:
        assert [row["part"] for row in results["tables"]["skipped"]] == ["kernels", "steps"]
        return
    assert {row["op"] for row in results["tables"]["kernels"]} == {
        "training",
        "grad",
        "relu-grad",
        "max-pool-grad",
    }
    (row,) = results["tables"]["steps over PyTorch"]
    assert row["losses differ by"] < 1e-4
