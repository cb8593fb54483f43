"""Gradients of LSTM, GRU and RNN, by backpropagation through time.

The forward op returns the hidden states of all steps, so the gates of all steps are computed at once, by matrix
products over the whole sequence. Only the gradients that a step takes from the next one are computed step by step,
by a Scan from the last step to the first: those with respect to the hidden state, and to the cell of an LSTM. The
op does not return the cells, so another Scan recomputes them.

H is the state before a step, s the logistic function, f the activation of an RNN, and dH, dC are the gradients
from the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.recurrence import REVERSED, Body, combined, directions, of_weights, outer
from bngrad.autodiff.rule import gradient
from bngrad.graph.node_reader import dtype_of, like
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.recurrence import Direction
    from bngrad.autodiff.rule import Gradients
    from bngrad.opset.op_attributes import Attributes

_ATTRIBUTES: Attributes = {
    "direction": tuple(REVERSED),
    "hidden_size": ANY,
    "layout": (0,),
    **dict.fromkeys(("activations", "activation_alpha", "activation_beta", "clip"), ANY),  # see `_refuse_others`
}


@gradient("LSTM", inputs=(0, 1, 2, 3, 5, 6), versions=(14, 22), attributes={**_ATTRIBUTES, "input_forget": (0,)})
def lstm(back: Backward) -> Gradients:
    """dX, dW, dR, dB and the gradients of the first states.

    For each step, with i, o, f = s of their sums, g = tanh of its own, C' = f C + i g and H' = o tanh C'::

    dH' = dY + dH                              dC' = dC + dH' o (1 - tanh^2 C')
    d of the sums = dC' g i (1 - i), dH' tanh C' o (1 - o), dC' C f (1 - f), dC' i (1 - g^2)
    dH = (d of the sums) R                     dC = dC' f
    """
    if back.has(7):
        back.refuse("it has peepholes; expected none")
    _refuse_others(back, ("Sigmoid", "Tanh", "Tanh"))
    parts = [_lstm_direction(direction) for direction in directions(back)]
    return combined(back, parts)


def _lstm_direction(direction: Direction) -> dict[str, ir.Value]:
    back = direction.back
    x, after = direction.sequence(back.x(0)), direction.states()
    w, r = direction.own(back.x(1)), direction.own(back.x(2))
    some_state = back.op("Gather", after, back.int64(0), axis=0)
    first_h, first_c = (direction.optional(index, some_state) for index in (5, 6))
    h = direction.before(first_h, after)
    bias_w, bias_r = direction.biases(2)
    sums = back.op("Add", direction.linear(x, w, bias_w), direction.linear(h, r, bias_r))
    pre = back.outputs_of("Split", sums, outputs=["i", "o", "f", "g"], axis=-1, num_outputs=4)
    i, o, f = (back.op("Sigmoid", value) for value in pre[:3])
    g = back.op("Tanh", pre[3])
    after_c = _cells(back, first_c, f, back.op("Mul", i, g))
    c, bent = direction.before(first_c, after_c), back.op("Tanh", after_c)

    dY, dH = direction.of_states(after)
    dC = direction.of_last(back.all_dY[2] if len(back.all_dY) > 2 else None, after)
    factors = [
        back.op("Mul", g, _slope(back, i)),
        back.op("Mul", bent, _slope(back, o)),
        back.op("Mul", c, _slope(back, f)),
        back.op("Mul", i, _bend(back, g)),
    ]
    body = Body(back.names, f"{back.node.name}_Grad/step")
    dh, dc, dy, through, keep, *of_sums = (
        body.input(name, back.x(0)) for name in ("dh", "dc", "dy", "through", "keep", "i", "o", "f", "g")
    )
    dh = body.op("Add", dy, dh)
    dc = body.op("Add", dc, body.op("Mul", dh, through))
    incoming = (dc, dh, dc, dc)
    d_sums = body.op("Concat", *(body.op("Mul", *pair) for pair in zip(incoming, of_sums, strict=True)), axis=-1)
    outputs = [body.op("MatMul", d_sums, r), body.op("Mul", dc, keep), body.op("Identity", d_sums)]
    sequences = [dY, back.op("Mul", o, _bend(back, bent)), f, *factors]
    dH, dC, d = body.scan(back, [dH, dC], sequences, outputs, reverse=True)
    return {**of_weights(direction, x, h, d, d, w), "h": dH, "c": dC}


def _cells(back: Backward, first: ir.Value, keep: ir.Value, new: ir.Value) -> ir.Value:
    """Computes the cells after all steps: C' = keep C + new."""
    body = Body(back.names, f"{back.node.name}_Grad/cell")
    c, kept, added = (body.input(name, back.x(0)) for name in ("c", "kept", "added"))
    result = body.op("Add", body.op("Mul", kept, c), added)
    return body.scan(back, [first], [keep, new], [result, body.op("Identity", result)], reverse=False)[1]


