"""The checks of a case's gradients, and the models that they share.

A case is differentiated once and lowered to standard ONNX once. A check takes it with numbers for its dims, and
compares the lowered graph in float64 with

- `against_differences`: central differences of the forward model in float64;
- `on_stock`: the lowered graph on stock ONNX Runtime, in float; `loss_on_stock` for its forward nodes;
- `against_oracle`: the graph of ORT's own builder on ORT's kernels;
- `against_oracle_on_stock`: that graph, lowered, on stock ONNX Runtime;
- `on_training_build`: our graph for a training build, on its kernels;
- `in_float16`: the lowered graph of the case in float16, on stock ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import (
    Case,
    differentiated,
    feeds_of,
    forward,
    forward_evaluator,
    in_standard_onnx,
    lowered,
)
from bngrad.errors import BngradError
from bngrad.oracle import Oracle, prepare_forward
from bngrad.passes.pipeline import for_target
from bngrad.runtime.session import session
from bngrad.validation.float64 import Evaluator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import onnxruntime as ort

    from autodiff.gradient_cases import Dims

    Arrays = Mapping[str, np.ndarray]
    Check = Callable[["CheckedCase", Dims], None]

STEP = 1e-6
NUMERIC_LIMIT = 1e-6
"""The largest error of a directional derivative, relative to the longest that it could be."""
SHORT = 1e-3
"""A gradient that is shorter than all together by this factor is also checked along a direction of its own."""
HALF_LIMIT = 4e-3
"""The largest difference of float16 and float64, relative to the largest element."""


class CheckedCase:
    """A case, with what its checks share; each part is built when a check first uses it."""

    def __init__(self, case: Case, oracle: Oracle | None = None) -> None:
        self.case = case
        self.oracle = oracle
        self._samples: dict[str, tuple[Arrays, Arrays]] = {}

    def run(self, check: Check, dims: Dims) -> None:
        """Runs a check; a failure names it and the dims."""
        try:
            check(self, dims)
        except BaseException as error:
            error.add_note(f"check: {check.__name__}, dims: {dims}")
            raise

    def sample(self, dims: Dims) -> tuple[Arrays, Arrays]:
        """Arrays for the inputs, and the gradients there in float64."""
        key = repr(dims)
        if key not in self._samples:
            feeds = feeds_of(self.case, dims)
            self._samples[key] = feeds, self.exact(feeds)
        return self._samples[key]

    def exact(self, feeds: Arrays) -> Arrays:
        return self._lowered(feeds, self.case.gradients)

    def loss(self, feeds: Arrays) -> float:
        """The loss of the forward model in float64."""
        return forward_evaluator(self.case)(feeds, ["loss"])["loss"].item()

    @cached_property
    def _lowered(self) -> Evaluator:
        return Evaluator(lowered(self.case))

    @cached_property
    def stock(self) -> ort.InferenceSession:
        """A session of stock ONNX Runtime for the lowered graph."""
        return session(lowered(self.case), "function", threads=1)

    @cached_property
    def by_ort(self) -> tuple[ir.Model, Arrays]:
        """The graph of ORT's builder, and the values that it needs."""
        prepared = prepare_forward(forward(self.case), "loss", self.case.wrt)
        training = self.oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
        return training, prepared.values

    @cached_property
    def by_ort_on_stock(self) -> ort.InferenceSession:
        """A session of stock ONNX Runtime for the graph of ORT's builder."""
        return session(in_standard_onnx(self.by_ort[0]), "function", threads=1)


def check_gradients(case: Case, *sizes: Dims) -> None:
    """The checks that need no oracle, for these numbers of the dims or the case's own."""
    checked = CheckedCase(case)
    for dims in sizes or case.dims:
        checked.run(against_differences, dims)
        checked.run(on_stock, dims)


def against_differences(checked: CheckedCase, dims: Dims) -> None:
    """The gradients along one direction in all weights, and central differences of the forward model.

    A gradient that is lost among longer ones gets a direction of its own.
    """
    feeds, exact = checked.sample(dims)
    gradients = {wrt: exact[f"{wrt}_grad"] for wrt in checked.case.wrt}
    lengths = {wrt: np.linalg.norm(gradient) for wrt, gradient in gradients.items()}
    together = np.linalg.norm(list(lengths.values()))
    rng = np.random.default_rng(7)
    for weights in (gradients, *([wrt] for wrt, length in lengths.items() if 0 < length < SHORT * together)):
        values = {wrt: feeds[wrt].astype(np.float64) for wrt in weights}
        directions = {wrt: rng.standard_normal(value.shape) for wrt, value in values.items()}
        ahead, behind = (
            checked.loss({**feeds, **{wrt: values[wrt] + step * directions[wrt] for wrt in weights}})
            for step in (STEP, -STEP)
        )
        want = (ahead - behind) / (2 * STEP)
        got = sum(float(np.sum(gradients[wrt] * directions[wrt])) for wrt in weights)
        longest = np.linalg.norm([lengths[wrt] for wrt in weights]) * np.linalg.norm(
            [np.linalg.norm(direction) for direction in directions.values()]
        )
        assert {wrt: gradients[wrt].shape for wrt in weights} == {wrt: values[wrt].shape for wrt in weights}
        assert abs(got - want) <= NUMERIC_LIMIT * max(longest, 1e-2, abs(ahead) * 1e-2), (*weights, got, want)


