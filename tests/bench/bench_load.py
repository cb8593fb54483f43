"""Times commands by the number of batch norms, and fits the exponent of the time.

    python tests/bench/bench_load.py [SIZE...]

A chain of batch norms with a ReLU after each, in CPU seconds, with reading and writing, without the imports.
The exponent is that of the power of the size that fits best; 1 is linear.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bench_builder import chain
from bngrad import cli

SIZES = (1250, 2500, 5000, 10_000, 20_000)
COMMANDS = {
    "inspect": "inspect {}/forward.onnx --json",
    "differentiate": "differentiate {0}/forward.onnx -o {0}/stock.onnx",
    "(for rewrite)": "differentiate {0}/forward.onnx -o {0}/train.onnx --target ort",
    "rewrite": "rewrite {0}/train.onnx -o {0}/out.onnx",
    "finalize": "finalize {0}/forward.onnx --weights {0}/w.npz -o {0}/final.onnx --keep loss",
}


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    run(10)  # imports
    print("batch norms" + "".join(f"{name:>16}" for name in COMMANDS), flush=True)
    rows = []
    for size in sizes:
        rows.append(list(run(size).values()))
        print(f"{size:11}" + "".join(f"{seconds:14.2f} s" for seconds in rows[-1]), flush=True)
    exponents = [exponent_of(sizes, column) for column in zip(*rows, strict=True)]
    print("exponent   " + "".join(f"{exponent:16.2f}" for exponent in exponents))


def run(size: int) -> dict[str, float]:
    """The seconds that each command takes with this many batch norms."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        ir.save(chain(size), Path(folder) / "forward.onnx")
        np.savez(Path(folder) / "w.npz", scale0=np.ones(2, np.float32))
        for name, command in COMMANDS.items():
            start = time.process_time()  # only of this process: other programs of the machine do not count
            with contextlib.redirect_stdout(io.StringIO()):
                code = cli.run(command.format(folder).split())
            seconds[name] = time.process_time() - start
            assert code == 0, name
    return seconds


def exponent_of(sizes, seconds) -> float:
    """The p of the power law seconds = c * size^p that fits best."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


if __name__ == "__main__":
    main()
