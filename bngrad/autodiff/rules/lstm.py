"""Gradient of LSTM, by backpropagation through time.

As in `recurrent`, the gates of all steps are computed at once. The op does not return the cells, so another Scan
recomputes them; with peepholes it also computes the gates that the next cell needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.autodiff.recurrence import Body, combined, directions, of_weights, with_lengths, zeros
from bngrad.autodiff.recurrent_activations import activations_of
from bngrad.autodiff.rule import gradient
from bngrad.autodiff.rules.recurrent import ATTRIBUTES
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import FLAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.recurrence import Direction
    from bngrad.autodiff.recurrent_activations import Activation
    from bngrad.autodiff.rule import Gradients
    from bngrad.graph.builder import NodeMaker

_PEEPHOLES = 7


@gradient(
    "LSTM",
    inputs=(0, 1, 2, 3, 5, 6, 7),
    versions=(14, 22),
    attributes={**ATTRIBUTES, "input_forget": FLAG},
)
def lstm(back: Backward) -> Gradients:
    """dX, dW, dR, dB, dP and the gradients of the first states.

    For each step, with i, o, f and g the activations of their sums, C' = f C + i g and H' = o h(C')::

    dH' = dY + dH                              dC' = dC + dH' o h'(C') + dO Po
    d of the sums = dC' g i', dH' h(C') o', dC' C f', dC' i g'
    dH = (d of the sums) R                     dC = dC' f + dI Pi + dF Pf

    Peepholes Pi, Pf are factors of C in the sums of i and f, and Po of C' in that of o: dPi = dI C, dPf = dF C,
    dPo = dO C'. Coupled gates have f = 1 - i, so that dI = dC' (g - C) i' and dF = 0.
    """
    own = directions(back)
    activations = activations_of(back, ("Sigmoid", "Tanh", "Tanh"), len(own))
    return combined(back, [_gradients(*pair) for pair in zip(own, activations, strict=True)])


class _Sums(NamedTuple):
    """The sums of the gates; at first without the peepholes."""

    i: ir.Value
    o: ir.Value
    f: ir.Value
    g: ir.Value


class _Peepholes(NamedTuple):
    """Factors of the cells."""

    i: ir.Value
    o: ir.Value
    f: ir.Value


def _gradients(direction: Direction, activations: Sequence[Activation]) -> dict[str, ir.Value]:
    back = direction.back
    x, w, r = direction.data(), direction.own(back.x(1)), direction.own(back.x(2))
    first_h, after = direction.states()
    first_c = direction.optional(6, first_h)
    h = direction.before(first_h, after)
    bias_w, bias_r = direction.biases(2)
    both = back.op("Add", direction.linear(x, w, bias_w), direction.linear(h, r, bias_r))
    sums = _Sums(*back.outputs_of("Split", both, outputs=_Sums._fields, axis=-1, num_outputs=4))
    peepholes = None
    if back.has(_PEEPHOLES):
        parts = [f"peephole_{gate}" for gate in _Peepholes._fields]
        own = direction.own(back.x(_PEEPHOLES))
        peepholes = _Peepholes(*back.outputs_of("Split", own, outputs=parts, axis=0, num_outputs=3))

    f, g, h_of_c = activations[0], activations[1], activations[2].without_clip()
    is_coupled = bool(back.attribute("input_forget", 0))
    new = g.value(back, sums.g)
    if peepholes is None:
        i = f.value(back, sums.i)
        kept = _kept(back, f, i, sums.f, is_coupled=is_coupled)
        after_c = _cells(direction, first_c, kept, back.op("Mul", i, new))
        c = direction.before(first_c, after_c)
    else:
        after_c = _cells_with_peepholes(direction, first_c, f, sums, new, peepholes, is_coupled=is_coupled)
        c = direction.before(first_c, after_c)
        sums = _Sums(
            _plus(back, sums.i, c, peepholes.i),
            _plus(back, sums.o, after_c, peepholes.o),
            _plus(back, sums.f, c, peepholes.f),
            sums.g,
        )
        i = f.value(back, sums.i)
        kept = _kept(back, f, i, sums.f, is_coupled=is_coupled)
    o, bent = f.value(back, sums.o), h_of_c.value(back, after_c)

    into_i = back.op("Mul", back.op("Sub", new, c) if is_coupled else new, f.slope(back, sums.i, i))
    into_o = back.op("Mul", bent, f.slope(back, sums.o, o))
    into_f = zeros(back, c) if is_coupled else back.op("Mul", c, f.slope(back, sums.f, kept))
    factors = [into_i, into_o, into_f, back.op("Mul", i, g.slope(back, sums.g, new))]
    through, keep = back.op("Mul", o, h_of_c.slope(back, after_c, bent)), kept
    if peepholes is not None:
        through = _plus(back, through, into_o, peepholes.o)
        keep = _plus(back, _plus(back, keep, into_i, peepholes.i), into_f, peepholes.f)
    dH, dC, d = _through_time(direction, after, r, [through, keep, *factors])
    results = {**of_weights(direction, x, h, d, d, w), "h": dH, "c": dC}
    if peepholes is not None and back.needs(_PEEPHOLES):
        dI, dO, dF, _ = back.outputs_of("Split", d, outputs=["di", "do", "df", "dg"], axis=-1, num_outputs=4)
        pairs = [back.op("Mul", *pair) for pair in ((dI, c), (dO, after_c), (dF, c))]
        results["p"] = back.op("ReduceSum", back.op("Concat", *pairs, axis=-1), back.int64([0, 1]), keepdims=0)
    return results


def _through_time(
    direction: Direction, after: ir.Value, r: ir.Value, factors: Sequence[ir.Value]
) -> Sequence[ir.Value]:
    """Returns the gradients of the first states, and of all sums.

    Args:
        direction: The direction.
        after: The hidden states after all steps.
        r: The recurrent weights.
        factors: The derivative of C' by H', that of the cell before by C', and those of the four sums.
    """
    back = direction.back
    dY, dH = direction.of_states(after)
    dC = direction.of_last(back.all_dY[2] if len(back.all_dY) > 2 else None, after)
    body = Body(back.names, f"{back.node.name}_Grad/step")
    words = ("dh", "dc", "dy", "through", "keep", "i", "o", "f", "g")
    next_dh, next_dc, dy, through, keep, *of_sums = (body.input(word, back.x(0)) for word in words)
    goes_on = body.going(direction)
    dh = body.op("Add", dy, next_dh)
    dc = body.op("Add", next_dc, body.op("Mul", dh, through))
    incoming = (dc, dh, dc, dc)
    d_sums = body.op("Concat", *(body.op("Mul", *pair) for pair in zip(incoming, of_sums, strict=True)), axis=-1)
    d_sums = body.zero_where_over(goes_on, d_sums, back.x(0))
    outputs = [
        body.where(goes_on, body.op("MatMul", d_sums, r), next_dh),
        body.where(goes_on, body.op("Mul", dc, keep), next_dc),
        body.op("Identity", d_sums),
    ]
    return body.scan(back, [dH, dC], with_lengths(direction, [dY, *factors]), outputs, reverse=True)


def _kept(make: NodeMaker, f: Activation, i: ir.Value, total: ir.Value, *, is_coupled: bool) -> ir.Value:
    """Returns the forget gate: 1 - i if the gates are coupled."""
    return make.op("Sub", like(make, 1, f.data), i) if is_coupled else f.value(make, total)


def _plus(make: NodeMaker, total: ir.Value, cell: ir.Value, factor: ir.Value) -> ir.Value:
    return make.op("Add", total, make.op("Mul", cell, factor))


def _cells(direction: Direction, first: ir.Value, keep: ir.Value, new: ir.Value) -> ir.Value:
    """Computes the cells after all steps: C' = keep C + new."""
    back = direction.back
    body = Body(back.names, f"{back.node.name}_Grad/cell")
    c, kept, added = (body.input(name, back.x(0)) for name in ("c", "kept", "added"))
    goes_on = body.going(direction)
    result = body.where(goes_on, body.op("Add", body.op("Mul", kept, c), added), c)
    return _scanned(direction, body, first, [keep, new], result)


def _cells_with_peepholes(
    direction: Direction,
    first: ir.Value,
    activation: Activation,
    sums: _Sums,
    new: ir.Value,
    peepholes: _Peepholes,
    *,
    is_coupled: bool,
) -> ir.Value:
    """Computes the cells after all steps: C' = f C + i g, where i and f depend on C."""
    back = direction.back
    body = Body(back.names, f"{back.node.name}_Grad/cell")
    c, of_i, of_f, g = (body.input(name, back.x(0)) for name in ("c", "i", "f", "g"))
    goes_on = body.going(direction)
    i = activation.value(body, _plus(body, of_i, c, peepholes.i))
    kept = _kept(body, activation, i, _plus(body, of_f, c, peepholes.f), is_coupled=is_coupled)
    result = body.where(goes_on, body.op("Add", body.op("Mul", kept, c), body.op("Mul", i, g)), c)
    return _scanned(direction, body, first, [sums.i, sums.f, new], result)


def _scanned(
    direction: Direction, body: Body, first: ir.Value, sequences: Sequence[ir.Value], cell: ir.Value
) -> ir.Value:
    """Makes the Scan over the cells."""
    outputs = [cell, body.op("Identity", cell)]
    return body.scan(direction.back, [first], with_lengths(direction, sequences), outputs, reverse=False)[1]
