"""Judges a case: the batch norms that the pass takes, the ops that remain, and the numbers of the model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from bngrad.passes.prepare.infer_types import InferTypesPass
from gradient_fuzz.interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spellings.cases import Case

REDUCTIONS = {"ReduceSum", "ReduceMean", "ReduceSumSquare", "Einsum", "MatMul", "GlobalAveragePool"}
EVERY = 40
"""Every 40th case is also run by onnx's reference and by ONNX Runtime."""
SAME = {TensorProto.DOUBLE: 1e-6, TensorProto.FLOAT: 1e-4}
"""Relative distances in float64: constants are rounded to the model's type, epsilon to float."""
SAME_IN_16_BITS = {TensorProto.FLOAT16: 5e-4, TensorProto.BFLOAT16: 4e-3}


@dataclass
class Verdict:
    """The outcome of a case.

    Attributes:
        end: The outcome in words, which are counted.
        finds: Descriptions of the faults.
        result: The model after the pass.
    """

    end: str
    finds: list[str] = field(default_factory=list)
    result: onnx.ModelProto | None = None


def judge(case: Case, index: int, *, generator_only: bool = False) -> Verdict:
    """Judges a case; with ``generator_only``, whether its model is valid and computes what it should."""
    finds = model_finds(case, everywhere=index % EVERY == 0)
    if finds or generator_only:
        return Verdict("bug of the generator" if finds else "valid", finds)
    return recognition(case)


def model_finds(case: Case, *, everywhere: bool) -> list[str]:
    """The faults of a case before the pass, which are bugs of the generator."""
    finds = _differences(Interpreter(case.model).run(case.feeds), case, "the interpreter")
    if everywhere:
        onnx.checker.check_model(case.model, full_check=True)
        finds += _differences(_reference(case), case, "onnx's reference")
        finds += _differences(_onnx_runtime(case), case, "ONNX Runtime")
    return finds


def recognition(case: Case) -> Verdict:
    """Runs the pass on a case, and judges the result."""
    from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass

    model = InferTypesPass()(ir.from_proto(case.model)).model
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ImportDecomposedPass()(model)
    candidates = result.model.meta["bngrad.decomposed"]
    proto = ir.to_proto(result.model)
    taken = [kind for node in proto.graph.node if (kind := _kind(node))]
    finds = [f"{kind} is not taken; {_reasons(candidates)}" for kind in case.taken if kind not in taken]
    if case.taken and case.alone and not finds:
        left = [node.op_type for node in proto.graph.node if node.op_type in REDUCTIONS]
        finds += [f"reductions are left: {', '.join(left)}"] if left else []
    wrong = _differences(Interpreter(proto).run(case.feeds), case, "the interpreter, after the pass")
    of_near_miss = [kind for kind in case.not_taken if kind in taken]
    if of_near_miss:
        finds += [f"{kind} is taken, {'wrong' if wrong else 'but right'}" for kind in of_near_miss]
    if not taken and proto.SerializeToString(deterministic=True) != before:
        finds.append("nothing is taken, and the model is changed")
    finds += wrong
    if finds:
        return Verdict("wrong", finds, proto)
    return Verdict(f"{', '.join(sorted(set(taken))) or 'nothing'} taken", [], proto)


def _kind(node: onnx.NodeProto) -> str | None:
    """The kind of batch norm of a node that the pass creates; None for other nodes."""
    if node.op_type == "BatchNormalizationGrad":
        training = next(attribute.i for attribute in node.attribute if attribute.name == "training_mode")
        return "backward" if training else "frozen backward"
    return {"BatchNormalizationTraining": "forward", "BatchNormalization": "frozen forward"}.get(node.op_type)


def _reasons(candidates: list) -> str:
    refused = [
        f"{candidate.kind} {candidate.name}: {candidate.reason}" for candidate in candidates if not candidate.taken
    ]
    return "; ".join(refused) or "no candidate"


def _differences(got: Mapping[str, np.ndarray], case: Case, by: str, tolerance: float | None = None) -> list[str]:
    if tolerance is None:
        tolerance = (SAME | SAME_IN_16_BITS)[_type(case)]
    finds = []
    for name, expected in case.outputs.items():
        value = np.asarray(got[name], np.float64)
        if value.shape != expected.shape:
            finds.append(f"{name} has shape {value.shape}; expected {expected.shape}, by {by}")
            continue
        distance = np.abs(value - expected).max()
        size = max(1.0, np.abs(expected).max())
        if not distance <= tolerance * size:
            finds.append(f"{name} is {distance:.3g} away, of {size:.3g}, by {by}")
    return finds


def _type(case: Case) -> int:
    return case.model.graph.input[0].type.tensor_type.elem_type


def _typed(case: Case) -> dict[str, np.ndarray]:
    types = {info.name: info.type.tensor_type.elem_type for info in case.model.graph.input}
    return {
        name: value.astype(onnx.helper.tensor_dtype_to_np_dtype(types[name])) for name, value in case.feeds.items()
    }


def _reference(case: Case) -> dict[str, np.ndarray]:
    if _type(case) not in SAME:
        return case.outputs
    values = ReferenceEvaluator(case.model).run(None, _typed(case))
    return dict(zip([output.name for output in case.model.graph.output], values, strict=True))


def _onnx_runtime(case: Case) -> dict[str, np.ndarray]:
    """The outputs of float models; those of other types are not run, because ONNX Runtime lacks ops for them."""
    if _type(case) != TensorProto.FLOAT:
        return case.outputs
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(
        zip([output.name for output in session.get_outputs()], session.run(None, _typed(case)), strict=True)
    )
