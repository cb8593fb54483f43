"""GroupQueryAttention of com.microsoft, which language models for ONNX Runtime consist of, split into ONNX's ops.

A key has a position: past keys that of their place in the cache, new keys the number of past ones plus their own.
A query attends the keys up to its own position. Places of the cache without a key, and new keys that are padding,
have a position after all queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.formula_numbers import NUMBERS
from bngrad.graph.node_reader import attribute_refusal, dtype_of, like, static_shape
from bngrad.graph.same_values import SAME_VALUES, origin
from bngrad.graph.shapes import known_dimension
from bngrad.opset.op_attributes import ANY, FLAG
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.opset.op_attributes import Attributes
    from bngrad.passes.lower.site import Site

_ATTRIBUTES: Attributes = {
    **dict.fromkeys(("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size"), ANY),
    **dict.fromkeys(("do_rotary", "rotary_interleaved"), FLAG),
    **dict.fromkeys(("kv_cache_bit_width", "q_norm_epsilon", "k_norm_epsilon", "qk_norm_epsilon"), ANY),
    **dict.fromkeys(("k_quant_type", "v_quant_type"), ("NONE",)),
    **dict.fromkeys(("qk_output", "sliding_window_cache"), (0,)),
    "causal": (1,),
    "smooth_softmax": (0, -1),
}
"""The attributes, with the values by which further features are off."""
_FIRST_REFUSED = 9
_LOWEST = {ir.DataType.FLOAT16: -65504.0}
"""The scores of hidden keys; not infinite, since padding may attend none."""
_LAST = 2**40
"""A position after all others."""


def group_query_attention(site: Site) -> Sequence[ir.Value | None] | str | None:
    """Y = softmax(scale q k^T) v of each head, with softcap, window and rotary positions; kv heads are shared.

    Returns:
        Y, and the present keys and values of a copy of the node, through which no gradient flows. A text where it
        has another form.
    """
    node = site.node
    if not site.has_output(0):
        return None
    if form := _other_form(site):
        return form
    heads, kv_heads = site.attribute("num_heads", 0), site.attribute("kv_num_heads", 0)
    width = known_dimension(site.x(0), -1)
    if width is None or site.x(0).dtype is None or not heads or not kv_heads:
        return "its data has an unknown type or last dimension; expected heads of a known size"
    for index in (7, 8):
        if site.has(index):
            origin(site.x(index), SAME_VALUES).meta[NUMBERS] = True
    packed = not site.has(1)
    size = width // (heads + 2 * kv_heads if packed else heads)
    if packed:
        parts = _by_head(site, site.x(0), heads + 2 * kv_heads, size)
        sizes = site.int64([heads, kv_heads, kv_heads])
        q, k, v = site.outputs_of("Split", parts, sizes, outputs=["q", "k", "v"], axis=2)
    else:
        q, k, v = (
            _by_head(site, site.x(index), count, size) for index, count in enumerate((heads, kv_heads, kv_heads))
        )
    positions, of_keys = _positions(site)
    if site.attribute("do_rotary", 0):
        turn = _Rotation(site, positions, size)
        q, k = turn(q), turn(k)
    q = site.op("Reshape", q, site.int64([0, 0, kv_heads, heads // kv_heads, size]))
    q = site.op("Transpose", q, perm=[0, 2, 3, 1, 4])
    k, v = (_with_past(site, new, index) for index, new in ((3, k), (4, v)))
    k = site.op("Unsqueeze", site.op("Transpose", k, perm=[0, 1, 3, 2]), site.int64([2]))
    scale = site.attribute("scale", 0.0) or size**-0.5
    scores = site.op("MatMul", site.op("Mul", q, like(site, scale, site.x(0))), k)
    if cap := site.attribute("softcap", 0.0):
        cap = like(site, cap, site.x(0))
        scores = site.op("Mul", site.op("Tanh", site.op("Div", scores, cap)), cap)
    hidden = like(site, _LOWEST.get(dtype_of(site.x(0)), -3e38), site.x(0))
    scores = site.op("Where", _visible(site, positions, of_keys), scores, hidden)
    y = site.op("MatMul", site.op("Softmax", scores, axis=-1), site.op("Unsqueeze", v, site.int64([2])))
    y = site.op("Transpose", y, perm=[0, 3, 1, 2, 4])
    y = site.op("Reshape", y, site.int64([0, 0, heads * size]))
    if not any(map(site.has_output, range(1, len(node.outputs)))):
        return [y]
    words = ["unused", "present_key", "present_value"]
    present = site.outputs_of(node.op_type, *node.inputs, outputs=words, domain=MICROSOFT, **node.attributes)
    return [y, *present[1:]]


def _other_form(site: Site) -> str:
    """Returns the first attribute or input of a form that is not split; empty if there is none."""
    if reason := attribute_refusal(site.node, _ATTRIBUTES):
        return reason
    for index, value in enumerate(site.node.inputs[_FIRST_REFUSED:], _FIRST_REFUSED):
        if value is not None:
            return f"it has input {index}, {value.name!r}; expected at most {_FIRST_REFUSED} inputs"
    if site.has(3) != site.has(4):
        return "it has only past keys or only past values; expected both"
    cache = static_shape(site.optional(7))
    if site.attribute("do_rotary", 0) and not (site.has(8) and cache is not None and len(cache) == 2):
        return "its cosines or sines have no known shape; expected two dimensions"
    return "" if site.attribute("local_window_size", -1) else "it has local_window_size = 0; expected a window"


def _by_head(site: Site, x: ir.Value, heads: int, size: int) -> ir.Value:
    return site.op("Reshape", x, site.int64([0, 0, heads, size]))


def _with_past(site: Site, new: ir.Value, index: int) -> ir.Value:
    """Converts [batch, length, heads, size] to [batch, heads, length, size], after the past ones."""
    new = site.op("Transpose", new, perm=[0, 2, 1, 3])
    return site.op("Concat", site.x(index), new, axis=2) if site.has(index) else new


def _positions(site: Site) -> tuple[ir.Value, ir.Value]:
    """Returns the positions of the queries, [batch, length], and of all keys, [batch, past and new length]."""
    zero, step, first = site.int64(0), site.int64(1), site.int64([0])

    def numbers(of: ir.Value, axis: int) -> ir.Value:
        size = site.op("Squeeze", site.op("Shape", of, start=axis, end=axis + 1), first)
        return site.op("Range", zero, size, step)

    length = site.op("Shape", site.x(0), start=1, end=2)
    totals = site.op("Reshape", site.op("Cast", site.x(5), to=int(ir.DataType.INT64)), site.int64([-1, 1]))
    totals = site.op("Add", totals, step)
    maximum = site.op("Cast", site.x(6), to=int(ir.DataType.INT64))
    is_first = site.op("Equal", site.op("Reshape", maximum, site.int64([1])), length)
    past = site.op("Where", is_first, site.op("Sub", totals, totals), site.op("Sub", totals, length))
    tokens = numbers(site.x(0), 1)
    positions = site.op("Add", past, tokens)
    last = site.int64(_LAST)
    of_keys = site.op("Where", site.op("Less", positions, totals), positions, last)
    if site.has(3):
        places = numbers(site.x(3), 2)
        of_past = site.op("Where", site.op("Less", places, past), places, last)
        of_keys = site.op("Concat", of_past, of_keys, axis=1)
    return positions, of_keys


def _visible(site: Site, positions: ir.Value, of_keys: ir.Value) -> ir.Value:
    """Returns whether a query attends a key, [batch, 1, 1, length, past and new length]."""
    queries = site.op("Unsqueeze", positions, site.int64([1, 2, 4]))
    keys = site.op("Unsqueeze", of_keys, site.int64([1, 2, 3]))
    visible = site.op("LessOrEqual", keys, queries)
    window = site.attribute("local_window_size", -1)
    if window < 0:
        return visible
    oldest = site.op("Sub", queries, site.int64(window - 1))
    return site.op("And", visible, site.op("GreaterOrEqual", keys, oldest))


class _Rotation:
    """The rotation of heads by their positions, [batch, length, heads, size].

    Args:
        site: The node, with the cosines and sines of all positions.
        positions: The positions, [batch, length].
        size: The size of a head, of which the first elements are rotated.
    """

    def __init__(self, site: Site, positions: ir.Value, size: int) -> None:
        self._site, self._rest = site, size
        axis = site.int64([2])
        self._cos, self._sin = (
            site.op("Unsqueeze", site.op("Gather", site.x(index), positions), axis) for index in (7, 8)
        )
        self._half = known_dimension(site.x(7), 1) or 0
        self._rest = size - 2 * self._half

    def __call__(self, x: ir.Value) -> ir.Value:
        site, half = self._site, self._half
        interleaved = site.attribute("rotary_interleaved", 0)
        rest = None
        if self._rest:
            x, rest = site.outputs_of(
                "Split", x, site.int64([2 * half, self._rest]), outputs=["turned", "rest"], axis=3
            )
        if interleaved:
            x = site.op("Reshape", x, site.op("Concat", site.op("Shape", x, end=3), site.int64([half, 2]), axis=0))
            pair = site.outputs_of("Split", x, outputs=["first", "second"], axis=4, num_outputs=2)
            first, second = (site.op("Squeeze", part, site.int64([4])) for part in pair)
        else:
            first, second = site.outputs_of("Split", x, outputs=["first", "second"], axis=3, num_outputs=2)
        turned = [
            site.op("Sub", site.op("Mul", first, self._cos), site.op("Mul", second, self._sin)),
            site.op("Add", site.op("Mul", second, self._cos), site.op("Mul", first, self._sin)),
        ]
        if interleaved:
            turned = [site.op("Unsqueeze", part, site.int64([4])) for part in turned]
            x = site.op("Concat", *turned, axis=4)
            x = site.op(
                "Reshape", x, site.op("Concat", site.op("Shape", x, end=3), site.int64([2 * half]), axis=0)
            )
        else:
            x = site.op("Concat", *turned, axis=3)
        return x if rest is None else site.op("Concat", x, rest, axis=3)