@gradient(
    "GRU",
    inputs=(0, 1, 2, 3, 5),
    versions=(14, 22),
    attributes={**_ATTRIBUTES, "linear_before_reset": (0, 1)},
)
def gru(back: Backward) -> Gradients:
    """dX, dW, dR, dB and the gradient of the first state.

    For each step, with z, r = s of their sums, n = tanh of its own and H' = (1 - z) n + z H::

        dH' = dY + dH         d of the sums = dH' (H - n) z (1 - z), dR r (1 - r), dN = dH' (1 - z) (1 - n^2)

    n has the sum x Wn + r (H Rn + b) if linear_before_reset, which gives dR = dN (H Rn + b) and
    dH = dH' z + (dZ, dR) R + (dN r) Rn; else x Wn + (r H) Rn + b, which gives dR = (dN Rn) H and
    dH = dH' z + (dZ, dR) R + (dN Rn) r.
    """
    _refuse_others(back, ("Sigmoid", "Tanh"))
    parts = [_gru_direction(direction) for direction in directions(back)]
    return combined(back, parts)


def _gru_direction(direction: Direction) -> dict[str, ir.Value]:
    back = direction.back
    x, after = direction.sequence(back.x(0)), direction.states()
    w, weights_r = direction.own(back.x(1)), direction.own(back.x(2))
    some_state = back.op("Gather", after, back.int64(0), axis=0)
    h = direction.before(direction.optional(5, some_state), after)
    bias_w, bias_r = direction.biases(2)
    linear_first = bool(back.attribute("linear_before_reset", 0))

    of_x = back.outputs_of(
        "Split", direction.linear(x, w, bias_w), outputs=["xz", "xr", "xn"], axis=-1, num_outputs=3
    )
    of_h = back.outputs_of(
        "Split", direction.linear(h, weights_r, bias_r), outputs=["hz", "hr", "hn"], axis=-1, num_outputs=3
    )
    rz, rr, rn = back.outputs_of("Split", weights_r, outputs=["rz", "rr", "rn"], axis=0, num_outputs=3)
    z, r = (back.op("Sigmoid", back.op("Add", of_x[index], of_h[index])) for index in (0, 1))
    reset = back.op("Mul", r, h)
    if linear_first:
        own = back.op("Mul", r, of_h[2])
    else:
        bias_n = None
        if bias_r is not None:
            bias_n = back.outputs_of("Split", bias_r, outputs=["bz", "br", "bn"], axis=0, num_outputs=3)[2]
        own = direction.linear(reset, rn, bias_n)
    n = back.op("Tanh", back.op("Add", of_x[2], own))

    dY, dH = direction.of_states(after)
    to_n = back.op("Mul", back.op("Sub", like(back, 1, back.x(0)), z), _bend(back, n))
    to_z = back.op("Mul", back.op("Sub", h, n), _slope(back, z))
    to_r = back.op("Mul", of_h[2] if linear_first else h, _slope(back, r))
    body = Body(back.names, f"{back.node.name}_Grad/step")
    dh, dy, keep, of_r, of_n, of_z, of_reset = (
        body.input(name, back.x(0)) for name in ("dh", "dy", "keep", "r", "n", "z", "reset")
    )
    dh = body.op("Add", dy, dh)
    dn, dz = body.op("Mul", dh, of_n), body.op("Mul", dh, of_z)
    if linear_first:
        d_own = body.op("MatMul", body.op("Mul", dn, of_r), rn)
        dr = body.op("Mul", dn, of_reset)
    else:
        d_reset = body.op("MatMul", dn, rn)
        d_own, dr = body.op("Mul", d_reset, of_r), body.op("Mul", d_reset, of_reset)
    d_gates = body.op("Add", body.op("MatMul", dz, rz), body.op("MatMul", dr, rr))
    next_dh = body.op("Add", body.op("Mul", dh, keep), body.op("Add", d_gates, d_own))
    d_sums = body.op("Concat", dz, dr, dn, axis=-1)
    dH, d = body.scan(back, [dH], [dY, z, r, to_n, to_z, to_r], [next_dh, d_sums], reverse=True)
    dz, dr, dn = back.outputs_of("Split", d, outputs=["dz", "dr", "dn"], axis=-1, num_outputs=3)
    if linear_first:
        recurrent = back.op("Concat", dz, dr, back.op("Mul", dn, r), axis=-1)
        gradients = of_weights(direction, x, h, d, recurrent, w)
    else:
        gradients = of_weights(direction, x, h, d, d, w)
        gates = outer(back, back.op("Concat", dz, dr, axis=-1), h)
        gradients["r"] = back.op("Concat", gates, outer(back, dn, reset), axis=0)
    return {**gradients, "h": dH}


