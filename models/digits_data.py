"""scikit-learn's 8x8 handwritten digits as data for the digits network.

``python models/digits_data.py -o digits.npz`` writes them. The arrays have the names of the network's inputs:
``images`` float32 [1797, 1, 8, 8] with pixels from 0 to 1, and ``labels`` int64 [1797].
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description="Write scikit-learn's handwritten digits.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .npz file to write")
    output = parser.parse_args().output
    data = load_digits()
    images = data.images[:, None].astype(np.float32) / 16
    np.savez(output, images=images, labels=data.target.astype(np.int64))
    print(f"{output}: {len(images):,} images of {images.shape[2]} x {images.shape[3]} pixels, and their labels")


if __name__ == "__main__":
    main()
