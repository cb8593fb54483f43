"""The kernels of synchronized batch normalization, on every instruction set: parts of a batch against the whole.

``tests/distributed/test_rounding.py`` has the bounds of the statistics.
"""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.opset import reference
from bngrad.runtime import native, native_library

EPSILON, MOMENTUM = 1e-3, 0.9
FLOAT, DOUBLE, FLOAT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# On the error over the largest value. The statistics are double for all types.
BOUNDS = {FLOAT: 1e-6, DOUBLE: 1e-13, FLOAT16: 5e-4, BFLOAT16: 4e-3}
TYPES = {
    "float": (FLOAT, FLOAT),
    "double": (DOUBLE, DOUBLE),
    "float16": (FLOAT16, FLOAT),
    "bfloat16": (BFLOAT16, FLOAT),
}
types = pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
LAYOUTS = {
    "NCHW": ((7, 19, 5, 3), (0, 2, 3)),
    "long rows": ((7, 3, 70, 60), (0, 2, 3)),
    "NHWC": ((7, 6, 5, 33), (0, 1, 2)),
    "rank 2": ((70, 130), (0,)),
    "folded": ((700, 3), (0,)),
    "per activation": ((9, 4, 5), (0,)),
    "mixed": ((7, 5, 4, 9, 3), (0, 2, 4)),
    "all axes": ((7, 6), (0, 1)),
    "one channel": ((7, 1, 6), (0, 2)),
}
layouts = pytest.mark.parametrize(("shape", "axes"), LAYOUTS.values(), ids=LAYOUTS)


class Kernels:
    """The ops of a module, or of a process with an instruction set, by their short names."""

    def __init__(self, source, **options):
        self._source, self._options = source, options

    def __getattr__(self, op):
        name = f"batch_normalization_{op}"
        options = {} if op == "merge_moments" else self._options
        if hasattr(self._source, "isa"):
            return lambda *arguments: self._source.call(name, *arguments, **options)
        return lambda *arguments: getattr(self._source, name)(*arguments, **options)


class Batch:
    """The inputs of a batch norm and a ReLU after it, forward and backward."""

    def __init__(self, shape, axes, types, rng, mean=1.0):
        data, parameter = types
        kept = [extent for i, extent in enumerate(shape) if i not in axes]
        self.axes = axes
        self.x, self.dy = (rng.normal(center, 2, shape).astype(data) for center in (mean, 0.25))
        self.z = np.maximum(rng.normal(0, 1, shape), 0).astype(data)
        self.parameters = [np.asarray(rng.uniform(0.5, 1.5, kept)).astype(parameter) for _ in range(4)]

    def parts(self, counts):
        """Slices of the first dimension, which is reduced."""
        ends = list(itertools.accumulate(counts))
        assert ends[-1] == len(self.x)
        return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def whole(self, implementation):
        """The outputs of the fused ops: Y, the new running statistics, dX, dscale, dbias, and those of a ReLU."""
        scale, bias, *running = (a.astype(np.float64) for a in self.parameters)
        y, *new, mean, inv_std = implementation.training(
            self.x.astype(np.float64), scale, bias, *running, self.axes, EPSILON, MOMENTUM, True
        )
        dy, z, x = (a.astype(np.float64) for a in (self.dy, self.z, self.x))
        gradients = implementation.grad(dy, x, scale, mean, inv_std, self.axes, True)
        of_relu = implementation.relu_grad(dy, z, x, scale, mean, inv_std, self.axes, True)
        return [y, *new, *gradients, *of_relu]

    def split(self, kernels, counts):
        """The same from the split ops of ranks with so many samples; those of parameters are added up."""
        parts, (scale, bias, *running) = self.parts(counts), self.parameters
        gathered = np.stack([kernels.moments(self.x[part], self.axes)[0] for part in parts])
        *new, mean, inv_std, count = kernels.merge_moments(gathered, *running, EPSILON, MOMENTUM, True)
        statistics = (mean, inv_std)
        y = [kernels.apply(self.x[part], scale, bias, *statistics, self.axes)[0] for part in parts]
        outputs = [np.concatenate(y), *new]
        for op in ("grad", "relu_grad"):
            arrays = (self.dy, self.x) if op == "grad" else (self.dy, self.z, self.x)
            sums, dscales, dbiases = zip(
                *(
                    getattr(kernels, f"{op}_sums")(*(a[part] for a in arrays), scale, *statistics, self.axes)
                    for part in parts
                ),
                strict=True,
            )
            dx = [
                getattr(kernels, f"{op}_apply")(
                    *(a[part] for a in arrays), scale, *statistics, np.stack(sums), count, self.axes
                )[0]
                for part in parts
            ]
            outputs += [np.concatenate(dx), *(np.sum(d, axis=0, dtype=np.float64) for d in (dscales, dbiases))]
        return outputs


