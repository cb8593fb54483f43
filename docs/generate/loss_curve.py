"""The loss curve of the digits, by `bngrad train --plot`: `make pictures` writes docs/images/digits-loss.svg."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_digits
from themes import themed

ROOT = Path(__file__).parents[2]
STEP = [ROOT / "models/digits_resnet20.onnx", "-o", "step.onnx", "--momentum", "0.9"]
TRAIN = "step.onnx --data digits.npz --validation-split 0.2 --epochs 8 --learning-rate 0.1 --schedule cosine"


def main() -> None:
    """Trains, and writes the curve."""
    with TemporaryDirectory() as folder:
        digits = load_digits()
        images = digits.images[:, None].astype(np.float32) / 16
        np.savez(Path(folder, "digits.npz"), images=images, labels=digits.target)
        for arguments in (["step", *STEP], ["train", *TRAIN.split(), "--plot", "curve.svg", "-o", "digits.onnx"]):
            subprocess.run([sys.executable, "-m", "bngrad", *arguments], cwd=folder, check=True)
        svg = themed(Path(folder, "curve.svg").read_text(encoding="utf-8"))
    (ROOT / "docs/images/digits-loss.svg").write_text(svg, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
