"""Random one-node models on stock ONNX Runtime, sound or with one fault: python ort_fuzz.py SEED COUNT [FIRST].

A sound model computes what the textbook of test_ort_op.py does; one with a fault is an error of ONNX Runtime's, of
one line that is short enough to read. A crash ends the process, after the case's number went to stderr. A case is
a function of its seed and index alone: `ort_fuzz.py 1 1 4711` repeats one that was reported.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter

import numpy as np

import test_ort_op as ops

LONGEST_MESSAGE = 2000
BOUNDS = {ops.FLOAT: 1e-4, ops.DOUBLE: 1e-11, ops.FLOAT16: 4e-3, ops.BFLOAT16: 3e-2}
"""Loose: a rounding is kernel_fuzz.cc's business, a wrong channel or output is this one's."""


class WrongError(AssertionError):
    """A refusal that is missing or should not be there, or wrong numbers."""


def one_of(rng, choices):
    return choices[int(rng.integers(len(choices)))]


def draw(rng):
    """An op with its attributes and outputs, its feeds, and the axes as they were drawn."""
    kind = one_of(rng, ("grad", "relu_grad", "grad_grad", "training", "statistics"))
    flag = int(rng.integers(2))
    epsilon = one_of(rng, (1e-5, 1e-3, 1.0))
    op = {
        "grad": lambda: ops.grad_op(flag),
        "relu_grad": lambda: ops.relu_grad_op(flag),
        "grad_grad": lambda: ops.grad_grad_op(flag),
        "training": lambda: ops.training_op(
            epsilon=epsilon, momentum=one_of(rng, (0.0, 0.9, 1.0)), unbiased_running_var=flag
        ),
        "statistics": lambda: ops.statistics_op(epsilon=epsilon),
    }[kind]()
    rank = int(rng.integers(1, 9))
    shape, left = [], 400
    for _ in range(rank):
        extent = min(int(one_of(rng, (1, 2, 3, 4, 5, 7, 16, 17, 33, 64))), left)
        left //= extent
        shape.append(extent)
    if rng.random() < 0.05:
        shape[int(rng.integers(rank))] = 0
    axes = [d - rank * int(rng.integers(2)) for d in rng.permutation(rank) if rng.random() < 0.5]
    data = one_of(rng, tuple(ops.NAMES.values()))
    types = (data, one_of(rng, (data, ops.FLOAT)), one_of(rng, (data, ops.FLOAT)))
    return op, ops.make_feeds(op, shape, axes, types, seed=int(rng.integers(2**31))), axes


def textbook(op, feeds, axes):
    shape = feeds["X"].shape
    kept = [extent for d, extent in enumerate(shape) if d not in [axis % len(shape) for axis in axes]]
    if 0 in kept:
        return [np.empty(shape if name in ops.DATA else kept) for name in op.outputs]
    with np.errstate(all="ignore"):
        if op.op == ops.TRAINING:
            a = op.attributes
            return ops.expected_training(
                feeds, axes, float(np.float32(a["epsilon"])), a["momentum"], a["unbiased_running_var"]
            )
        if op.op == ops.STATISTICS:
            axes = tuple(axis % feeds["X"].ndim for axis in axes)
            epsilon = float(np.float32(op.attributes["epsilon"]))
            return [m.squeeze(axes) for m in ops.moments(ops.float64(feeds["X"]), axes, epsilon)]
        expected = {
            ops.GRAD: ops.expected_grad,
            ops.RELU_GRAD: ops.expected_relu_grad,
            ops.GRAD_GRAD: ops.expected_grad_grad,
        }[op.op](feeds, axes, op.attributes["training_mode"])
    return [np.where(np.isnan(e), 0, e) if feeds["X"].size == 0 else e for e in expected]


def sound(rng, op, feeds, axes):
    expected = dict(zip(op.outputs, textbook(op, feeds, axes), strict=True))
    kept = [name for name in op.outputs if rng.random() < 0.7] or [one_of(rng, op.outputs)]
    outputs = [name if name in kept else "" for name in op.outputs]
    while not outputs[-1]:
        outputs.pop()
    options = {
        "threads": int(rng.integers(1, 4)),
        "axes_constant": bool(rng.integers(2)),
        "dims": one_of(rng, (None, "free", "unknown")),
    }
    values = {name: ops.misaligned(a) if rng.random() < 0.1 else np.asarray(a) for name, a in feeds.items()}
    for name, actual in zip(kept, op._replace(outputs=outputs).run(values, **options), strict=True):
        exact, dtype = expected[name], ops.output_dtype(feeds, name)
        if actual.shape != exact.shape:
            raise WrongError(f"{name} has shape {actual.shape}, expected {exact.shape}")
        bound = BOUNDS[dtype] * max(1, np.abs(exact).max(initial=0, where=np.isfinite(exact)))
        if not np.allclose(actual.astype(np.float64), exact, rtol=0, atol=bound, equal_nan=True):
            raise WrongError(f"{name} is {actual}, expected {exact}")


# Faults: each gives an op and feeds that must be refused, or None where there is nothing to spoil.


def wrong_shape(rng, op, feeds):
    others = [name for name in op.inputs if name not in ("X", "axes")]
    if not others:
        return None
    name = one_of(rng, others)
    old = list(feeds[name].shape)
    new = one_of(rng, ([*old, 1], [1, *old], old[1:], [e + 1 for e in old], [], [0], [2**10]))
    return None if new == old else (op, feeds | {name: np.zeros(new, feeds[name].dtype)})


def wrong_axes(rng, op, feeds):
    rank, old = feeds["X"].ndim, feeds["axes"].tolist()
    values = ([*old, rank], [-rank - 1], [2**63 - 1], [-(2**63)], [0, 0], [0, -rank], [0] * 100_000)
    return op, feeds | {"axes": np.array(one_of(rng, values), np.int64)}


def wrong_array_of_axes(rng, op, feeds):
    axes = feeds["axes"]
    return op, feeds | {"axes": one_of(rng, (axes.reshape(1, -1), np.array(0), axes.astype(np.int32)))}


def wrong_attribute(rng, op, feeds):
    name = one_of(rng, list(op.attributes))
    values = (None, "1", [1], [1.0], 7 if isinstance(op.attributes[name], int) else 1, float("nan"))
    value = one_of(rng, values)
    kept = {n: v for n, v in op.attributes.items() if n != name}
    return op._replace(attributes=kept if value is None else kept | {name: value}), feeds


def wrong_type(rng, op, feeds):
    name, dtype = one_of(rng, op.inputs), one_of(rng, (np.int32, np.int8, np.uint64, np.bool_, np.object_))
    old = ops.to_numpy(feeds[name])
    return op, feeds | {name: np.full(old.shape, "a", object) if dtype is np.object_ else old.astype(dtype)}


def wrong_float_type(rng, op, feeds):
    """One that ONNX Runtime 1.17 does not cast by itself."""
    parameters = [name for name in op.inputs if name not in ops.DATA and name != "axes"]
    if not parameters:
        return None
    name, wrong = one_of(rng, parameters), ops.BFLOAT16 if feeds["X"].dtype != ops.BFLOAT16 else ops.DOUBLE
    return op, feeds | {name: ops.to_dtype(ops.to_numpy(feeds[name]), wrong)}


def wrong_rank(rng, op, feeds):
    shape = [1] * one_of(rng, (0, 9, 40))
    ones = {name: np.ones(shape, feeds[name].dtype) for name in op.inputs if name != "axes"}
    return op, ones | {"axes": np.array([], np.int64)}


def wrong_inputs(rng, op, feeds):
    inputs, left_out = list(op.inputs), int(rng.integers(2 * len(op.inputs)))
    if left_out < len(inputs):
        inputs[left_out] = ""
    else:
        inputs.append("X")
    return op._replace(inputs=inputs), feeds


def wrong_outputs(rng, op, feeds):  # noqa: ARG001 - all have the same arguments
    return op._replace(outputs=[*op.outputs, "more"]), feeds


FAULTS = (
    wrong_shape,
    wrong_axes,
    wrong_array_of_axes,
    wrong_attribute,
    wrong_type,
    wrong_float_type,
    wrong_rank,
    wrong_inputs,
    wrong_outputs,
)


def refused(rng, op, feeds):
    spoiled = None
    while spoiled is None:
        spoiled = one_of(rng, FAULTS)(rng, op, feeds)
    op, feeds = spoiled
    try:
        op.run(feeds, threads=1, axes_constant=False)
    except Exception as error:
        message = str(error)
        if len(message) > LONGEST_MESSAGE:
            raise WrongError(f"a message of {len(message)} letters: {message[:200]}...") from error
        return "refused"
    raise WrongError(f"not refused: {op}, { {n: (a.dtype, a.shape) for n, a in feeds.items()} }")


def run(seed, index):
    rng = np.random.default_rng([seed, index])
    op, feeds, axes = draw(rng)
    if rng.random() < 0.5:
        return refused(rng, op, feeds)
    sound(rng, op, feeds, axes)
    return "computed"


def main(seed, count, first=0):
    warnings.simplefilter("ignore")  # NumPy's, of means of nothing
    results = Counter()
    for index in range(first, first + count):
        print(index, end="\r", file=sys.stderr, flush=True)
        try:
            results[run(seed, index)] += 1
        except WrongError as error:
            results["failures"] += 1
            print(f"case {index} of seed {seed}: {error}")
        except Exception as error:  # noqa: BLE001 - what a sound model may not raise
            results["failures"] += 1
            print(f"case {index} of seed {seed}: {type(error).__name__}: {str(error)[:500]}")
    print(", ".join(f"{number} {what}" for what, number in sorted(results.items())))
    return int(results["failures"] > 0 or (results["computed"] == 0 and count > 1))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