def assert_close(got, expected, dtypes, samples=1):
    """``samples`` of a channel: their sums may cancel, and have the error of the terms, whose deviation is 2."""
    for output, other, dtype in zip(got, expected, dtypes, strict=True):
        assert output.shape == other.shape
        error = np.abs(output.astype(np.float64) - other).max(initial=0)
        size = 4 * math.sqrt(samples) if output.shape != got[0].shape else 1
        assert error <= BOUNDS[dtype] * np.abs(other).max(initial=size)


def output_types(types):
    data, parameter = types
    return [data, parameter, parameter, *(data, parameter, parameter) * 2]


def bytes_of(arrays):
    return [a.tobytes() for a in arrays]


SPLITS = {
    "one rank": (1,),
    "equal": (0.25, 0.25, 0.25, 0.25),
    "uneven": (0.5, 0.1, 0.4),
    "first is empty": (0, 0.7, 0.3),
    "others are empty": (0, 0, 1, 0, 0),
    "eight": (0.1, 0, 0.3, 0.1, 0.2, 0.1, 0, 0.2),
}


def counts_of(split, samples):
    ends = [round(samples * end) for end in itertools.accumulate(split)]
    return [end - begin for begin, end in itertools.pairwise([0, *ends[:-1], samples])]


@types
@layouts
def test_parts_against_the_whole_batch(shape, axes, types, rng):
    """Against the textbook of the whole batch in float64, which is that of torch's SyncBatchNorm.

    The next test has the other instruction sets.
    """
    batch = Batch(shape, axes, types, rng)
    expected, samples = batch.whole(Kernels(reference)), math.prod(shape[axis] for axis in axes)
    for split in SPLITS.values():
        got = batch.split(Kernels(native), counts_of(split, shape[0]))
        assert_close(got, expected, output_types(types), samples)


@types
@layouts
def test_threads_and_instruction_sets_do_not_change_a_bit(kernels, shape, axes, types, rng):
    """The partition does not depend on the instruction set, so only one runs with every number of threads."""
    batch, counts = Batch(shape, axes, types, rng), counts_of(SPLITS["uneven"], shape[0])
    first = bytes_of(batch.split(Kernels(native), counts))
    for threads in (1, 2, 5) if kernels.isa == native_library.active_isa() else (2,):
        assert bytes_of(batch.split(Kernels(kernels, num_threads=threads), counts)) == first


@types
@pytest.mark.parametrize(("shape", "axes"), [((8, 64, 40, 33), (0, 2, 3)), ((300, 7, 700), (0, 1))], ids=str)
def test_large_batches_do_not_depend_on_threads(shape, axes, types, rng):
    batch = Batch(shape, axes, types, rng)
    first, second = (bytes_of(batch.split(Kernels(native, num_threads=n), [shape[0]])) for n in (1, 3))
    assert first == second


@types
@layouts
def test_one_rank_computes_what_the_fused_ops_do(shape, axes, types, rng):
    """Sums are the very same; the fused ops round the statistics to their type between the passes."""
    batch = Batch(shape, axes, types, rng)
    scale, bias, *running = batch.parameters
    y, *new, _, _ = native.batch_normalization_training(
        batch.x, scale, bias, *running, axes, EPSILON, MOMENTUM, True
    )
    got = batch.split(Kernels(native), [shape[0]])
    assert_close(got[:3], [a.astype(np.float64) for a in (y, *new)], output_types(types)[:3])
    (moments,) = native.batch_normalization_moments(batch.x, axes)
    *_, mean, inv_std, count = native.batch_normalization_merge_moments(
        moments[None], *(a.astype(DOUBLE) for a in running), EPSILON, MOMENTUM, True
    )
    assert count == batch.x.size / max(mean.size, 1)
    if types[0] == DOUBLE:
        dx, *parameters = native.batch_normalization_grad(batch.dy, batch.x, scale, mean, inv_std, axes, True)
        assert bytes_of([dx, *parameters]) == bytes_of(got[3:6])