@gradient("RNN", inputs=(0, 1, 2, 3, 5), versions=(14, 22), attributes=_ATTRIBUTES)
def rnn(back: Backward) -> Gradients:
    """dX, dW, dR, dB and the gradient of the first state.

    For each step, with H' = f(x W + H R + b)::

        dH' = dY + dH         d of the sum = dH' f'         dH = (d of the sum) R
    """
    _refuse_lengths_and_clip(back)
    node_directions = directions(back)
    activations = list(map(str, back.attribute("activations", None) or ["Tanh"] * len(node_directions)))
    if len(activations) != len(node_directions) or not set(activations) <= _SLOPES.keys():
        back.refuse(
            f"it has activations {', '.join(activations)}; expected one of Tanh, Relu and Sigmoid per direction"
        )
    return combined(back, [_rnn_direction(*pair) for pair in zip(node_directions, activations, strict=True)])


def _rnn_direction(direction: Direction, activation: str) -> dict[str, ir.Value]:
    back = direction.back
    x, after = direction.sequence(back.x(0)), direction.states()
    w, r = direction.own(back.x(1)), direction.own(back.x(2))
    h = direction.before(direction.optional(5, back.op("Gather", after, back.int64(0), axis=0)), after)

    dY, dH = direction.of_states(after)
    body = Body(back.names, f"{back.node.name}_Grad/step")
    dh, dy, slope = (body.input(name, back.x(0)) for name in ("dh", "dy", "slope"))
    d_sum = body.op("Mul", body.op("Add", dy, dh), slope)
    outputs = [body.op("MatMul", d_sum, r), body.op("Identity", d_sum)]
    dH, d = body.scan(back, [dH], [dY, _SLOPES[activation](back, after)], outputs, reverse=True)
    return {**of_weights(direction, x, h, d, d, w), "h": dH}


def _refuse_others(back: Backward, activations: Sequence[str]) -> None:
    """Refuses attributes and inputs for which LSTM and GRU have no gradient."""
    _refuse_lengths_and_clip(back)
    actual = back.attribute("activations", None)
    expected = list(activations) * len(directions(back))
    if actual is not None and [str(name).lower() for name in actual] != [name.lower() for name in expected]:
        back.refuse(f"it has activations {', '.join(map(str, actual))}; expected {', '.join(expected)}")


def _refuse_lengths_and_clip(back: Backward) -> None:
    if back.has(4):
        back.refuse("it has sequence_lens; expected sequences of the same length, without it")
    if "clip" in back.node.attributes:
        back.refuse("it has clip; expected none")


def _slope(back: Backward, y: ir.Value) -> ir.Value:
    """The derivative of the logistic function: y (1 - y)."""
    return back.op("Mul", y, back.op("Sub", like(back, 1, back.x(0)), y))


def _bend(back: Backward, y: ir.Value) -> ir.Value:
    """The derivative of tanh: 1 - y^2."""
    return back.op("Sub", like(back, 1, back.x(0)), back.op("Mul", y, y))


def _step(back: Backward, y: ir.Value) -> ir.Value:
    """The derivative of ReLU: 1 where y is positive, else 0."""
    return back.op("Cast", back.op("Greater", y, like(back, 0, back.x(0))), to=int(dtype_of(back.x(0))))


_SLOPES = {"Tanh": _bend, "Sigmoid": _slope, "Relu": _step}
"""The derivative of each activation of an RNN, from its output."""
