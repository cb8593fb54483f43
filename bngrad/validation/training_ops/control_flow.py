"""Loop and Scan, which onnx's evaluator computes wrongly.

Its Loop concatenates scan outputs of rank 2 and more instead of stacking them. Its Scan does not read values
around the body, and has neither directions nor axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TypeProto, helper
from onnx.reference.op_run import OpRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


class _Repeated(OpRun):
    """An op whose body runs several times."""

    body: Any
    _run_body: Any

    def need_context(self) -> bool:
        """Returns True: the body may read all values around it."""
        return True

    def _step(self, context: dict[str, Array] | None, inputs: Sequence[Any], attributes: Any) -> list[Array]:  # noqa: ANN401 - as in OpRun
        feeds = {**(context or {}), **dict(zip(self.body.input_names, inputs, strict=True))}
        return list(self._run_body(feeds, attributes=attributes))

    def _stacked(self, elements: Sequence[Sequence[Array]], axes: Sequence[int]) -> list[Array]:
        types = self.body.output_types[len(self.body.output_names) - len(elements) :]
        return [
            np.stack(parts, axis=axis) if parts else np.take(np.expand_dims(_empty(type_), axis), [], axis)
            for parts, axis, type_ in zip(elements, axes, types, strict=True)
        ]


class Loop(_Repeated):
    """Repeats the body while its condition is true, at most M times."""

    def _run(self, *inputs: Any, context: Any = None, attributes: Any = None, **_: Any) -> Any:  # noqa: ANN401 - as in OpRun
        limit, condition, *first = (*inputs, None)[: max(len(inputs), 2)]
        values, done = first, 0
        count = len(self.body.output_names) - 1 - len(values)
        elements: list[list[Array]] = [[] for _ in range(count)]
        goes_on = condition is None or bool(np.all(condition))
        while goes_on and (limit is None or done < int(np.squeeze(limit))):
            results = self._step(context, [np.int64(done), np.bool_(True), *values], attributes)
            goes_on = bool(np.all(results[0]))
            values = results[1 : 1 + len(values)]
            for parts, element in zip(elements, results[1 + len(values) :], strict=True):
                parts.append(element)
            done += 1
        return (*values, *self._stacked(elements, [0] * count))


class Scan(_Repeated):
    """Runs the body for each element of the scan inputs."""

    def _run(self, *inputs: Any, context: Any = None, attributes: Any = None, **options: Any) -> Any:  # noqa: ANN401
        count = options["num_scan_inputs"]
        values, sequences = list(inputs[:-count]), inputs[-count:]
        results_count = len(self.body.output_names) - len(values)
        axes, directions = (options.get(f"scan_input_{name}") or [0] * count for name in ("axes", "directions"))
        scanned = [
            np.moveaxis(sequence, axis, 0)[:: -1 if backward else 1]
            for sequence, axis, backward in zip(sequences, axes, directions, strict=True)
        ]
        elements: list[list[Array]] = [[] for _ in range(results_count)]
        for step in zip(*scanned, strict=True):
            results = self._step(context, [*values, *step], attributes)
            values = results[: len(values)]
            for parts, element in zip(elements, results[len(values) :], strict=True):
                parts.append(element)
        axes, directions = (
            options.get(f"scan_output_{name}") or [0] * results_count for name in ("axes", "directions")
        )
        ordered = [parts[:: -1 if backward else 1] for parts, backward in zip(elements, directions, strict=True)]
        return (*values, *self._stacked(ordered, axes))


WITH_BODIES: list[type[OpRun]] = [Loop, Scan]
"""The ops as classes, for ``ReferenceEvaluator(new_ops=...)``."""


def _empty(type_: TypeProto) -> Array:
    """Returns a value of a type, with unknown dimensions of size 0."""
    tensor = type_.tensor_type
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
