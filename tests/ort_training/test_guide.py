"""The first example of docs/guides/onnxruntime-training.md runs as it is shown."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "onnxruntime-training.md"
FORWARD = """<ir_version: 8, opset_import: ["" : 17]>
forward (float[N, 4] features) => (float[N, 3] logits) <float[4, 3] "fc.weight", float[3] "fc.bias"> {
    logits = Gemm (features, "fc.weight", "fc.bias")
}"""


def test_the_example_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(FORWARD)
    del model.graph.initializer[:]
    values = {"fc.weight": np.zeros((4, 3), "f"), "fc.bias": np.zeros(3, "f")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    onnx.save(model, "classifier.onnx")
    features, labels = np.eye(4, dtype="f"), np.array([0, 1, 2, 0])
    example = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert example
    Path("example.py").write_text(example.group(1), encoding="utf-8")
    result = runpy.run_path("example.py", {"batches": [(features, labels)] * 50})
    assert result["loss"] < np.log(3)
    session = onnxruntime.InferenceSession("trained.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"features": features})
    assert logits.argmax(1).tolist() == labels.tolist()
