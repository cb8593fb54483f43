"""The verdict on a case: right, refused, or a find.

A graph is right, or refused with a reason. Compared are

- the gradients on stock ONNX Runtime, with its default optimizations and without any, with the native library and
  with nothing registered, with central differences of the forward graph in float64;
- where ONNX Runtime has no kernels for the forward graph in its type: the training graph in float64.

A direction in which the loss has a kink is left out, and counted: there two steps or the two sides disagree. Where
float arithmetic is the reason for a difference, gradients of graphs whose every result is off by a rounding differ
as much.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx

import bngrad
from bngrad.errors import BngradError, UnsupportedNodeError
from gradient_fuzz.differences import ROUNDINGS, Differences
from gradient_fuzz.interpreter import wide
from gradient_fuzz.running import (
    ALL,
    DISABLED,
    SIXTEEN_BITS,
    WAYS,
    effective,
    in_float64,
    session_of,
    why_forward_fails,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnxruntime

    from gradient_fuzz.cases import Case

    Arrays = Mapping[str, np.ndarray]


LIMITS = {
    onnx.TensorProto.DOUBLE: 1e-4,  # some of ONNX Runtime's kernels compute in float
    onnx.TensorProto.FLOAT: 2e-3,
    onnx.TensorProto.FLOAT16: 5e-2,
    onnx.TensorProto.BFLOAT16: 2e-1,
}
"""The largest error of a directional derivative, relative to the longest that it could be."""
ROUNDED_LIMITS = {
    onnx.TensorProto.FLOAT: 2e-3,
    onnx.TensorProto.FLOAT16: 0.3,
    onnx.TensorProto.BFLOAT16: 0.6,
}
"""The limits where the same graph is right in float64."""
EXACT_LIMITS = {
    onnx.TensorProto.DOUBLE: 1e-5,
    onnx.TensorProto.FLOAT: 1e-5,
    onnx.TensorProto.FLOAT16: 5e-3,  # the constants of the graph are rounded to 16 bits
    onnx.TensorProto.BFLOAT16: 3e-2,
}
"""The limits for the training graph in float64."""
UNITS = {
    onnx.TensorProto.DOUBLE: 1e-7,
    onnx.TensorProto.FLOAT: 6e-8,
    onnx.TensorProto.FLOAT16: 5e-4,
    onnx.TensorProto.BFLOAT16: 4e-3,
}
"""The relative error of rounding one result."""
FLOORS = {
    onnx.TensorProto.DOUBLE: 1e-6,
    onnx.TensorProto.FLOAT: 1e-3,
    onnx.TensorProto.FLOAT16: 0.5,
    onnx.TensorProto.BFLOAT16: 1.0,
}
"""The least length to compare with: where the derivatives are 0 except for rounding, there is no other."""


_UNREACHED = re.compile("(?:does not depend on|no gradient with respect to input \\d+,) '([^']*)'")


_RANDOM = {"Bernoulli", "Dropout", "RandomNormalLike", "RandomUniformLike"}
"""Ops that ONNX Runtime draws differently from onnx."""


class Finding(NamedTuple):
    """An error of the program."""

    what: str
    detail: str = ""


@dataclass
class Verdict:
    """The outcome of a case."""

    end: str
    """``right``, ``refused: <class>``, ``kink``, ``no kernel: float64`` and the like."""
    finds: list[Finding] = field(default_factory=list)
    kinks: int = 0
    reason: str = ""
    """The message of a refusal."""


def judge(case: Case, ways: Sequence[int] | None = None) -> Verdict:
    """Differentiates a case, and compares.

    Args:
        case: The forward model.
        ways: The indices of `WAYS` to run; by default two, and sometimes all four.
    """
    before = _without_tensor_names(case.model)
    try:
        training = _differentiated(case)
        if _without_tensor_names(case.model) != before:
            return Verdict("find", [Finding("the forward model is changed")])
    except BngradError as error:
        unreached = _UNREACHED.search(str(error))
        if unreached and unreached[1] in case.wrt and len(case.wrt) > 1:
            # The others are still to be tried.
            return judge(replace(case, wrt=tuple(name for name in case.wrt if name != unreached[1])), ways)
        return Verdict(f"refused: {_class_of(str(error))}", reason=str(error))
    except Exception as error:  # noqa: BLE001 - the errors to find
        return Verdict("find", [Finding("raised", f"{type(error).__name__}: {error}")])
    names = [f"{name}_grad" for name in case.wrt]
    with np.errstate(all="ignore"):
        verdict, results = _run(case, training, names, _ways(case) if ways is None else ways)
        if verdict is not None:
            return verdict
        return _compared(case, training, names, results)


def _without_tensor_names(model: onnx.ModelProto) -> bytes:
    """A model's content except the names of tensors in attributes, which mean nothing."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.ClearField("name")
    return copy.SerializeToString(deterministic=True)


def _differentiated(case: Case) -> onnx.ModelProto:
    return bngrad.differentiate(
        case.model, loss="loss", wrt=list(case.wrt), frozen=list(case.frozen), training=list(case.training)
    )


