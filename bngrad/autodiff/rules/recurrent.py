"""Gradients of LSTM and GRU, by backpropagation through time.

The forward op returns the hidden states of all steps, so that the gates of all steps follow at once, by matrix
products over the whole sequence. Only what a step takes from the next one is computed step by step, by a Scan from
the last step to the first: the gradient with respect to the hidden state, and to the cell of an LSTM, whose states
the op does not return and another Scan computes anew.

H is the state before a step, s the logistic function, and dH, dC what comes back from the step behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.builder import NodeMaker
from bngrad.graph.node_reader import dtype_of, like
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients
    from bngrad.graph.fresh_names import Names
    from bngrad.opset.op_attributes import Attributes

_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Whether each direction goes from the last step to the first."""

_ATTRIBUTES: Attributes = {
    "direction": tuple(_REVERSED),
    "hidden_size": ANY,
    "layout": (0,),
    **dict.fromkeys(("activations", "activation_alpha", "activation_beta", "clip"), ANY),  # see `_refuse`
}
_INPUTS = ("x", "w", "r", "b", "lengths", "h", "c")


class _Direction(NamedTuple):
    """One direction of a node, with the sequence in the order of its steps."""

    back: Backward
    number: int
    is_reversed: bool

    def sequence(self, value: ir.Value) -> ir.Value:
        """A value of each step, along axis 0, in the order of the steps; and back."""
        return _flipped(self.back, value) if self.is_reversed else value

    def own(self, value: ir.Value, axis: int = 0) -> ir.Value:
        """The part of a value that is of this direction."""
        return self.back.op("Gather", value, self.back.int64(self.number), axis=axis)

    def optional(self, index: int, like_this: ir.Value) -> ir.Value:
        """The part of an optional input; zeros where it is left out."""
        return self.own(self.back.x(index)) if self.back.has(index) else _zeros(self.back, like_this)

    def states(self) -> ir.Value:
        """The hidden states after all steps, [T, N, H]."""
        return self.sequence(self.own(self.back.y(0), axis=1))

    def before(self, first: ir.Value, states: ir.Value) -> ir.Value:
        """The states before all steps: the first one, and those after all steps but the last."""
        back = self.back
        first = back.op("Unsqueeze", first, back.int64([0]))
        rest = back.op("Slice", states, *(back.int64([number]) for number in (0, -1, 0)))
        return back.op("Concat", first, rest, axis=0)

    def from_behind(self, states: ir.Value) -> tuple[ir.Value, ir.Value]:
        """What comes back to the hidden states of all steps, and once more to the last."""
        dY, dY_h, *_ = (*self.back.all_dY, None)
        of_all = _zeros(self.back, states) if dY is None else self.sequence(self.own(dY, axis=1))
        return of_all, self.of_last(dY_h, states)

    def of_last(self, gradient: ir.Value | None, states: ir.Value) -> ir.Value:
        """What comes back to the state after the last step, [N, H]."""
        if gradient is not None:
            return self.own(gradient)
        return _zeros(self.back, self.back.op("Gather", states, self.back.int64(0), axis=0))

    def linear(self, value: ir.Value, weights: ir.Value, bias: ir.Value | None) -> ir.Value:
        """The product of a sequence with transposed weights, and a bias."""
        product = self.back.op("MatMul", value, self.back.op("Transpose", weights, perm=[1, 0]))
        return product if bias is None else self.back.op("Add", product, bias)

    def biases(self, count: int) -> Sequence[ir.Value | None]:
        """The two biases, or parts of them."""
        if not self.back.has(3):
            return [None] * count
        names = [f"bias_{index}" for index in range(count)]
        return self.back.outputs_of("Split", self.own(self.back.x(3)), outputs=names, axis=0, num_outputs=count)


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
    _refuse(back, ("Sigmoid", "Tanh", "Tanh"))
    parts = [_lstm_direction(_Direction(back, *each)) for each in enumerate(_REVERSED[_direction(back)])]
    return _combined(back, parts)