@types
@pytest.mark.parametrize(("shape", "axes"), [((16, 5, 4, 8), (0, 2, 3)), ((64, 70), (0,))], ids=str)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_exact_inputs_in_equal_parts_give_equal_bits(kernels, shape, axes, types, ranks, rng):
    """Integers, and M a power of 2: no sum is rounded."""
    batch = Batch(shape, axes, types, rng)
    signs = rng.choice([-1, 1], (shape[0] // 2, *shape[1:]))
    batch.x = rng.permuted(np.concatenate([signs, -signs]), axis=0).astype(types[0]) + types[0].type(3)
    batch.dy = rng.integers(-4, 5, shape).astype(types[0])

    def run(counts):
        parts, (scale, bias, *running) = batch.parts(counts), batch.parameters
        k = Kernels(kernels)
        gathered = np.stack([k.moments(batch.x[part], axes)[0] for part in parts])
        *new, mean, inv_std, count = k.merge_moments(gathered, *running, EPSILON, MOMENTUM, True)
        assert set(mean.flat) == {3.0}
        y = [k.apply(batch.x[part], scale, bias, mean, inv_std, axes)[0] for part in parts]
        arrays = [(batch.dy[part], batch.x[part], scale, mean, inv_std) for part in parts]
        sums = np.stack([k.grad_sums(*a, axes)[0] for a in arrays])
        dx = [k.grad_apply(*a, sums, count, axes)[0] for a in arrays]
        return bytes_of([*new, mean, inv_std, count, np.concatenate(y), np.concatenate(dx)])

    assert run([shape[0] // ranks] * ranks) == run([shape[0]])


def tree(rows):
    rows, stride = list(rows), 1
    while stride < len(rows):
        for i in range(0, len(rows) - stride, 2 * stride):
            rows[i] = rows[i] + rows[i + stride]
        stride *= 2
    return rows[0]


@pytest.mark.parametrize("ranks", [*range(1, 10), 33])
def test_ranks_are_added_by_the_documented_tree(kernels, ranks, rng):
    k, channels = Kernels(kernels), 70
    counts = rng.integers(0, 4, (ranks, 1)) * np.ones(channels)
    counts[-1] += 1
    means, squares = rng.normal(5, 3, (ranks, channels)), rng.uniform(0, 9, (ranks, channels))
    gathered = np.stack([counts, np.where(counts, means, 0), np.where(counts, squares, 0)], axis=1)
    zero = np.zeros(channels)
    *_, mean, inv_std, count = k.merge_moments(gathered, zero, zero, EPSILON, MOMENTUM, False)
    n, means, squares = (gathered[:, row] for row in range(3))
    assert count == tree(n)[0]
    want_mean = means[0] + tree(n * (means - means[0])) / count
    np.testing.assert_array_equal(mean, want_mean)
    var = tree(np.where(n, squares + n * np.square(means - want_mean), 0)) / count
    np.testing.assert_array_equal(inv_std, 1 / np.sqrt(var + EPSILON))

    x = rng.normal(0, 1, (9, channels))
    sums = rng.normal(0, 1, (ranks, 2, channels)) * 2.0 ** rng.integers(-40, 40, (ranks, 2, channels))
    arrays = (x[::-1], x, zero + 1.5, mean, inv_std)
    np.testing.assert_array_equal(
        k.grad_apply(*arrays, sums, count, (0,))[0], k.grad_apply(*arrays, tree(sums)[None], count, (0,))[0]
    )


def test_a_huge_mean_and_an_empty_rank(kernels):
    """The square of a mean of 1e200 is infinite; times a count of 0 it would be NaN."""
    x, k = np.array([[1e200], [1e200]]), Kernels(kernels)
    gathered = np.stack([k.moments(part, (0,))[0] for part in (x[:0], x, x[:0])])
    *_, mean, inv_std, count = k.merge_moments(gathered, [0.0], [0.0], 0.25, MOMENTUM, False)
    assert (mean, inv_std, count) == (1e200, 2.0, 2.0)


def test_constant_channels_have_no_squares(kernels, rng):
    """Also where the mean is not exact: what rounding left of it does not count."""
    x = np.broadcast_to(rng.uniform(1, 1e6, 200), (7, 200))
    count, mean, squares = Kernels(kernels).moments(np.ascontiguousarray(x), (0,))[0]
    np.testing.assert_array_equal(count, 7)
    np.testing.assert_allclose(mean, x[0], rtol=1e-15)
    assert squares.max() <= 1e-15 * np.spacing(x[0]).max() ** 2


@types
@pytest.mark.parametrize(("shape", "axes"), [((0, 3), (0,)), ((2, 3, 0), (0, 2)), ((0, 3, 5), (0, 2))], ids=str)
def test_an_empty_part(kernels, shape, axes, types):
    """Also with statistics that are NaN, as those of an empty batch are."""
    data, parameter = types
    k, x, c, ones = Kernels(kernels), np.zeros(shape, data), np.ones(3, parameter), np.ones(3)
    np.testing.assert_array_equal(k.moments(x, axes)[0], np.zeros((3, 3)))
    for mean in (ones, ones * np.nan):
        sums, dscale, dbias = k.grad_sums(x, x, c, mean, mean, axes)
        np.testing.assert_array_equal(sums, np.zeros((2, 3)))
        np.testing.assert_array_equal([dscale, dbias], np.zeros((2, 3)))
        assert k.apply(x, c, c, mean, ones, axes)[0].shape == shape
        assert k.grad_apply(x, x, c, mean, ones, sums[None], np.array(0.0), axes)[0].shape == shape
    merged = k.merge_moments(np.zeros((4, 3, 3)), c, c, EPSILON, MOMENTUM, True)
    for value in merged[:4]:
        np.testing.assert_array_equal(value, np.full(3, np.nan))
    assert merged[4] == 0


@pytest.mark.parametrize(("shape", "axes"), [((3, 0), (0,)), ((2, 0, 3), (0, 2))], ids=str)
def test_no_channels(kernels, shape, axes):
    k, x, c = Kernels(kernels), np.zeros(shape), np.zeros(0)
    (moments,) = k.moments(x, axes)
    assert moments.shape == (3, 0)
    merged = k.merge_moments(moments[None], c, c, EPSILON, MOMENTUM, True)
    assert [m.shape for m in merged] == [(0,)] * 4 + [()]
    assert np.isnan(merged[4])
    sums, *_ = k.grad_sums(x, x, c, c, c, axes)
    assert sums.shape == (2, 0)
    assert k.grad_apply(x, x, c, c, c, sums[None], np.array(3.0), axes)[0].shape == shape
    assert k.apply(x, c, c, c, c, axes)[0].shape == shape


@types
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_poison_of_a_rank_stays_in_its_channel(kernels, value, types, rng):
    batch = Batch((9, 20, 21), (0, 2), types, rng)
    clean = batch.split(Kernels(kernels), [4, 5])
    batch.x[1, 5, 20] = value
    others, poisoned = np.arange(20) != 5, batch.split(Kernels(kernels), [4, 5])
    for before, after in zip(clean, poisoned, strict=True):
        axis = 1 if before.ndim == 3 else 0
        np.testing.assert_array_equal(np.compress(others, before, axis), np.compress(others, after, axis))
    for output in (0, 3):  # Y and dX, on both ranks
        assert not np.isfinite(poisoned[output][:, 5]).any()


X, C, D = np.ones((4, 3, 2), np.float32), np.ones(3, np.float32), np.ones(3)
AXES = (0, 2)
MOMENTS, SUMS, COUNT = np.ones((2, 3, 3)), np.ones((2, 2, 3)), np.ones(())


def moments(X=X, axes=AXES):
    return native.batch_normalization_moments(X, axes)


def merge(gathered_moments=MOMENTS, running_mean=C, running_var=C, epsilon=1e-3, momentum=0.9, unbiased=1):
    return native.batch_normalization_merge_moments(
        gathered_moments, running_mean, running_var, epsilon, momentum, unbiased
    )


def apply(X=X, scale=C, bias=C, batch_mean=D, batch_inv_std=D, axes=AXES):
    return native.batch_normalization_apply(X, scale, bias, batch_mean, batch_inv_std, axes)


def sums(dY=X, X=X, scale=C, batch_mean=D, batch_inv_std=D, axes=AXES):
    return native.batch_normalization_grad_sums(dY, X, scale, batch_mean, batch_inv_std, axes)


def grad(
    dY=X, X=X, scale=C, batch_mean=D, batch_inv_std=D, gathered_sums=SUMS, batch_count=COUNT, axes=AXES

):  # fmt: skip
    arguments = (dY, X, scale, batch_mean, batch_inv_std, gathered_sums, batch_count, axes)
    return native.batch_normalization_grad_apply(*arguments)


def relu_sums(dZ=X, Z=X):
    return native.batch_normalization_relu_grad_sums(dZ, Z, X, C, D, D, AXES)


def relu_grad(dZ=X, Z=X):
    return native.batch_normalization_relu_grad_apply(dZ, Z, X, C, D, D, np.ones((1, 2, 3)), np.ones(()), AXES)


REFUSALS = [
    (moments, {"X": X.astype(np.int32)}, "X has dtype int32; expected float32, float64, float16 or bfloat16"),
    (moments, {"axes": [3]}, "out of range"),
    (apply, {"axes": [0, 0]}, "twice"),
    (
        merge,
        {"gathered_moments": np.ones((2, 3, 4))},
        r"gathered_moments has shape \[2, 3, 4\]; expected \[2, 3, 3\]",
    ),
    (
        merge,
        {"gathered_moments": np.ones((0, 3, 3))},
        r"gathered_moments has shape \[0, 3, 3\]; expected \[R, 3, 3\]",
    ),
    (merge, {"gathered_moments": np.ones(())}, r"gathered_moments has shape \[\]; expected \[R, 3, 3\]"),
    (
        merge,
        {"gathered_moments": np.ones((2, 3, 3), "f4")},
        "gathered_moments has dtype float32; expected float64",
    ),
    (merge, {"running_mean": C.astype(int)}, "running_mean has dtype int64; expected float32"),
    (merge, {"running_var": D}, "running_var has dtype float64; expected float32, the dtype of running_mean"),
    (merge, {"running_var": np.ones(4, "f4")}, r"running_var has shape \[4\]; expected \[3\]"),
    (merge, {"epsilon": -1.0}, "epsilon is -1.000000; expected a finite number >= 0"),
    (merge, {"momentum": np.nan}, "momentum is .*nan; expected a finite number"),
    (merge, {"unbiased": 2}, "unbiased_running_var is 2; expected 0 or 1"),
    (apply, {"batch_mean": C}, "batch_mean has dtype float32; expected float64"),
    (apply, {"batch_inv_std": np.ones(4)}, r"batch_inv_std has shape \[4\]; expected \[3\]: X's shape"),
    (apply, {"bias": D}, "bias has dtype float64; expected float32, the dtype of scale"),
    (sums, {"dY": X[:3]}, r"dY has shape \[3, 3, 2\]; expected \[4, 3, 2\]: the shape of X"),
    (sums, {"scale": D}, "scale has dtype float64; expected float32"),
    (sums, {"batch_mean": D[None]}, r"batch_mean has shape \[1, 3\]; expected \[3\]"),
    (relu_sums, {"Z": X[:3]}, r"Z has shape \[3, 3, 2\]; expected \[4, 3, 2\]"),
    (grad, {"gathered_sums": np.ones((2, 3, 3))}, r"gathered_sums has shape \[2, 3, 3\]; expected \[2, 2, 3\]"),
    (grad, {"gathered_sums": np.ones((2, 3))}, r"gathered_sums has shape \[2, 3\]; expected \[2, 2, 3\]"),
    (grad, {"batch_count": D}, r"batch_count has shape \[3\]; expected \[\]: a scalar"),
    (grad, {"batch_count": np.int64(3)}, "batch_count has dtype int64; expected float64"),
    (relu_grad, {"dZ": X.astype(np.float64)}, "dZ has dtype float64; expected float32, the dtype of X"),
]


@pytest.mark.parametrize(
    ("op", "wrong", "message"),
    [pytest.param(*r, id=f"{r[0].__name__}-{next(iter(r[1]))}-{i}") for i, r in enumerate(REFUSALS)],
)
def test_refusals(op, wrong, message):
    op()
    with pytest.raises(InputError, match=message):
        op(**wrong)


@pytest.mark.parametrize("dtype", [np.int64, np.float16, ">f8"], ids=str)
def test_what_ranks_exchange_is_double_or_float(dtype):
    value = np.ones(3, dtype)
    with pytest.raises(InputError, match=r"value has dtype .*; expected float64"):
        native.all_gather(value, "key")
    with pytest.raises(InputError, match=r"partial has dtype .*; expected float32 or float64"):
        native.all_reduce(value, "key")
    with pytest.raises(InputError, match="key is empty"):
        native.all_reduce(np.ones(3), "")