def _ways(case: Case) -> list[int]:
    number = zlib.crc32(case.model.SerializeToString())
    return [0, 1, 2, 3] if number % 16 == 0 else [0, 1] if number % 2 else [2, 3]


def _run(
    case: Case, training: onnx.ModelProto, names: list[str], ways: Sequence[int]
) -> tuple[Verdict | None, dict[str, Arrays]]:
    """The gradients by way; or a verdict where the training graph cannot be run but the forward graph can."""
    results: dict[str, Arrays] = {}
    content = training.SerializeToString()
    for way in ways:
        implementation, level = WAYS[way]
        called = f"{implementation}, {'default' if level == ALL else 'no'} optimizations"
        try:
            session = session_of(content, level, implementation)
            results[called] = dict(
                zip(["loss", *names], session.run(["loss", *names], dict(case.feeds)), strict=True)
            )
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises many kinds
            why = why_forward_fails(case, level)
            if why is None:
                return Verdict("find", [Finding("does not run", f"{called}: {error}")]), {}
            # It also lacks a kernel for the forward graph: the formulas are checked nevertheless.
            try:
                results = {"float64": in_float64(case, training, ["loss", *names])}
            except UnsupportedNodeError as unsupported:
                return Verdict(f"not run: {_class_of(str(unsupported))}"), {}
            except Exception as broken:  # noqa: BLE001 - the reference evaluator's own limits
                return Verdict("not run: the reference evaluator fails", reason=str(broken)), {}
            return None, results
    return None, results


def _compared(  # noqa: C901 - one comparison after the other
    case: Case, training: onnx.ModelProto, names: list[str], results: dict[str, Arrays]
) -> Verdict:
    verdict = Verdict("right" if "float64" not in results else "right in float64")
    try:
        differences = Differences(case)
    except Exception as error:  # noqa: BLE001 - an op, a function or a subgraph that it does not support
        return _by_onnx_runtime(case, results, f"{type(error).__name__}: {error}")
    if not np.isfinite(differences.loss):
        return Verdict("the loss is no number")
    exact = "float64" in results
    limit = (EXACT_LIMITS if exact else LIMITS)[case.element]
    try:
        rounding = differences.rounding(
            1e-12 if exact and case.element not in SIXTEEN_BITS else UNITS[case.element]
        )
    except (TypeError, ValueError) as error:  # see there
        return _by_onnx_runtime(case, results, f"{type(error).__name__}: {error}")
    for called, arrays in results.items():
        off = abs(float(np.squeeze(wide(arrays["loss"]))) - differences.loss)
        if not off <= 20 * rounding + 1e-9 * differences.size:
            return _other_loss(case, called, arrays, differences)
    rng = np.random.default_rng(zlib.crc32(repr(names).encode()))
    for wrt, name in zip(case.wrt, names, strict=True):
        expected = case.values[wrt].shape
        direction = rng.standard_normal(expected)
        slope = None
        for called, arrays in results.items():
            gradient = wide(arrays[name])
            if gradient.shape != expected:
                verdict.finds.append(
                    Finding("shape", f"{name} of {called}: {gradient.shape}, expected {expected}")
                )
                continue
            try:
                slope = slope or differences.along(wrt, direction)
            except (TypeError, ValueError):  # a shape that is computed from it jumps
                slope = (0.0, np.inf, False)
            if not slope[2]:
                verdict.kinks += 1
                break
            find = _wrong(case, training, name, gradient, direction, slope, called, limit, differences)
            if find is not None:
                verdict.finds.append(find)
                break
    if verdict.finds:
        verdict.end = "find"
    return verdict


def _off(
    gradient: np.ndarray, direction: np.ndarray, slope: tuple[float, float, bool], floor: float = 1e-6
) -> float:
    """Returns the error of a gradient against a difference, relative to its longest possible derivative."""
    got = float(np.sum(gradient * direction))
    longest = max(float(np.linalg.norm(gradient) * np.linalg.norm(direction)), abs(slope[0]), floor)
    return max(abs(got - slope[0]) - 3 * slope[1], 0.0) / longest if np.isfinite(got) else np.inf


