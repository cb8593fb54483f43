"""The models of a case: its forward model, and the training graph that a runtime is asked to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.opset.functions import DOMAIN
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.training.differentiate import differentiate
from bngrad.validation.bounds import channel_axes
from bngrad.validation.hard_batch_norms.case import INPUTS, like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.hard_batch_norms.case import Case

_OPSET, _IR_VERSION = 17, 8
_GRADIENTS = {"X_grad": "dX", "scale_grad": "dscale", "bias_grad": "dbias"}
_LOSS = "loss"


def forward_model(case: Case) -> ir.Model:
    """Returns the forward model: Y, the new running statistics, and the loss sum(Y * dY)."""
    build = _Builder(case)
    modes: dict[str, Any] = {name: getattr(case, name) for name in ("epsilon", "momentum")}
    modes["training_mode"] = int(case.training_mode)
    calls = [] if case.joint else build.split("X")
    results = []
    running = [build["running_mean"], build["running_var"]]
    for X in calls or [build["X"]]:
        Y, *new = build(
            "BatchNormalization",
            X,
            build["scale"],
            build["bias"],
            *running,
            outputs=3 if case.training_mode else 1,
            **modes,
        )
        results.append(Y)
        running = new or running
    build["Y"] = build("Concat", *results, axis=0)[0] if len(results) > 1 else results[0]
    if case.training_mode:
        build["new_running_mean"], build["new_running_var"] = running
    factors = [build("Cast", build[name], to=ir.DataType.DOUBLE)[0] for name in ("Y", "dY")]
    (build[_LOSS],) = build("ReduceSum", *build("Mul", *factors), keepdims=0)
    return build.model([_LOSS, *case.outputs[:-3]])


def training_model(case: Case) -> ir.Model:
    """Returns the model of all outputs of a case, with the functions of its ops."""
    if case.joint:
        return _ranks(case)
    model = differentiate(forward_model(case), loss=_LOSS, wrt=["X", "scale", "bias"]).model
    for value in model.graph.outputs:
        value.name = _GRADIENTS.get(str(value.name), value.name)
    return model


def _ranks(case: Case) -> ir.Model:
    """Returns the synchronized batch norms of all ranks in one graph, joined by Concat instead of AllGather."""
    build = _Builder(case)
    axes = build.constant([*channel_axes(case.arrays["X"].ndim)])
    X, dY, scale = build.split("X"), build.split("dY"), build["scale"]

    def gathered(parts: Sequence[ir.Value]) -> ir.Value:
        rows = [build("Unsqueeze", part, build.constant([0]))[0] for part in parts]
        return build("Concat", *rows, axis=0)[0]

    moments = gathered([build("BatchNormalizationMoments", x, axes, domain=DOMAIN)[0] for x in X])
    *running, mean, inv_std, count = build(
        "BatchNormalizationMergeMoments",
        *(moments, build["running_mean"], build["running_var"]),
        domain=DOMAIN,
        outputs=5,
        epsilon=case.epsilon,
        momentum=case.momentum,
        unbiased_running_var=0,
    )
    build["new_running_mean"], build["new_running_var"] = running
    statistics = (mean, inv_std)
    Y = [build("BatchNormalizationApply", x, scale, build["bias"], *statistics, axes, domain=DOMAIN)[0] for x in X]
    (build["Y"],) = build("Concat", *Y, axis=0)
    sums, *gradients = zip(
        *(
            build("BatchNormalizationGradSums", dy, x, scale, *statistics, axes, domain=DOMAIN, outputs=3)
            for dy, x in zip(dY, X, strict=True)
        ),
        strict=True,
    )
    total = gathered(sums)
    dX = [
        build("BatchNormalizationGradApply", dy, x, scale, *statistics, total, count, axes, domain=DOMAIN)[0]
        for dy, x in zip(dY, X, strict=True)
    ]
    (build["dX"],) = build("Concat", *dX, axis=0)
    (build["dscale"],), (build["dbias"],) = (build("Sum", *parts) for parts in gradients)
    model = build.model(case.outputs)
    EmbedFunctionsPass()(model)
    return model


class _Builder:
    """The nodes of a graph with the inputs of a case, and its named values."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._nodes: list[ir.Node] = []
        self._named = {
            name: ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype))
            )
            for name, array in case.arrays.items()
        }

    def __getitem__(self, name: str) -> ir.Value:
        return self._named[name]

    def __setitem__(self, name: str, value: ir.Value) -> None:
        value.name = name
        if name == _LOSS:
            value.type, value.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([])
        else:
            value.type, value.shape = self[like(name)].type, self[like(name)].shape
        self._named[name] = value

    def __call__(
        self,
        op_type: str,
        *inputs: ir.Value,
        domain: str = "",
        outputs: int = 1,
        **attributes: Any,  # noqa: ANN401
    ) -> list[ir.Value]:
        node = ir.node(
            op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=f"{op_type}_{len(self._nodes)}"
        )
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}/{index}"
        self._nodes.append(node)
        return list(node.outputs)

    def constant(self, numbers: list[int]) -> ir.Value:
        return self("Constant", value=ir.tensor(np.array(numbers, np.int64)))[0]

    def split(self, name: str) -> list[ir.Value]:
        parts = self._case.parts
        return self("Split", self[name], self.constant([*parts]), axis=0, outputs=len(parts)) if parts else []

    def model(self, outputs: Sequence[str]) -> ir.Model:
        graph = ir.Graph(
            [self[name] for name in INPUTS],
            [self[name] for name in outputs],
            nodes=self._nodes,
            opset_imports={"": _OPSET, DOMAIN: 1},
            name=self._case.name,
        )
        return ir.Model(graph, ir_version=_IR_VERSION)