def _lstm_direction(one: _Direction) -> dict[str, ir.Value]:
    back = one.back
    x, after = one.sequence(back.x(0)), one.states()
    w, r = one.own(back.x(1)), one.own(back.x(2))
    some_state = back.op("Gather", after, back.int64(0), axis=0)
    first_h, first_c = (one.optional(index, some_state) for index in (5, 6))
    h = one.before(first_h, after)
    bias_w, bias_r = one.biases(2)
    sums = back.op("Add", one.linear(x, w, bias_w), one.linear(h, r, bias_r))
    pre = back.outputs_of("Split", sums, outputs=["i", "o", "f", "g"], axis=-1, num_outputs=4)
    i, o, f = (back.op("Sigmoid", value) for value in pre[:3])
    g = back.op("Tanh", pre[3])
    after_c = _cells(back, first_c, f, back.op("Mul", i, g))
    c, bent = one.before(first_c, after_c), back.op("Tanh", after_c)

    dY, dH = one.from_behind(after)
    dC = one.of_last(back.all_dY[2] if len(back.all_dY) > 2 else None, after)
    factors = [
        back.op("Mul", g, _slope(back, i)),
        back.op("Mul", bent, _slope(back, o)),
        back.op("Mul", c, _slope(back, f)),
        back.op("Mul", i, _bend(back, g)),
    ]
    body = _Body(back.names, f"{back.node.name}_Grad/step")
    dh, dc, dy, through, keep, *of_sums = (
        body.input(name, back.x(0)) for name in ("dh", "dc", "dy", "through", "keep", "i", "o", "f", "g")
    )
    dh = body.op("Add", dy, dh)
    dc = body.op("Add", dc, body.op("Mul", dh, through))
    behind = (dc, dh, dc, dc)
    d_sums = body.op("Concat", *(body.op("Mul", *pair) for pair in zip(behind, of_sums, strict=True)), axis=-1)
    outputs = [body.op("MatMul", d_sums, r), body.op("Mul", dc, keep), body.op("Identity", d_sums)]
    sequences = [dY, back.op("Mul", o, _bend(back, bent)), f, *factors]
    dH, dC, d = body.scan(back, [dH, dC], sequences, outputs, reverse=True)
    return {**_of_weights(one, x, h, d, d, w), "h": dH, "c": dC}


def _cells(back: Backward, first: ir.Value, keep: ir.Value, new: ir.Value) -> ir.Value:
    """The cells after all steps: C' = keep C + new."""
    body = _Body(back.names, f"{back.node.name}_Grad/cell")
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
    _refuse(back, ("Sigmoid", "Tanh"))
    parts = [_gru_direction(_Direction(back, *each)) for each in enumerate(_REVERSED[_direction(back)])]
    return _combined(back, parts)