def on_stock(checked: CheckedCase, dims: Dims) -> None:
    feeds, exact = checked.sample(dims)
    compare(run(checked.stock, feeds, exact), exact, checked.case.float_limit)


def loss_on_stock(checked: CheckedCase, dims: Dims) -> None:
    """The central differences are of the loss that stock ONNX Runtime computes."""
    feeds, _ = checked.sample(dims)
    values = forward_evaluator(checked.case)(feeds, ["loss", *checked.case.outputs])
    error = abs(values.pop("loss") - run(checked.stock, feeds, ["loss"])["loss"]).item()
    terms = sum(float(np.sum(np.abs(y * feeds[f"{name}_weight"]))) for name, y in values.items())
    assert error <= checked.case.float_limit * terms


def against_oracle(checked: CheckedCase, dims: Dims) -> None:
    """Checks that ORT's builder fails, for a case that states a reason against it."""
    if not checked.case.oracle:
        _against_kernels(checked, dims)
        return
    with pytest.raises((BngradError, AssertionError)):
        _against_both(checked, dims)


def _against_both(checked: CheckedCase, dims: Dims) -> None:
    _against_kernels(checked, dims)
    against_oracle_on_stock(checked, dims)


def _against_kernels(checked: CheckedCase, dims: Dims) -> None:
    feeds, exact = checked.sample(dims)
    training, values = checked.by_ort
    # ORT's kernel of ResizeGrad is only for CUDA.
    if not any(node.op_type == "ResizeGrad" for node in training.graph):
        results = checked.oracle.run(training, {**values, **feeds}, list(exact), threads=1)
        compare(results, exact, checked.case.float_limit)


def against_oracle_on_stock(checked: CheckedCase, dims: Dims) -> None:
    feeds, exact = checked.sample(dims)
    _, values = checked.by_ort
    compare(run(checked.by_ort_on_stock, {**values, **feeds}, exact), exact, checked.case.float_limit)


def on_training_build(checked: CheckedCase, dims: Dims) -> None:
    """The training ops that a training build has kernels for stay in the graph."""
    feeds, exact = checked.sample(dims)
    training, _ = for_target(differentiated(checked.case), target="training")
    compare(checked.oracle.run(ir.to_proto(training), feeds, list(exact)), exact, checked.case.float_limit)


def in_float16(checked: CheckedCase, dims: Dims) -> None:
    feeds, _ = checked.sample(dims)
    half = _cast(feeds, np.float32, np.float16)
    model = session(lowered(_of_type(checked.case, "float16")), "function", threads=1)
    results = run(model, half, checked.case.gradients)
    assert {array.dtype for array in results.values()} == {np.dtype(np.float16)}
    compare(results, checked.exact(_cast(half, np.float16, np.float32)), HALF_LIMIT)


def in_bfloat16(checked: CheckedCase, _dims: Dims) -> None:
    """The lowered graph passes onnx's checker; ONNX Runtime has few kernels to run it."""
    training = lowered(_of_type(checked.case, "bfloat16"))
    assert training.graph.output[-1].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def _of_type(case: Case, element: str) -> Case:
    return replace(case, inputs=case.inputs.replace("float[", f"{element}["), element=element)


def _cast(feeds: Arrays, which: type, to: type) -> Arrays:
    return {name: array.astype(to) if array.dtype == which else array for name, array in feeds.items()}


def run(runner: ort.InferenceSession, feeds: Arrays, names: Iterable[str]) -> Arrays:
    """The values of these names, by a model that may leave out some of the feeds."""
    names = list(names)
    inputs = {value.name for value in (*runner.get_inputs(), *runner.get_overridable_initializers())}
    results = runner.run(names, {name: array for name, array in feeds.items() if name in inputs})
    return dict(zip(names, results, strict=True))


def compare(got: Arrays, want: Arrays, limit: float) -> None:
    for name, exact in want.items():
        assert got[name].shape == exact.shape, name
        error = float(np.max(np.abs(got[name] - exact), initial=0.0))
        assert error <= limit * max(float(np.max(np.abs(exact), initial=0.0)), 1e-30), name
