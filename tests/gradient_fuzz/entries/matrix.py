"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def matmul(b: Sketch) -> list[Value]:
    x = b.any(1)
    inner = x.shape[-1]
    kind = b.draw.randrange(4)
    if kind == 0:
        y = b.of_shape((inner,))
    elif kind == 1 or x.rank < 3:
        y = b.of_shape((inner, b.dim(1, 3)))
    else:
        y = b.of_shape((*b.broadcast_with(x.shape[:-2]), inner, b.dim(1, 3)))
    if x.rank > 1 and x.shape[-1] == x.shape[-2] and b.draw.chance(0.3):
        y = x
    return b.emit("MatMul", [x, y])


def gemm(b: Sketch) -> list[Value]:
    a = b.any(2, 2)
    turned, turned_b = b.draw.choice([0, 1]), b.draw.choice([0, 1])
    rows, inner = a.shape[::-1] if turned else a.shape
    columns = b.dim(1, 3)
    other = b.of_shape((columns, inner) if turned_b else (inner, columns))
    c = None if b.draw.chance(0.3) else b.of_shape(b.broadcast_to((rows, columns)))
    return b.emit(
        "Gemm",
        [a, other, c],
        alpha=b.maybe(b.draw.choice([0.5, 2.0, -1.0, 0.0])),
        beta=b.maybe(b.draw.choice([0.5, 2.0, -1.0, 0.0])),
        transA=b.maybe(turned) if not turned else 1,
        transB=b.maybe(turned_b) if not turned_b else 1,
    )


def einsum(b: Sketch) -> list[Value]:
    sizes = {letter: b.dim(1, 3) for letter in "abcd"}
    dots = [b.dim(1, 2) for _ in range(b.draw.choice([0, 0, 1, 2]))]
    terms, operands = [], []
    for _ in range(b.draw.choice([1, 2, 2, 3])):
        letters = [b.draw.choice("abcd") for _ in range(b.draw.randint(0 if dots else 1, 3))]
        # A dimension of 1 is repeated; on a diagonal both must be equal.
        lone = {letter for letter in letters if letters.count(letter) == 1}
        shape = [1 if letter in lone and b.draw.chance(0.1) else sizes[letter] for letter in letters]
        place = b.draw.randint(0, len(letters)) if dots and b.draw.chance(0.7) else None
        if place is not None:
            shape[place:place] = [1 if b.draw.chance(0.2) else size for size in dots]
            letters.insert(place, "...")
        terms.append("".join(letters))
        operands.append(b.of_shape(shape))
    equation = ",".join(terms)
    if b.draw.chance(0.8):
        letters = sorted(set(equation) - set(".,"))
        output = b.draw.sample(letters, b.draw.randint(0, len(letters)))
        if "..." in equation:
            output.insert(b.draw.randint(0, len(output)), "...")
        equation += "->" + "".join(output)
    return b.emit("Einsum", operands, equation=equation.replace(",", ", ") if b.draw.chance(0.2) else equation)


ENTRIES = {("", "Einsum"): einsum, ("", "Gemm"): gemm, ("", "MatMul"): matmul}
