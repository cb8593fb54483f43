"""The way back to inference: an evaluation model up to some outputs, with the parameters in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from bngrad.io.files import save
from bngrad.io.writing import check_output
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingTypeError, as_ort_training_error
from bngrad.passes.check import check
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.workarounds.present_keys import remove_unused_nodes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from bngrad.ort_training.checkpoint_file import Array


def export_for_inference(
    source: ir.Model, values: Mapping[str, Array], outputs: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Writes an inference model atomically.

    Args:
        source: The evaluation model, which is not changed.
        values: The values of its parameters, and of its running statistics.
        outputs: The outputs of the inference model: names of values in it.
        path: The file.

    Raises:
        OrtTrainingError: There is no such value, none is named, or the file cannot be written.
        OrtTrainingTypeError: The names are not a list.
    """
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        what = "the string " if isinstance(outputs, str) else ""
        raise OrtTrainingTypeError(f"graph_output_names is {what}{outputs!r}; expected a list of names")
    if not outputs:
        raise OrtTrainingError("graph_output_names is empty; expected names of values in the evaluation model")
    with as_ort_training_error():
        target = check_output(path)
        model = source.clone()
        graph = model.graph
        computed = {value.name: value for node in graph for value in node.outputs}
        if missing := [name for name in outputs if name not in computed]:
            raise OrtTrainingError(
                f"the evaluation model computes no {missing[0]!r}; expected one of {', '.join(map(str, computed))}"
            )
        graph.outputs[:] = [computed[name] for name in outputs]
        for value in list(graph.inputs):
            if (array := values.get(str(value.name))) is not None:
                graph.inputs.remove(value)
                value.const_value = ir.tensor(array, name=value.name)
                graph.initializers[str(value.name)] = value
        remove_unused_nodes(model)
        ir.passes.Sequential(RemoveUnusedOpsetsPass(), InferTypesPass())(model)
        for value in [value for value in graph.inputs if not value.uses()]:
            graph.inputs.remove(value)
        check(model, source)
        save(model, target)
