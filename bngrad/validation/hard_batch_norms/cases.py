"""The cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.validation.hard_batch_norms.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


def cases() -> list[Case]:
    """Returns the cases, the same in every call."""
    return list(_cases(np.random.Generator(np.random.PCG64(20))))


def _cases(generator: np.random.Generator) -> Iterator[Case]:
    def arrays(
        shape: Sequence[int], dtype: type = np.float32, parameters: type = np.float32, **own: Array
    ) -> dict[str, Array]:
        channels = shape[1]
        drawn = {
            "X": generator.normal(size=shape),
            "dY": generator.normal(size=shape),
            "scale": generator.uniform(0.5, 1.5, channels),
            "bias": generator.normal(size=channels),
            "running_mean": generator.normal(size=channels),
            "running_var": generator.uniform(0.5, 1.5, channels),
        } | own
        return {name: a.astype(dtype if name in ("X", "dY") else parameters) for name, a in drawn.items()}

    small = (8, 4, 6, 6)
    constants = np.array([0.0, 0.1, -3000.7, 1e6]).reshape(-1, 1, 1)
    yield Case(
        "constant_channels",
        "The rounding error of a mean of equal values is taken for a variance; or the variance is negative, and "
        "its root NaN. Y is bias, dX and dscale are 0.",
        arrays(small, X=np.broadcast_to(constants, small)),
    )
    yield Case(
        "mean_1000",
        "mean(X^2) - mean(X)^2 has lost the digits of a variance of 1, and sum(dY * X) - mean * sum(dY) those of "
        "dscale.",
        arrays(small, X=1000 + generator.normal(size=small)),
    )
    yield Case(
        "one_value",
        "The variance of one value is refused, or divided by 0. It is 0: Y is bias, dX and dscale are 0.",
        arrays((1, 4)),
    )
    many = (4, 2, 256, 256)
    yield Case(
        "terms_262144_float16",
        "A sum in float16 stops at 2048 times its terms, or is infinite above 65504.",
        arrays(many, np.float16, X=2 + generator.normal(size=many), dY=generator.uniform(0.1, 0.3, many)),
    )
    yield Case(
        "parameters_float16",
        "Statistics, scale and bias in float16 are added and rounded in float16 between the operations.",
        arrays((32, 3, 8, 8), np.float16, np.float16, X=8 + generator.normal(size=(32, 3, 8, 8))),
    )
    yield Case(
        "unequal_ranks",
        "Means and variances of ranks with 7, 1 and 24 samples are averaged without their numbers of samples, or "
        "without the variance between the ranks.",
        arrays(
            (32, 4, 3, 3),
            X=generator.normal(size=(32, 4, 3, 3)) + np.repeat([5, -20, 1], [7, 1, 24]).reshape(-1, 1, 1, 1),
        ),
        parts=(7, 1, 24),
        joint=True,
    )
    yield Case(
        "sum_loss",
        "Gradients of a loss that is a sum are divided by the size of the batch. With dY = 1, of the loss sum(Y), "
        "dbias is that size, and dX and dscale are 0.",
        arrays((64, 4, 16, 16), X=3 + generator.normal(size=(64, 4, 16, 16)), dY=np.ones((64, 4, 16, 16))),
    )
    yield Case(
        "shared_layer",
        "The layer is called twice in a step. The second call starts from the running statistics of the first; "
        "dscale and dbias are sums over both calls.",
        arrays((32, 4, 3, 3), X=generator.normal(size=(32, 4, 3, 3)) * 2 + 1),
        parts=(12, 20),
    )
    yield Case(
        "running_var_of_two",
        "ONNX's running variance is the biased one: for two values it is half the unbiased one of PyTorch.",
        arrays((2, 4)),
        momentum=0.5,
    )
    yield Case(
        "frozen",
        "With frozen statistics no gradient passes the mean and the variance: dX = scale * inv_std * dY.",
        arrays(small, running_mean=np.array([0.0, 1.0, -2.0, 100.0])),
        training_mode=False,
    )
    yield Case(
        "scale_0",
        "xhat is computed as (Y - bias) / scale.",
        arrays(small, scale=np.array([0.0, 1.0, -1.0, 1e-30])),
    )
    yield Case(
        "epsilon_below_variance",
        "A variance of 1e-10 is below the usual epsilon, which the attribute replaces.",
        arrays(small, X=1e-5 * generator.normal(size=small)),
        epsilon=float(np.float32(1e-12)),
    )
    yield Case(
        "values_1e20",
        "The squares of X are infinite in float.",
        arrays(small, X=1e20 * generator.normal(size=small)),
    )
    yield Case(
        "double",
        "Doubles are computed in float.",
        arrays(small, np.float64, np.float64),
    )
