"""The ops on a device against float64 references: types, layouts, edges, and the same bits in two runs.

``python check_ops.py DEVICE TYPE,...``: the types of `KINDS`.
"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
from onnx import TensorProto

import bngrad
from bngrad.opset.quantities import QUANTITIES
from bngrad.runtime.ort_values import run_on_values, to_ort_value
from max_pool_cases import WINDOWS, complete, feeds_of, model_of
from op_models import ALL_GATHER, ALL_REDUCE, CASES, FIXED_TYPES, expected, op_feeds, op_model
from results import check, report

DTYPES = {
    "float": (np.dtype(np.float32), TensorProto.FLOAT, 1e-6),
    "double": (np.dtype(np.float64), TensorProto.DOUBLE, 1e-14),
    "float16": (np.dtype(np.float16), TensorProto.FLOAT16, 5e-4),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16, 4e-3),
}
"""The types, with the largest error relative to the largest value."""
EDGES = {
    "NCHW": ((4, 8, 9, 7), (0, 2, 3)),
    "NHWC": ((4, 9, 7, 8), (0, 1, 2)),
    "rank 2": ((64, 33), (0,)),
    "mixed axes": ((4, 3, 5, 2), (1, 3)),
    "no axes": ((2, 3), ()),
    "one element a channel": ((1, 3, 1), (0, 2)),
    "empty batch": ((0, 3, 2), (0, 2)),
    "large": ((32, 64, 56, 56), (0, 2, 3)),
}
TYPED = ("T", "T1", "T2", "W")
POOLS = {name: ((3, 5, *sizes), attributes) for name, (sizes, attributes) in WINDOWS.items()}
POOLS |= {
    "empty batch": ((0, 3, 9, 12), WINDOWS["3x3, stride 2, padded"][1]),
    "large": ((32, 64, 112, 112), WINDOWS["3x3, stride 2, padded"][1]),
    "large, stride 1": ((32, 192, 28, 28), WINDOWS["3x3, stride 1"][1]),
}


def element_types(op, kind):
    """The types of an op's values: all of one type, or parameters and statistics in float."""
    from bngrad.opset.schemas import signature

    inputs, outputs, _ = signature(op)
    data, _, _ = kind.partition("-")
    of_inputs = {QUANTITIES[name].type_constraint for name in inputs}
    result = {}
    for name in (*inputs, *outputs):
        constraint = QUANTITIES[name].type_constraint
        if constraint not in FIXED_TYPES:
            # Without such an input, the op computes the output in float for 16 bits.
            wide = kind.endswith("-float") or (constraint not in of_inputs and data.endswith("float16"))
            result[name] = "float" if wide and constraint not in ("T", "W") else data
    return result


def run(op, attributes, kind, shape, axes, device):
    """Compares one case, and returns the largest error over its bound."""
    rng = np.random.default_rng(0)
    types = element_types(op, kind)
    model = op_model(op, attributes, types={name: DTYPES[dtype][1] for name, dtype in types.items()})
    feeds = op_feeds(op, shape, axes, rng, np.float64)
    feeds = {
        name: array.astype(DTYPES[types[name]][0]) if name in types else array for name, array in feeds.items()
    }
    session = bngrad.session(model, device=device)
    values = {name: to_ort_value(np.asarray(array, order="C")) for name, array in feeds.items()}
    values = {value.name: values[value.name] for value in session.get_inputs()}
    first, second = run_on_values(session, values), run_on_values(session, values)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), f"{name} of two runs differs"
    exact = {name: array if name not in types else array.astype(np.float64) for name, array in feeds.items()}
    worst = 0.0
    for name, want in expected(op, exact, attributes).items():
        dtype = types.get(name, "double")
        actual, scale = first[name].astype(np.float64), np.max(np.abs(want), initial=0)
        if name.endswith("mean") and "X" in exact:  # it may be near 0, a sum of larger values
            scale = max(scale, np.max(np.abs(exact["X"]), initial=0))
        assert actual.shape == want.shape, f"{name} has shape {actual.shape}; expected {want.shape}"
        assert np.array_equal(np.isnan(actual), np.isnan(want)), f"{name} is NaN elsewhere"
        error = np.max(np.abs(np.nan_to_num(actual) - np.nan_to_num(want)), initial=0)
        bound = max(DTYPES[dtype][2], DTYPES[kind.partition("-")[0]][2]) * np.nan_to_num(scale)
        assert error <= bound, f"{name}: error {error:.3g}, bound {bound:.3g}"
        worst = max(worst, error / bound if bound else 0)
    return worst


def run_max_pool(form, dtype, device):
    """Compares MaxPoolInputGrad with the bits of the CPU's op, with many ties and some NaN."""
    (shape, attributes), rng = POOLS[form], np.random.default_rng(0)
    x = rng.choice(np.array([np.nan, -np.inf, *range(20)], dtype), shape)
    feeds, model = feeds_of(x, attributes, rng), model_of(complete(attributes), dtype.type)
    values = {name: to_ort_value(array) for name, array in feeds.items()}
    session = bngrad.session(model, device=device)
    (first,), (second,) = (run_on_values(session, values).values() for _ in range(2))
    assert first.tobytes() == second.tobytes(), "the bits of two runs differ"
    (of_cpu,) = bngrad.session(model).run(None, feeds)
    assert first.tobytes() == of_cpu.tobytes(), f"{np.sum(first != of_cpu)} elements differ from those of the CPU"


def check_max_pools(device, kind, quick):
    for form in POOLS:
        if not quick or not form.startswith("large"):
            with check(f"max-pool-grad {form} {kind}"):
                run_max_pool(form, DTYPES[kind][0], device)


def main(device, kinds, quick):
    skipped = (ALL_GATHER, ALL_REDUCE, "AdamUpdate")
    cases = {name: case for name, case in CASES.items() if case[0] not in skipped}
    edges = {name: edge for name, edge in EDGES.items() if not quick or name != "large"}
    for case, (op, attributes) in cases.items():
        for kind in kinds:
            with check(f"{case} {kind}") as notes:
                worst = {edge: run(op, attributes, kind, *shape, device) for edge, shape in edges.items()}
                edge = max(worst, key=worst.get)
                notes.append(f"{worst[edge]:.2f} of its bound ({edge})")
                report("ops", op=case, type=kind, worst=worst[edge], edge=edge)
    for kind in {"float", "double"} & set(kinds):
        check_max_pools(device, kind, quick)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), quick="--quick" in sys.argv)
