"""Models in ORT's own format, by ONNX Runtime's converter."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bngrad.io import files
from bngrad.ort_training.errors import OrtTrainingError

if TYPE_CHECKING:
    import onnx_ir as ir


def write_ort_format(model: ir.Model, path: Path, library: str | None = None) -> None:
    """Writes ``<stem>.ort`` and ``<stem>.required_operators.config``.

    Args:
        model: A model that stock ONNX Runtime runs.
        path: The ``.onnx`` file to take the folder and the stem from.
        library: The library of the model's custom ops.

    Raises:
        OrtTrainingError: ONNX Runtime cannot run or write the model.
    """
    from onnxruntime.tools.convert_onnx_models_to_ort import (  # noqa: PLC0415 - slow to import
        OptimizationStyle,
        convert_onnx_models_to_ort,
    )

    # The converter configures it to report every file.
    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, path.name)
        files.save(model, source)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                convert_onnx_models_to_ort(
                    source,
                    optimization_styles=[OptimizationStyle.Fixed],
                    custom_op_library_path=None if library is None else Path(library),
                )
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            reason = " ".join(str(error).split())
            raise OrtTrainingError(f"{path.name} cannot be converted to ORT's format: {reason}") from error
        for file in (source.with_suffix(".ort"), source.with_suffix(".required_operators.config")):
            shutil.move(file, path.with_name(file.name))
