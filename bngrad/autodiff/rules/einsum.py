"""Einsum: the gradient of an operand is an Einsum of dY and the other operands, in the letters of the operand.

A letter that only the operand has is a sum, whose gradient is repeated. A letter that it has twice is a diagonal,
beside which the gradient is 0.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial, reduce
from string import ascii_letters
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.linear_map import identity
from bngrad.graph.shapes import dimension_of, shape_of
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

    Size: TypeAlias = int | str | None
    """A dimension: a number, the name of an unknown number, or None."""

_DOTS = "..."
_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


class _Factor(NamedTuple):
    """A factor of the gradient, and the letters of its dimensions."""

    value: ir.Value
    letters: str


class _Equation(NamedTuple):
    """An equation with letters for its ellipses, and with an output."""

    terms: list[str]
    output: str


@gradient("Einsum", inputs=None, versions=(12, 28), attributes={"equation": ANY})
def einsum(back: Backward) -> Gradients:
    """dX_k = Einsum(dY, all X but X_k), in the letters of X_k, as products of two."""
    equation = _read(back)
    return [
        _of_operand(back, equation, index) if back.needs(index) else None for index in range(len(equation.terms))
    ]


def _of_operand(back: Backward, equation: _Equation, index: int) -> ir.Value:
    term = equation.terms[index]
    letters = "".join(dict.fromkeys(term))
    factors = [
        _without_diagonals(back, _Factor(back.x(other), other_term))
        for other, other_term in enumerate(equation.terms)
        if other != index
    ]
    product = _Factor(back.dY, equation.output)
    while factors:
        factor = factors.pop(0)
        product = _product(
            back, product, factor, {*letters, *(letter for rest in factors for letter in rest.letters)}
        )
    common = "".join(letter for letter in letters if letter in product.letters)
    result = _ordered(back, _summed(back, product, common), common).value
    if common != letters:
        alone = [place for place, letter in enumerate(letters) if letter not in common]
        result = back.op("Unsqueeze", result, back.int64(alone))
    return _resized(back, result, equation, index)


def _product(back: Backward, left: _Factor, right: _Factor, kept: Collection[str]) -> _Factor:
    """Returns the product of two factors, summed over the letters that are not kept.

    ONNX Runtime's Einsum ends the process where it transposes an empty operand itself. It does not if the letters
    are in the order of a product of matrices.
    """
    left, right = _summed(back, left, {*kept, *right.letters}), _summed(back, right, {*kept, *left.letters})
    both = [letter for letter in left.letters if letter in right.letters]
    batch = "".join(letter for letter in both if letter in kept)
    inner = "".join(letter for letter in both if letter not in kept)
    rows, columns = (
        "".join(letter for letter in factor.letters if letter not in both) for factor in (left, right)
    )
    left, right = _ordered(back, left, batch + rows + inner), _ordered(back, right, batch + inner + columns)
    output = batch + rows + columns
    equation = f"{left.letters},{right.letters}->{output}"
    return _Factor(back.op("Einsum", left.value, right.value, equation=equation), output)


def _summed(back: Backward, factor: _Factor, kept: Collection[str]) -> _Factor:
    axes = [axis for axis, letter in enumerate(factor.letters) if letter not in kept]
    if not axes:
        return factor
    letters = "".join(letter for letter in factor.letters if letter in kept)
    return _Factor(back.op("ReduceSum", factor.value, back.int64(axes), keepdims=0), letters)


def _ordered(back: Backward, factor: _Factor, letters: str) -> _Factor:
    if factor.letters == letters:
        return factor
    perm = [factor.letters.index(letter) for letter in letters]
    return _Factor(back.op("Transpose", factor.value, perm=perm), letters)


def _without_diagonals(back: Backward, factor: _Factor) -> _Factor:
    letters = "".join(dict.fromkeys(factor.letters))
    if letters == factor.letters:
        return factor
    return _Factor(back.op("Einsum", factor.value, equation=f"{factor.letters}->{letters}"), letters)


def _resized(back: Backward, result: ir.Value, equation: _Equation, index: int) -> ir.Value:
    """Sums a gradient where the operand has size 1, repeats it where it has 1 itself, and puts it on diagonals."""
    x, term = back.x(index), equation.terms[index]
    letters = dict.fromkeys(term)
    sums, unknown, repeated = [], False, False
    for place, letter in enumerate(letters):
        mine = _size(x, term.index(letter))
        its = _broadcast(_sizes(back, equation, letter, without=None if letter in equation.output else index))
        if mine is not None and mine == its:
            continue
        if mine == 1:
            sums.append(place)
        elif its == 1:
            repeated = True
        else:
            unknown = True
    if unknown:
        shape = back.op("Gather", back.op("Shape", x), back.int64([term.index(letter) for letter in letters]))
        ones = back.op("NonZero", back.op("Equal", shape, back.int64(1)))
        axes = back.op("Reshape", ones, back.int64([-1]))
        result = back.op("ReduceSum", result, axes, keepdims=1, noop_with_empty_axes=1)
    elif sums:
        result = back.op("ReduceSum", result, back.int64(sums), keepdims=1)
    result = _on_diagonal(back, result, x, term)
    # Last: ONNX Runtime leaves out an Expand before a product, even if it makes a dimension 0.
    return back.op("Expand", result, shape_of(back, x)) if unknown or repeated else result


def _on_diagonal(back: Backward, result: ir.Value, x: ir.Value, term: str) -> ir.Value:
    """Puts a gradient with a dimension for each letter of a term on the diagonals of zeros."""
    again = [place for place, letter in enumerate(term) if letter in term[:place]]
    if not again:
        return result
    masks = []
    for place in again:
        first = term.index(term[place])
        mask = back.op("Cast", identity(back, dimension_of(back, x, first)), to=int(ir.DataType.BOOL))
        rest = [other for other in range(len(term)) if other not in (first, place)]
        masks.append(back.op("Unsqueeze", mask, back.int64(rest)) if rest else mask)
    return back.kept(reduce(partial(back.op, "And"), masks), back.op("Unsqueeze", result, back.int64(again)))


def _sizes(back: Backward, equation: _Equation, letter: str, *, without: int | None = None) -> set[Size]:
    """Returns the sizes of a letter in the operands, one of which may be left out."""
    return {
        _size(back.x(index), term.index(letter))
        for index, term in enumerate(equation.terms)
        if letter in term and index != without
    }


def _size(value: ir.Value, axis: int) -> Size:
    size = None if value.shape is None or axis >= len(value.shape) else value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else size


def _broadcast(sizes: Iterable[Size]) -> Size:
    """Returns what sizes are broadcast to; None if that is not known."""
    longer = {size for size in sizes if size != 1}
    numbers = [size for size in longer if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return 1 if not longer else longer.pop() if len(longer) == 1 else None


def _read(back: Backward) -> _Equation:
    """Returns the equation of the node; refuses one that ONNX does not define."""
    text = back.attribute("equation", "").replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(back.node.inputs) or not all(map(_TERM.fullmatch, (*terms, output))):
        back.refuse(f"its equation is {text!r}; expected a term of letters for each of its inputs")
    operands = [back.x(index) for index in range(len(terms))]
    free = [letter for letter in reversed(ascii_letters) if letter not in text]
    lengths = [
        back.rank(x) - len(term) + len(_DOTS) if _DOTS in term else 0
        for x, term in zip(operands, terms, strict=True)
    ]
    dots = "".join(free[: max(lengths)])
    if min(lengths) < 0 or len(dots) < max(lengths):
        back.refuse(f"its equation is {text!r}; expected as many letters as its inputs have dimensions")
    if not arrow:
        counts = Counter(left.replace(_DOTS, "").replace(",", ""))
        output = dots + "".join(sorted(letter for letter, count in counts.items() if count == 1))
    elif dots and _DOTS not in output:
        back.refuse(f"its equation is {text!r}; expected an ellipsis in the output, too")
    terms = [term.replace(_DOTS, dots[len(dots) - length :]) for term, length in zip(terms, lengths, strict=True)]
    output = output.replace(_DOTS, dots)
    if len(set(output)) < len(output) or not set(output) <= set("".join(terms)):
        back.refuse(f"its equation is {text!r}; expected each letter of the output once, and in an input")
    equation = _Equation(terms, output)
    for letter in set("".join(terms)) - set(dots):
        if len(sizes := _sizes(back, equation, letter) - {None}) > 1 and 1 in sizes:
            # Shape inference takes the first size, so that nodes around this one would have wrong gradients.
            back.refuse(f"the sizes of {letter!r} in its equation {text!r} are {sizes}; expected equal ones")
    return equation
