"""Gradients of GRU and RNN, by backpropagation through time.

The forward op returns the hidden states of all steps, so the gates of all steps are computed at once, by matrix
products over the whole sequence. Only the gradients that a step takes from the next one are computed step by step,
by a Scan from the last step to the first.

H is the state before a step, f and g are the activations, and dH is the gradient from the next step. A prime at a
gate is the derivative of its activation, which is 0 where the sum is clipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.recurrence import (
    REVERSED,
    Body,
    combined,
    directions,
    of_weights,
    outer,
    with_lengths,
)
from bngrad.autodiff.recurrent_activations import activations_of
from bngrad.autodiff.rule import gradient
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.recurrence import Direction
    from bngrad.autodiff.recurrent_activations import Activation
    from bngrad.autodiff.rule import Gradients
    from bngrad.opset.op_attributes import Attributes

ATTRIBUTES: Attributes = {
    "direction": tuple(REVERSED),
    "hidden_size": ANY,
    "layout": (0,),  # `put_time_first` replaces the other one
    **dict.fromkeys(("activations", "activation_alpha", "activation_beta", "clip"), ANY),  # see `activations_of`
}


@gradient(
    "GRU",
    inputs=(0, 1, 2, 3, 5),
    versions=(14, 22),
    attributes={**ATTRIBUTES, "linear_before_reset": (0, 1)},
)
def gru(back: Backward) -> Gradients:
    """dX, dW, dR, dB and the gradient of the first state.

    For each step, with z, r = f of their sums, n = g of its own and H' = (1 - z) n + z H::

        dH' = dY + dH         d of the sums = dH' (H - n) z', dR r', dN = dH' (1 - z) n'

    n has the sum x Wn + r (H Rn + b) if linear_before_reset, which gives dR = dN (H Rn + b) and
    dH = dH' z + (dZ, dR) R + (dN r) Rn; else x Wn + (r H) Rn + b, which gives dR = (dN Rn) H and
    dH = dH' z + (dZ, dR) R + (dN Rn) r.
    """
    own = directions(back)
    activations = activations_of(back, ("Sigmoid", "Tanh"), len(own))
    return combined(back, [_gru_direction(*pair) for pair in zip(own, activations, strict=True)])


def _gru_direction(direction: Direction, activations: Sequence[Activation]) -> dict[str, ir.Value]:
    back, (f, g) = direction.back, activations
    x, w, weights_r = direction.data(), direction.own(back.x(1)), direction.own(back.x(2))
    first, after = direction.states()
    h = direction.before(first, after)
    bias_w, bias_r = direction.biases(2)
    linear_first = bool(back.attribute("linear_before_reset", 0))

    of_x = back.outputs_of(
        "Split", direction.linear(x, w, bias_w), outputs=["xz", "xr", "xn"], axis=-1, num_outputs=3
    )
    of_h = back.outputs_of(
        "Split", direction.linear(h, weights_r, bias_r), outputs=["hz", "hr", "hn"], axis=-1, num_outputs=3
    )
    rz, rr, rn = back.outputs_of("Split", weights_r, outputs=["rz", "rr", "rn"], axis=0, num_outputs=3)
    sum_z, sum_r = (back.op("Add", of_x[index], of_h[index]) for index in (0, 1))
    z, r = f.value(back, sum_z), f.value(back, sum_r)
    reset = back.op("Mul", r, h)
    if linear_first:
        own = back.op("Mul", r, of_h[2])
    else:
        bias_n = None
        if bias_r is not None:
            bias_n = back.outputs_of("Split", bias_r, outputs=["bz", "br", "bn"], axis=0, num_outputs=3)[2]
        own = direction.linear(reset, rn, bias_n)
    sum_n = back.op("Add", of_x[2], own)
    n = g.value(back, sum_n)

    dY, dH = direction.of_states(after)
    to_n = back.op("Mul", back.op("Sub", like(back, 1, back.x(0)), z), g.slope(back, sum_n, n))
    to_z = back.op("Mul", back.op("Sub", h, n), f.slope(back, sum_z, z))
    to_r = back.op("Mul", of_h[2] if linear_first else h, f.slope(back, sum_r, r))
    body = Body(back.names, f"{back.node.name}_Grad/step")
    next_dh, dy, keep, of_r, of_n, of_z, of_reset = (
        body.input(name, back.x(0)) for name in ("dh", "dy", "keep", "r", "n", "z", "reset")
    )
    goes_on = body.going(direction)
    dh = body.op("Add", dy, next_dh)
    dn, dz = body.op("Mul", dh, of_n), body.op("Mul", dh, of_z)
    if linear_first:
        d_own = body.op("MatMul", body.op("Mul", dn, of_r), rn)
        dr = body.op("Mul", dn, of_reset)
    else:
        d_reset = body.op("MatMul", dn, rn)
        d_own, dr = body.op("Mul", d_reset, of_r), body.op("Mul", d_reset, of_reset)
    d_gates = body.op("Add", body.op("MatMul", dz, rz), body.op("MatMul", dr, rr))
    before_dh = body.op("Add", body.op("Mul", dh, keep), body.op("Add", d_gates, d_own))
    d_sums = body.zero_where_over(goes_on, body.op("Concat", dz, dr, dn, axis=-1), back.x(0))
    sequences = with_lengths(direction, [dY, z, r, to_n, to_z, to_r])
    dH, d = body.scan(back, [dH], sequences, [body.where(goes_on, before_dh, next_dh), d_sums], reverse=True)
    dz, dr, dn = back.outputs_of("Split", d, outputs=["dz", "dr", "dn"], axis=-1, num_outputs=3)
    if linear_first:
        recurrent = back.op("Concat", dz, dr, back.op("Mul", dn, r), axis=-1)
        gradients = of_weights(direction, x, h, d, recurrent, w)
    else:
        gradients = of_weights(direction, x, h, d, d, w)
        gates = outer(back, back.op("Concat", dz, dr, axis=-1), h)
        gradients["r"] = back.op("Concat", gates, outer(back, dn, reset), axis=0)
    return {**gradients, "h": dH}


@gradient("RNN", inputs=(0, 1, 2, 3, 5), versions=(14, 22), attributes=ATTRIBUTES)
def rnn(back: Backward) -> Gradients:
    """dX, dW, dR, dB and the gradient of the first state.

    For each step, with H' = f(x W + H R + b)::

        dH' = dY + dH         d of the sum = dH' f'         dH = (d of the sum) R
    """
    own = directions(back)
    activations = activations_of(back, ("Tanh",), len(own))
    return combined(back, [_rnn_direction(*pair) for pair in zip(own, activations, strict=True)])


def _rnn_direction(direction: Direction, activations: Sequence[Activation]) -> dict[str, ir.Value]:
    back, (f,) = direction.back, activations
    x, w, r = direction.data(), direction.own(back.x(1)), direction.own(back.x(2))
    first, after = direction.states()
    h = direction.before(first, after)
    if f.needs_sum:
        bias_w, bias_r = direction.biases(2)
        total = back.op("Add", direction.linear(x, w, bias_w), direction.linear(h, r, bias_r))
        slope = f.slope(back, total, f.value(back, total))
    else:
        slope = f.slope(back, None, after)

    dY, dH = direction.of_states(after)
    body = Body(back.names, f"{back.node.name}_Grad/step")
    next_dh, dy, factor = (body.input(name, back.x(0)) for name in ("dh", "dy", "slope"))
    goes_on = body.going(direction)
    d_sum = body.op("Mul", body.op("Add", dy, next_dh), factor)
    d_sum = body.zero_where_over(goes_on, d_sum, back.x(0))
    outputs = [body.where(goes_on, body.op("MatMul", d_sum, r), next_dh), body.op("Identity", d_sum)]
    dH, d = body.scan(back, [dH], with_lengths(direction, [dY, slope]), outputs, reverse=True)
    return {**of_weights(direction, x, h, d, d, w), "h": dH}
