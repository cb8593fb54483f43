"""The one-op models that ONNX Runtime's training build runs for `bench_kernels.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import ModelProto, TensorProto, helper

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_serve import Asked

_THEIRS = "com.microsoft"


def write_models(asked: Asked, folder: Path) -> None:
    """Writes the models of a case into an empty folder; none where the training build has no kernel to compare.

    Its gradient takes float with channels in dimension 1 and the batch's statistics. It has no fused ReLU: that is
    its ReluGrad and then a gradient, theirs or ours.
    """
    for old in folder.glob("*.onnx"):
        old.unlink()
    if asked.dtype != "float" or asked.op not in {"grad", "relu-grad"}:
        return
    has_theirs = asked.layout == "NCHW" and not asked.frozen
    if asked.op == "grad":
        models = {"bngrad_in_ort": _model(asked, "bngrad")}
        if has_theirs:
            models["ort_training"] = _model(asked, _THEIRS)
    else:
        models = {"bngrad_in_ort": _model(asked, "bngrad", fused=True)}
        models["ReluGrad+bngrad"] = _model(asked, "bngrad", relu=True)
        if has_theirs:
            models["ReluGrad+ort_training"] = _model(asked, _THEIRS, relu=True)
    for name, model in models.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())


def _model(asked: Asked, domain: str, *, fused: bool = False, relu: bool = False) -> ModelProto:
    shape, channels = list(asked.shape), [asked.channels]
    inputs = {"dY": shape, "X": shape, "scale": channels, "mean": channels, "inv_std": channels}
    outputs = {"dX": shape, "dscale": channels, "dbias": channels}
    names, nodes, initializers, attributes = list(inputs), [], [], {"epsilon": 1e-5}
    if fused or relu:
        inputs["Z"] = shape
    if fused:
        names.insert(1, "Z")
    if relu:
        nodes.append(helper.make_node("ReluGrad", ["dY", "Z"], ["dZ"], domain=_THEIRS))
        names[0] = "dZ"
    if domain == "bngrad":
        initializers.append(helper.make_tensor("axes", TensorProto.INT64, [len(asked.axes)], asked.axes))
        names.append("axes")
        attributes = {"training_mode": 0 if asked.frozen else 1}
    op = "BatchNormalizationReluGrad" if fused else "BatchNormalizationGrad"
    nodes.append(helper.make_node(op, names, list(outputs), domain=domain, **attributes))
    values = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, extents) for name, extents in group.items()]
        for group in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "bench", *values, initializers)
    opsets = [helper.make_opsetid(name, version) for name, version in (("", 17), (domain, 1), (_THEIRS, 1))]
    return helper.make_model(graph, opset_imports=opsets[: 2 + (domain != _THEIRS)], ir_version=8)