def _wrong(  # noqa: PLR0911 - one question after the other
    case: Case,
    training: onnx.ModelProto,
    name: str,
    gradient: np.ndarray,
    direction: np.ndarray,
    slope: tuple[float, float, bool],
    called: str,
    limit: float,
    differences: Differences,
) -> Finding | None:
    floor = FLOORS[case.element]
    off = _off(gradient, direction, slope, floor)
    if off <= limit:
        return None
    got = float(np.sum(gradient * direction))
    detail = f"{name} of {called}: {got:.7g} along a direction, expected {slope[0]:.7g}"
    if not np.isfinite(gradient).all():
        return Finding("no number", detail)
    if called == "float64":
        return Finding("wrong", detail)
    try:
        exact = wide(in_float64(case, training, [name])[name])
    except Exception:  # noqa: BLE001 - without it, the other results decide
        exact = None
    if exact is not None:
        least = 1e-6 if case.element not in SIXTEEN_BITS else floor
        if not _off(exact, direction, slope, least) <= EXACT_LIMITS[case.element]:
            return Finding("wrong", detail)
        # The formula is right; some kernels for double compute in float, and 16 bits leave little of a difference.
        element = onnx.TensorProto.FLOAT if case.element == onnx.TensorProto.DOUBLE else case.element
        # A gradient of 0 is a difference of terms that grow with the values of the graph.
        floor = FLOORS[element] * max(1.0, differences.size)
        if _off(gradient, direction, slope, floor) <= ROUNDED_LIMITS[element]:
            return None
    # Rounding is the reason if rounding elsewhere has as large an effect.
    unit = UNITS[case.element]
    spread = [
        abs(differences.along(name.removesuffix("_grad"), direction, unit, seed)[0] - slope[0])
        for seed in range(ROUNDINGS)
    ]
    if abs(got - slope[0]) <= 20 * max(spread):
        return None
    return Finding("wrong on ONNX Runtime" if exact is not None else "wrong", detail)


def _other_loss(case: Case, called: str, arrays: Arrays, differences: Differences) -> Verdict:
    """Returns a find where the training graph and the forward graph have different losses."""
    got = float(np.squeeze(wide(arrays["loss"])))
    if called == "float64":
        return Verdict("the oracle differs", reason=f"{got} in float64, {differences.loss} here")
    try:
        session = session_of(effective(case).SerializeToString(), DISABLED, "native")
        losses = [float(np.squeeze(wide(session.run(["loss"], dict(case.feeds))[0]))) for _ in range(2)]
    except Exception as error:  # noqa: BLE001 - see above
        return Verdict("the oracle differs", reason=str(error))
    if losses[0] != losses[1] or any(node.op_type in _RANDOM for node in case.model.graph.node):
        return Verdict("random")
    forward = losses[0]
    if abs(forward - got) <= 100 * LIMITS[case.element] * max(abs(forward), 1e-2):
        return _against_its_own(case, session, arrays, f"{forward} on ONNX Runtime, {differences.loss} here")
    detail = (
        f"{called}: {got:.7g}; the forward graph has {forward:.7g} on ONNX Runtime, {differences.loss:.7g} here"
    )
    return Verdict("find", [Finding("another loss", detail)])


def _by_onnx_runtime(case: Case, results: dict[str, Arrays], reason: str) -> Verdict:
    """Compares with differences of ONNX Runtime where the interpreter lacks an op."""
    if "float64" in results:
        return Verdict("the oracle lacks an op", reason=reason)
    session = session_of(effective(case).SerializeToString(), DISABLED, "native")
    losses = [float(np.squeeze(wide(session.run(["loss"], dict(case.feeds))[0]))) for _ in range(2)]
    if losses[0] != losses[1]:
        return Verdict("random")
    return _against_its_own(case, session, next(iter(results.values())), reason)


def _against_its_own(case: Case, session: onnxruntime.InferenceSession, arrays: Arrays, reason: str) -> Verdict:
    """Compares with differences of ONNX Runtime where onnx has another result for the forward graph, or none."""
    wide_enough = case.element == onnx.TensorProto.DOUBLE
    if not wide_enough and case.element != onnx.TensorProto.FLOAT:
        return Verdict("the oracle differs", reason=reason)
    steps, limit = ((3e-5, 1e-5), 1e-4) if wide_enough else ((2e-2, 1e-2), 5e-2)
    rng = np.random.default_rng(zlib.crc32(repr(case.wrt).encode()))
    feeds = {**case.values}
    verdict = Verdict("right by ONNX Runtime's differences", reason=reason)

    def loss(name: str, move: np.ndarray) -> float:
        moved = np.asarray(wide(feeds[name]) + move).astype(feeds[name].dtype)
        return float(np.squeeze(session.run(["loss"], {**feeds, name: moved})[0]))

    for name in case.wrt:
        direction = rng.standard_normal(feeds[name].shape)
        slopes = [(loss(name, step * direction) - loss(name, -step * direction)) / (2 * step) for step in steps]
        gradient = wide(arrays[f"{name}_grad"])
        longest = max(float(np.linalg.norm(gradient) * np.linalg.norm(direction)), abs(slopes[1]), 1e-2)
        if abs(slopes[0] - slopes[1]) > limit * longest:
            verdict.kinks += 1
        elif not abs(float(np.sum(gradient * direction)) - slopes[1]) <= 2 * limit * longest:
            got = float(np.sum(gradient * direction))
            verdict.finds.append(
                Finding("wrong by ONNX Runtime's differences", f"{name}: {got}, expected {slopes[1]}")
            )
            verdict.end = "find"
    return verdict


_NAMES = re.compile(r"'[^']*'|\[[^\]]*\]|\([^)]*\)| node\b")


def _class_of(message: str) -> str:
    """A refusal without the names and shapes in it: the op and the reason."""
    return " ".join(_NAMES.sub("", message.split(";", 1)[0]).split())[:90]
