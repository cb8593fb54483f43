"""What the gradients of a case are checked against.

Every case is differentiated once, lowered to standard ONNX, and then, for several sizes of its symbolic dims:

- the lowered graph in float64 against central differences of the forward model in float64;
- the lowered graph on stock ONNX Runtime, in float, against itself in float64;
- ORT's own builder, where it is right, against that too; and its graph, lowered, on stock ONNX Runtime.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from autodiff.gradient_cases import Case, differentiated, feeds_of, forward, in_standard_onnx, lowered
from bngrad.oracle import prepare_forward
from bngrad.passes.pipeline import for_target
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    Arrays = Mapping[str, np.ndarray]

STEP = 1e-6
NUMERIC_LIMIT = 1e-6
"""Of a directional derivative, relative to the longest that it could be."""
HALF_LIMIT = 4e-3
"""Of float16 against float64, relative to the largest element."""


def check_against_differences(case: Case, dims: Mapping[str, int]) -> None:
    """The lowered graph in float64 against central differences of the forward model."""
    feeds = feeds_of(case, dims)
    gradients = evaluate(lowered(case), feeds, case.gradients)
    rng = np.random.default_rng(7)
    for wrt, name in zip(case.wrt, case.gradients, strict=True):
        value = feeds[wrt].astype(np.float64)
        gradient = gradients[name]
        assert gradient.shape == value.shape
        for _ in range(3):
            direction = rng.standard_normal(value.shape)
            ahead, behind = (_loss(case, {**feeds, wrt: value + step * direction}) for step in (STEP, -STEP))
            want = (ahead - behind) / (2 * STEP)
            got = float(np.sum(gradient * direction))
            longest = np.linalg.norm(gradient) * np.linalg.norm(direction)
            assert abs(got - want) <= NUMERIC_LIMIT * max(longest, 1e-2, abs(ahead) * 1e-2), (wrt, got, want)


def check_on_stock(case: Case, dims: Mapping[str, int]) -> None:
    """The lowered graph on stock ONNX Runtime against itself in float64."""
    feeds = feeds_of(case, dims)
    _compare(_on_stock(lowered(case), feeds, case.gradients), _exact(case, feeds), case.float_limit)


def check_against_oracle(case: Case, dims: Mapping[str, int], oracle) -> None:
    """ORT's builder on ORT's kernels, and its graph lowered on stock ONNX Runtime, against ours in float64."""
    feeds = feeds_of(case, dims)
    exact = _exact(case, feeds)
    prepared = prepare_forward(forward(case), "loss", case.wrt)
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    feeds = {**prepared.values, **feeds}
    _compare(oracle.run(training, feeds, case.gradients), exact, case.float_limit)
    of_theirs = in_standard_onnx(training)
    _compare(_on_stock(of_theirs, feeds, case.gradients), exact, case.float_limit)


def check_on_training_build(case: Case, dims: Mapping[str, int], oracle) -> None:
    """Our graph with the training ops that a training build has kernels for, on its kernels."""
    feeds = feeds_of(case, dims)
    training, _ = for_target(differentiated(case), target="training")
    _compare(oracle.run(ir.to_proto(training), feeds, case.gradients), _exact(case, feeds), case.float_limit)


def check_in_float16(case: Case, dims: Mapping[str, int]) -> None:
    """The lowered graph of the model in float16 on stock ONNX Runtime against that in float64."""
    half = _cast(feeds_of(case, dims), np.float32, np.float16)
    results = _on_stock(lowered(_of_type(case, "float16")), half, case.gradients)
    assert {array.dtype for array in results.values()} == {np.dtype(np.float16)}
    _compare(results, _exact(case, _cast(half, np.float16, np.float32)), HALF_LIMIT)


def check_is_valid_in_bfloat16(case: Case) -> None:
    """The lowered graph of the model in bfloat16 passes onnx's checker; ONNX Runtime has few kernels to run it."""
    training = lowered(_of_type(case, "bfloat16"))
    assert training.graph.output[-1].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def _of_type(case: Case, element: str) -> Case:
    return replace(case, inputs=case.inputs.replace("float[", f"{element}["), element=element)


def _cast(feeds: Arrays, which: type, to: type) -> Arrays:
    return {name: array.astype(to) if array.dtype == which else array for name, array in feeds.items()}


def _loss(case: Case, feeds: Arrays) -> float:
    return float(np.squeeze(evaluate(forward(case), feeds, ["loss"])["loss"]))


def _exact(case: Case, feeds: Arrays) -> Arrays:
    return evaluate(lowered(case), feeds, case.gradients)


def _on_stock(model: onnx.ModelProto, feeds: Arrays, names: list[str]) -> Arrays:
    """The values of these names, by a model that may leave out some of the feeds."""
    runner = session(model, "function", threads=1)
    given = {value.name for value in (*runner.get_inputs(), *runner.get_overridable_initializers())}
    results = runner.run(names, {name: array for name, array in feeds.items() if name in given})
    return dict(zip(names, results, strict=True))


def _compare(got: Arrays, want: Arrays, limit: float) -> None:
    for name, exact in want.items():
        assert got[name].shape == exact.shape, name
        error = float(np.max(np.abs(got[name] - exact), initial=0.0))
        assert error <= limit * max(float(np.max(np.abs(exact), initial=0.0)), 1e-30), name
