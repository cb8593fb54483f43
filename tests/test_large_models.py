"""Tests models whose weights exceed the limit of protobuf: they are rewritten exactly, and not in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import large_models

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")

ALLOWED = 1.3
"""The limit on the additional peak memory, relative to the size of the largest tensor and the graph."""

SOME = ("inspect", "differentiate", "rewrite, copied")
SIZES = [
    pytest.param(2048, 8, SOME, id="134-MB-some"),
    pytest.param(2048, 8, None, id="134-MB", marks=pytest.mark.long),
    pytest.param(large_models.EXTENT, large_models.LAYERS, None, id="2.6-GB", marks=pytest.mark.long),
]
"""The width and number of the layers, and the commands; None for all."""

COMMAND = """
import re, sys
from pathlib import Path
from bngrad.cli import run
code = run(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)
sys.stderr.write(peak)
sys.exit(code)
"""


def peak(folder, *arguments):
    """Returns the peak memory of a command in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return 1024 * int(done.stderr)


def ways(extent):
    """Yields the commands and their output files, in an order in which each input exists."""
    copied, shared = ("--external-data", "copied"), ("--external-data", "shared")
    default = () if extent == large_models.EXTENT else copied  # as large a model is copied unasked
    return {
        "inspect": (["inspect", "forward.onnx"], None),
        "differentiate": (
            ["differentiate", "forward.onnx", "-o", "train.onnx", "--target", "ort", *shared],
            "train.onnx",
        ),
        "rewrite, shared": (["rewrite", "train.onnx", "-o", "shared.onnx", *shared], "shared.onnx"),
        "rewrite, copied": (["rewrite", "train.onnx", "-o", "copied.onnx", *default], "copied.onnx"),
        "finalize": (
            ["finalize", "forward.onnx", "-o", "final.onnx", "--weights", "w.npz", "--keep", "loss", *default],
            "final.onnx",
        ),
    }


def weights(path):
    """Returns the matrices of a model as memory maps."""
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        if tensor.name.startswith("w"):
            where = {entry.key: entry.value for entry in tensor.external_data}
            place, shape = path.parent / where["location"], tuple(tensor.dims)
            yield np.memmap(place, np.float32, "r", int(where.get("offset", 0)), shape)


@pytest.mark.parametrize(("extent", "layers", "names"), SIZES)
def test_peak_memory(extent, layers, names, tmp_path):
    tiny = tmp_path / "tiny"
    for folder, *size in ((tiny, 8, layers), (tmp_path, extent, layers)):
        folder.mkdir(exist_ok=True)
        large_models.forward(folder, *size)
        np.savez(folder / "w.npz", bias0=np.full(size[0], 2, np.float32))
    largest = 4 * extent * extent
    figures, outputs = [], set()
    for name, (arguments, output) in ways(extent).items():
        if names is not None and name not in names:
            continue
        base, memory = peak(tiny, *arguments), peak(tmp_path, *arguments)
        graph = (tmp_path / (output or "forward.onnx")).stat().st_size
        figures.append((name, base >> 20, memory >> 20, (memory - base) / (largest + graph)))
        if output:
            outputs.add(output)
            if output in ("copied.onnx", "final.onnx"):
                outputs.add(f"{output}.data")
            found_weights = list(weights(tmp_path / output))
            assert len(found_weights) == layers
            for index, weight in enumerate(found_weights):
                assert [weight[0, 0], weight[-1, -1]] == large_models.marks(index)
                assert np.count_nonzero(weight) == 2
            del found_weights, weight
    for name, base, memory, part in figures:
        line = (
            f"{name:16} {memory:5} MiB, {base:5} MiB on a tiny model: {part:6.3f} of the largest tensor and graph"
        )
        print(line)  # noqa: T201 - for pytest -s
    assert [figure for figure in figures if figure[3] > ALLOWED] == []
    # Shared data stays in the input's file; copied data is in the output's own file.
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files - {"forward.onnx", "weights.bin", "w.npz"} == outputs
