"""Runs the loops with onnxruntime.training.

    python run_loops.py FOLDER              generates the artifacts, and runs all loops
    python run_loops.py FOLDER CHECKPOINT   resumes loops from the files of that name

The results are FOLDER/<loop>.npz and FOLDER/<loop>-resumed.npz.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import numpy as np

from loops import LOOPS, MODELS, RESUMED, generate


def main():
    sys.modules["onnxruntime.training.optim"] = types.ModuleType("optim")  # imports torch; nothing here needs it
    api, artifacts, onnxblock = (
        importlib.import_module(f"onnxruntime.training.{name}") for name in ("api", "artifacts", "onnxblock")
    )
    folder = Path(sys.argv[1])
    if len(sys.argv) == 2:
        generate(artifacts, onnxblock, folder)
        for name, loop in LOOPS.items():
            np.savez(folder / f"{name}.npz", **loop(api, folder / MODELS[name]))
        sys.argv.append("middle")
    for name, loop in RESUMED.items():
        resumed = loop(api, folder / name, folder / name / sys.argv[2])
        np.savez(folder / f"{name}-{sys.argv[2]}.npz", **resumed)


if __name__ == "__main__":
    main()