def _gru_direction(one: _Direction) -> dict[str, ir.Value]:
    back = one.back
    x, after = one.sequence(back.x(0)), one.states()
    w, weights_r = one.own(back.x(1)), one.own(back.x(2))
    some_state = back.op("Gather", after, back.int64(0), axis=0)
    h = one.before(one.optional(5, some_state), after)
    bias_w, bias_r = one.biases(2)
    linear_first = bool(back.attribute("linear_before_reset", 0))

    of_x = back.outputs_of("Split", one.linear(x, w, bias_w), outputs=["xz", "xr", "xn"], axis=-1, num_outputs=3)
    of_h = back.outputs_of(
        "Split", one.linear(h, weights_r, bias_r), outputs=["hz", "hr", "hn"], axis=-1, num_outputs=3
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
        own = one.linear(reset, rn, bias_n)
    n = back.op("Tanh", back.op("Add", of_x[2], own))

    dY, dH = one.from_behind(after)
    to_n = back.op("Mul", back.op("Sub", like(back, 1, back.x(0)), z), _bend(back, n))
    to_z = back.op("Mul", back.op("Sub", h, n), _slope(back, z))
    to_r = back.op("Mul", of_h[2] if linear_first else h, _slope(back, r))
    body = _Body(back.names, f"{back.node.name}_Grad/step")
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
        found = _of_weights(one, x, h, d, recurrent, w)
    else:
        found = _of_weights(one, x, h, d, d, w)
        gates = _outer(back, back.op("Concat", dz, dr, axis=-1), h)
        found["r"] = back.op("Concat", gates, _outer(back, dn, reset), axis=0)
    return {**found, "h": dH}


class _Body(NodeMaker):
    """The nodes of one step of a Scan; values of the main graph may be read, too.

    Args:
        names: The names of the model.
        prefix: What all names begin with.
    """

    def __init__(self, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []

    def _place(self, node: ir.Node) -> None:
        self._nodes.append(node)

    def input(self, what: str, like_this: ir.Value) -> ir.Value:
        """The next input: the states, then the elements of the sequences."""
        value = ir.Value(name=self.names.fresh(f"{self._prefix}_{what}"), type=ir.TensorType(dtype_of(like_this)))
        self._inputs.append(value)
        return value

    def scan(
        self,
        back: Backward,
        states: Sequence[ir.Value],
        sequences: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        *,
        reverse: bool,
    ) -> Sequence[ir.Value]:
        """Makes the Scan, and returns the last states and the sequences of its outputs.

        The order is reversed by Slices: onnx's reference evaluator has no Scan from the end.

        Args:
            back: Where it goes.
            states: The first states.
            sequences: What each step reads an element of.
            outputs: Of the body: the next states, and the elements of the sequences that it makes.
            reverse: Whether the steps go from the end of all sequences to their beginning.
        """
        graph = ir.Graph(self._inputs, outputs, nodes=self._nodes, name=self.names.fresh(f"{self._prefix}_body"))
        if reverse:
            sequences = [_flipped(back, value) for value in sequences]
        made = back.outputs_of(
            "Scan",
            *states,
            *sequences,
            outputs=[f"scan_{index}" for index in range(len(outputs))],
            body=graph,
            num_scan_inputs=len(sequences),
        )
        count = len(states)
        return [*made[:count], *(_flipped(back, value) if reverse else value for value in made[count:])]


def _direction(back: Backward) -> str:
    return str(back.attribute("direction", "forward"))


def _refuse(back: Backward, activations: Sequence[str]) -> None:
    if back.has(4):
        back.refuse("it has sequence_lens; expected sequences of the same length, without it")
    if "clip" in back.node.attributes:
        back.refuse("it has clip; expected none")
    found = back.attribute("activations", None)
    wanted = list(activations) * len(_REVERSED[_direction(back)])
    if found is not None and [str(name).lower() for name in found] != [name.lower() for name in wanted]:
        back.refuse(f"it has activations {', '.join(map(str, found))}; expected {', '.join(wanted)}")


def _flipped(back: Backward, value: ir.Value) -> ir.Value:
    """A sequence in the opposite order of its steps."""
    end = np.iinfo(np.int64).min
    return back.op("Slice", value, *(back.int64([number]) for number in (-1, end, 0, -1)))


def _zeros(back: Backward, value: ir.Value) -> ir.Value:
    zero = ir.tensor(np.zeros(1, dtype_of(back.x(0)).numpy()), dtype=dtype_of(back.x(0)))
    return back.op("ConstantOfShape", back.op("Shape", value), value=zero)


def _slope(back: Backward, y: ir.Value) -> ir.Value:
    """The derivative of the logistic function: y (1 - y)."""
    return back.op("Mul", y, back.op("Sub", like(back, 1, back.x(0)), y))


def _bend(back: Backward, y: ir.Value) -> ir.Value:
    """The derivative of tanh: 1 - y^2."""
    return back.op("Sub", like(back, 1, back.x(0)), back.op("Mul", y, y))


def _outer(back: Backward, d: ir.Value, value: ir.Value) -> ir.Value:
    """The sum of the outer products over all steps and samples."""
    d, value = (back.op("Flatten", each, axis=2) for each in (d, value))
    return back.op("MatMul", back.op("Transpose", d, perm=[1, 0]), value)


def _of_weights(
    one: _Direction, x: ir.Value, h: ir.Value, of_x: ir.Value, of_h: ir.Value, w: ir.Value
) -> dict[str, ir.Value]:
    """The gradients of the input, the weights and the biases, from those of the sums with x and with H."""
    back = one.back
    biases = [back.op("ReduceSum", d, back.int64([0, 1]), keepdims=0) for d in (of_x, of_h)]
    return {
        "x": one.sequence(back.op("MatMul", of_x, w)),
        "w": _outer(back, of_x, x),
        "r": _outer(back, of_h, h),
        "b": back.op("Concat", *biases, axis=0),
    }


def _combined(back: Backward, parts: Sequence[dict[str, ir.Value]]) -> Gradients:
    """The gradients of the inputs: of x the sum over the directions, of the others one of each."""
    gradients: list[ir.Value | None] = []
    for index, name in enumerate(_INPUTS[: len(back.node.inputs)]):
        if not back.needs(index):
            gradients.append(None)
        elif index == 0:
            values = [part[name] for part in parts]
            gradients.append(values[0] if len(values) == 1 else back.op("Add", *values))
        else:
            values = [back.op("Unsqueeze", part[name], back.int64([0])) for part in parts]
            gradients.append(values[0] if len(values) == 1 else back.op("Concat", *values, axis=0))
    return gradients + [None] * (len(back.node.inputs) - len(gradients))
