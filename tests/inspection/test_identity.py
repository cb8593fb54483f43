"""The identity of a model."""

from __future__ import annotations

import hashlib

import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import InputError
from bngrad.inspection.identity import identity
from bngrad.io.files import load

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "made", producer_version: "1.2">
g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { z = Add(x, w)  y = Neg(z) }"""


@pytest.fixture
def model():
    parsed = onnx.parser.parse_model(TEXT)
    weight = parsed.graph.initializer[0]  # as bytes, which external data can be
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), weight.name))
    return parsed


def test_a_file_with_external_data(model, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    actual = identity(load(path), path)
    assert [file.path for file in actual.files] == [str(path), str(tmp_path / "m.data")]
    for file in actual.files:
        content = (tmp_path / file.path).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (actual.opset, actual.ir_version, actual.producer, actual.nodes) == (17, 8, "made 1.2", 2)


def test_in_memory(model):
    assert identity(ir.from_proto(model)).files == []


def test_a_file_that_is_gone(model, tmp_path):
    with pytest.raises(InputError, match=r"m\.onnx cannot be read: No such file or directory"):
        identity(ir.from_proto(model), tmp_path / "m.onnx")
