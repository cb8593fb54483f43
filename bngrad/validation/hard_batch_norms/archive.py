"""The cases as files, in the layout of onnx's backend tests."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import onnx.numpy_helper
import onnx_ir as ir

from bngrad.io.writing import replacing
from bngrad.validation.hard_batch_norms.case import INPUTS, like
from bngrad.validation.hard_batch_norms.cases import cases
from bngrad.validation.hard_batch_norms.models import forward_model, training_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bngrad.validation.hard_batch_norms.case import Case

_TIME = (1980, 1, 1, 0, 0, 0)
"""The oldest time that an archive can have: the same cases are the same bytes."""


def write_cases(path: Path) -> None:
    """Writes a .zip archive with the folder of each case.

    Raises:
        InputError: The file cannot be written.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for case in cases():
            for name, content in _files(case):
                archive.writestr(
                    zipfile.ZipInfo(f"{case.name}/{name}", _TIME), content, zipfile.ZIP_DEFLATED, compresslevel=1
                )


def _files(case: Case) -> Iterator[tuple[str, bytes]]:
    facts = ("pitfall", "epsilon", "momentum", "training_mode", "parts", "joint")
    yield "case.json", json.dumps({name: getattr(case, name) for name in facts}, indent=2).encode()
    yield "forward.onnx", ir.to_proto(forward_model(case)).SerializeToString()
    yield "model.onnx", ir.to_proto(training_model(case)).SerializeToString()
    for index, name in enumerate(INPUTS):
        tensor = onnx.numpy_helper.from_array(case.arrays[name], name)
        yield f"test_data_set_0/input_{index}.pb", tensor.SerializeToString()
    expected = case.expected()
    for index, (name, (value, _)) in enumerate(expected.items()):
        tensor = onnx.numpy_helper.from_array(value.astype(case.arrays[like(name)].dtype), name)
        yield f"test_data_set_0/output_{index}.pb", tensor.SerializeToString()
    for file, arrays in (
        ("inputs.npz", case.arrays),
        ("float64.npz", {name: value for name, (value, _) in expected.items()}),
        ("bounds.npz", {name: bound.astype(np.float32) for name, (_, bound) in expected.items()}),
    ):
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        yield file, buffer.getvalue()
