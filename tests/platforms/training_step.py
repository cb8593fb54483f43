"""Builds a training step of the digits network, and trains: training_step.py MODEL DIGITS.npz FOLDER STEPS.

Run by the Python of each platform, which has bngrad and nothing of this repository. Prints JSON: the losses, and
the fields that identify the run. It uses one process, because an emulator cannot start others.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from pathlib import Path


def main() -> None:
    model, digits, folder, steps = sys.argv[1:]
    sys.argv[1:] = ["step", model, "-o", str(Path(folder) / "step.onnx"), "--momentum", "0.9"]
    begun = time.perf_counter()
    import numpy as np
    import onnxruntime

    import bngrad
    from bngrad.__main__ import main as command
    from bngrad.runtime import native_library

    place = Path(folder)
    place.mkdir(exist_ok=True)
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    data = np.load(digits)
    trainer = bngrad.Trainer(place / "step.onnx", learning_rate=0.1, threads=1)
    losses = []
    for index in range(int(steps)):
        batch = np.random.default_rng(index).choice(1437, 64)
        losses.append(float(trainer.step(images=data["images"][batch], labels=data["labels"][batch])))
    trainer.finalize(place / "digits.onnx")
    logits = trainer.evaluate(images=data["images"][1437:], labels=data["labels"][1437:])["logits"]
    document = {
        "losses": losses,
        "accuracy": float((logits.argmax(axis=1) == data["labels"][1437:]).mean()),
        "weights": hashlib.sha256((place / "digits.onnx").read_bytes()).hexdigest(),
        "isa": native_library.active_isa(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "seconds": round(time.perf_counter() - begun, 1),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
