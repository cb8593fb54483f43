"""The inputs, outputs and attributes of the ops: what they are called, their types, shapes and documentation."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal[
    "data",
    "parameter",
    "axes",
    "coefficients",
    "scalar",
    "moments",
    "gathered_moments",
    "sums",
    "gathered_sums",
    "gathered",
]
"""The relation between a shape and those of the other inputs."""


class Quantity(NamedTuple):
    """An input or output of the ops."""

    type_constraint: str
    shape: Kind
    doc: str


FLOAT_TYPES = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]
"""The types of data, as in a schema."""

COEFFICIENTS = 9
"""The number of coefficients of AdamUpdate."""

ROWS = {"moments": 3, "sums": 2}
"""The number of rows of what a rank sends, by its shape's kind; each has a column for each channel."""

_LIKE_X = "; has the shape of X"
_LIKE_WEIGHT = "; has the shape of weight"
_LIKE_SCALE = "; has the shape of X without the reduction axes"

QUANTITIES: dict[str, Quantity] = {
    "X": Quantity("T", "data", "Input of the forward pass, of rank 1 to 8"),
    "Y": Quantity("T", "data", "The normalized, scaled and shifted X" + _LIKE_X),
    "dY": Quantity("T", "data", "Gradient with respect to Y" + _LIKE_X),
    "dX": Quantity("T", "data", "Gradient with respect to X" + _LIKE_X),
    "Z": Quantity("T", "data", "relu(Y)" + _LIKE_X),
    "dZ": Quantity("T", "data", "Gradient with respect to Z" + _LIKE_X),
    "ddX": Quantity("T", "data", "Gradient with respect to dX" + _LIKE_X),
    "d_dY": Quantity("T", "data", "Gradient with respect to dY" + _LIKE_X),
    "d_X": Quantity("T", "data", "Gradient with respect to X, through the first gradients" + _LIKE_X),
    "scale": Quantity("T1", "parameter", "Multiplies the normalized X" + _LIKE_SCALE),
    "bias": Quantity("T1", "parameter", "Added after scaling" + _LIKE_SCALE),
    "dscale": Quantity("T1", "parameter", "Gradient with respect to scale" + _LIKE_SCALE),
    "dbias": Quantity("T1", "parameter", "Gradient with respect to bias" + _LIKE_SCALE),
    "ddscale": Quantity("T1", "parameter", "Gradient with respect to dscale" + _LIKE_SCALE),
    "ddbias": Quantity("T1", "parameter", "Gradient with respect to dbias" + _LIKE_SCALE),
    "d_scale": Quantity(
        "T1", "parameter", "Gradient with respect to scale, through the first gradients" + _LIKE_SCALE
    ),
    "mean": Quantity("T2", "parameter", "Mean that is subtracted from X" + _LIKE_SCALE),
    "inv_std": Quantity("T2", "parameter", "1 / sqrt(variance + epsilon), not the variance itself" + _LIKE_SCALE),
    "saved_mean": Quantity("T2", "parameter", "Mean of this batch" + _LIKE_SCALE),
    "saved_inv_std": Quantity("T2", "parameter", "1 / sqrt(variance of this batch + epsilon)" + _LIKE_SCALE),
    "running_mean": Quantity("T2", "parameter", "Running mean before this step" + _LIKE_SCALE),
    "running_var": Quantity("T2", "parameter", "Running variance before this step" + _LIKE_SCALE),
    "new_running_mean": Quantity("T2", "parameter", "Running mean after this step" + _LIKE_SCALE),
    "new_running_var": Quantity("T2", "parameter", "Running variance after this step" + _LIKE_SCALE),
    "weight": Quantity("W", "data", "Weight before this step, of any shape"),
    "gradient": Quantity("W", "data", "Gradient with respect to weight" + _LIKE_WEIGHT),
    "exp_avg": Quantity("W", "data", "Moving average of the gradient before this step" + _LIKE_WEIGHT),
    "exp_avg_sq": Quantity("W", "data", "Moving average of the squared gradient before this step" + _LIKE_WEIGHT),
    "new_weight": Quantity("W", "data", "Weight after this step" + _LIKE_WEIGHT),
    "new_exp_avg": Quantity("W", "data", "Moving average of the gradient after this step" + _LIKE_WEIGHT),
    "new_exp_avg_sq": Quantity(
        "W", "data", "Moving average of the squared gradient after this step" + _LIKE_WEIGHT
    ),
    "coefficients": Quantity(
        "tensor(double)",
        "coefficients",
        "gradient_scale, l2_penalty, weight_factor, 1 - beta1, beta2, 1 - beta2, step_size, "
        "sqrt_bias_correction2 and epsilon, of shape [9]",
    ),
    "batch_mean": Quantity("tensor(double)", "parameter", "Mean of the whole batch, of all ranks" + _LIKE_SCALE),
    "batch_inv_std": Quantity(
        "tensor(double)", "parameter", "1 / sqrt(variance of the whole batch + epsilon)" + _LIKE_SCALE
    ),
    "batch_count": Quantity(
        "tensor(double)", "scalar", "Number of elements of each channel in the whole batch, a scalar"
    ),
    "moments": Quantity(
        "tensor(double)", "moments", "Count, mean and sum of squared deviations of this rank, of shape [3, C]"
    ),
    "gathered_moments": Quantity(
        "tensor(double)", "gathered_moments", "The moments of all R ranks, of shape [R, 3, C]"
    ),
    "sums": Quantity(
        "tensor(double)", "sums", "sum dY and sum dY * (X - batch_mean) of this rank, of shape [2, C]"
    ),
    "gathered_sums": Quantity("tensor(double)", "gathered_sums", "The sums of all R ranks, of shape [R, 2, C]"),
    "value": Quantity("tensor(double)", "data", "Value of this rank, of rank 0 to 8"),
    "gathered": Quantity("tensor(double)", "gathered", "The values of all R ranks, of shape [R, ...]"),
    "partial": Quantity("W", "data", "Summand of this rank, of any shape"),
    "total": Quantity("W", "data", "The sum over all ranks; has the shape of partial"),
    "axes": Quantity(
        "tensor(int64)", "axes", "The dimensions to reduce: 1-D, each in [-rank, rank), without duplicates"
    ),
}
"""All inputs and outputs of the ops, by name. A gradient is that of the loss."""

ATTRIBUTES: dict[str, str] = {
    "training_mode": "1: mean and inv_std are functions of X; 0: they are constants (frozen statistics)",
    "epsilon": "Added to the variance before its square root",
    "momentum": "Weight of the old running value",
    "key": "The name of the exchange, unique in the model",
    "unbiased_running_var": "Whether to apply Bessel's correction, M / max(M - 1, 1), to the running variance",
}
"""The documentation of the attributes of the ops, by name."""
