"""Checks of the files that a command writes, before it does any work; and notes on them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.io.external_data import left_over
from bngrad.io.writing import check_output, destination

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import onnx_ir as ir


def check_outputs(outputs: Iterable[str], inputs: Mapping[Path, ir.Model | None]) -> list[Path]:
    """Checks the output paths of a command, and returns them.

    Args:
        outputs: The files to write.
        inputs: The files to read, which must not be overwritten, with their models; None for other files.

    Raises:
        InputError: An output is not as `check_output` expects, or two outputs are the same file.
    """
    paths: list[Path] = []
    for output in outputs:
        for source, model in inputs.items():
            path = check_output(output, source, model)
        if any(path.resolve() == other.resolve() for other in paths):
            raise InputError(f"output {path} is named twice; choose a file for each output")
        paths.append(path)
    return paths


def data_notes(path: Path) -> list[str]:
    """Returns a note for each data file beside a written model that a former model left."""
    return [
        f"{data} is not used by {path}; it is kept, because another model may share it; delete it if none does"
        for data in left_over(destination(path))
    ]
