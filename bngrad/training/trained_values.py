"""Puts trained values into a forward model, by the names that its training graph has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.running_statistics import Statistic, find_statistics, is_given, is_statistic
from bngrad.autodiff.separate_statistics import replace_statistic
from bngrad.errors import InputError
from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.constant_value import constant_tensor, lift_constant, new_initializer
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.graph.nodes import describe
from bngrad.graph.same_values import readers
from bngrad.opset.known_shapes import shape_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.graph.fresh_names import Names

    Array = NDArray[Any]


def put_values(
    model: ir.Model, values: Mapping[str, Array], names: Names, *, from_state: bool = False
) -> list[str]:
    """Gives the initializers and running statistics of a forward model new values.

    Args:
        model: The forward model, with its functions inlined; it is changed.
        values: New values, each by the name of an initializer, an input or a constant; of a batch norm's own
            running statistic, ``<node>/running_mean``, as `differentiate` calls it where batch norms share one; or
            of the output that has a new running statistic.
        names: Where new names come from; nothing else may have asked it yet.
        from_state: Whether the values are of the state of a training step, which has 16-bit weights as float.

    Returns:
        What got a value, by the names of inputs of a training graph.

    Raises:
        InputError: A name is unknown, two are of the same, one is of several things that training keeps apart, or
            a value has another shape or type than what it is for.
    """
    places = _Places(model.graph, find_statistics(model, names), from_state=from_state)
    for name, array in values.items():
        places.take(name, np.asarray(array))
    return places.put()


class _Places:
    """Where values can go, and those that are given."""

    def __init__(self, graph: ir.Graph, statistics: Sequence[Statistic], *, from_state: bool) -> None:
        self._graph = graph
        self._from_state = from_state
        self._statistics = statistics
        constants = [v for node in graph for v in node.outputs if node.op_type == "Constant" and is_given(v)]
        given = (*graph.inputs, *graph.initializers.values(), *constants)
        self._given = {str(value.name): value for value in given}
        self._groups: dict[tuple[ir.Value, int, str | None], list[Statistic]] = {}
        for one in statistics:
            self._groups.setdefault(one.group, []).append(one)
        self._own = {one.name: one for one in statistics if one.name not in self._given}
        self._chains = {one.chain: members for members in self._groups.values() for one in members[1:]}
        self._outputs = {one.new_chain: one.chain for one in statistics}
        self._outputs |= {one.new_name: one.name for one in statistics}
        self._values: dict[str, Array] = {}
        self._names: dict[str, str] = {}
        """What each was called by the caller."""

    def take(self, name: str, array: Array) -> None:
        """Takes a value by one of its names."""
        known = {*self._given, *self._own, *self._chains}
        place = name if name in known else self._outputs.get(name, name)
        if place not in known:
            raise InputError(unknown_name(name, [*known, *self._outputs], "a weight"))
        if place in self._values:
            other = name if name != place else self._names[place]
            raise InputError(f"{place!r} is given twice, also as its new value {other!r}; give one of them")
        if place in self._given:
            held, type_ = constant_tensor(self._given[place]), self._given[place]
        else:
            one = self._own[place] if place in self._own else self._chains[place][0]
            held, type_ = one.value, one.source
        if self._from_state:
            array = _narrowed(array, type_.dtype if held is None else held.dtype)
        self._values[place] = _fitting(name, place, array, held, type_)
        self._names[place] = name

    def put(self) -> list[str]:
        """Puts what was taken where it belongs; returns the names of that."""
        placed = self._placed()
        direct = [name for name in self._values if name in self._given and self._has_readers(name, placed)]
        made: dict[str, ir.Value] = {}
        for one in self._statistics:
            name = placed.get((one.node, one.slot))
            if name is not None:
                if name not in made:
                    made[name] = new_initializer(self._graph, name, ir.tensor(self._values[name]))
                replace_statistic(self._graph, one, made[name])
        for name in direct:
            _set(self._graph, self._given[name], self._values[name])
        return [name for name in self._values if name in made or name in direct]

    def _placed(self) -> dict[tuple[ir.Node, int], str]:
        """The names of the values that go to running statistics which a training graph has apart."""
        placed = {(one.node, one.slot): one.name for one in self._own.values() if one.name in self._values}
        for name, members in self._chains.items():
            left = [one for one in members if (one.node, one.slot) not in placed]
            if name in self._values and name not in self._given:
                if not left:
                    raise InputError(_read_by_nothing(name, members))
                placed |= {(one.node, one.slot): name for one in left}
            elif name not in self._values and any(_trains(one.node) for one in left):
                self._require_inputs(members)
        return placed

    def _require_inputs(self, members: Sequence[Statistic]) -> None:
        """Refuses an output's name where it may be one batch norm's own statistic, or that of a chain."""
        for one in members:
            output = self._names.get(one.name, one.name)
            if output != one.name:
                raise InputError(
                    f"{output!r} is an output of {describe(one.node)}, one of {len(members)} batch norms that "
                    f"read one running statistic, and not all have a new value: give it as {one.name!r}, for this "
                    f"one alone, or as {one.chain!r}, for all"
                )

    def _has_readers(self, name: str, placed: Mapping[tuple[ir.Node, int], str]) -> bool:
        """Whether anything is to get the value of an initializer, an input or a constant.

        Raises:
            InputError: It is of things that training keeps apart, or what reads it has values of its own.
        """
        value = self._given[name]
        statistics = [one for one in self._statistics if one.source is value]
        if not statistics:
            return True
        left = [reader for reader in readers(value) if reader not in placed]
        if not left and not value.is_graph_output():
            held = constant_tensor(value)
            if held is None or not np.array_equal(held.numpy(), self._values[name]):
                raise InputError(_read_by_nothing(name, statistics))
            return False
        kinds = {index if is_statistic(node, index) else None for node, index in left}
        apart = [one for one in statistics if (one.node, one.slot) not in placed]
        if len(kinds) > 1:
            raise InputError(
                f"{name!r} is both {_role(apart[0])} and something else, which training keeps apart: give "
                f"{listed(one.name for one in apart)} as well"
            )
        return True


def _trains(node: ir.Node) -> bool:
    """Whether a batch norm is in training mode in the forward model; before opset 14 its outputs say so."""
    mode = node.attributes.get("training_mode")
    return len(node.outputs) > 1 if mode is None else bool(mode.value)


def _role(statistic: Statistic) -> str:
    kind = "mean" if statistic.slot == 3 else "variance"
    return f"the running {kind} of {describe(statistic.node)}"


def _read_by_nothing(name: str, statistics: Sequence[Statistic]) -> str:
    names = listed(dict.fromkeys(one.name for one in statistics))
    return f"{name!r} has a new value, but all that reads it has its own ({names}); leave one of them out"


def _narrowed(array: Array, dtype: ir.DataType | None) -> Array:
    """Returns float values in the 16-bit type of a model, and others as they are."""
    is_master = array.dtype == np.float32 and dtype in SIXTEEN_BITS
    return array.astype(dtype.numpy()) if is_master and dtype is not None else array


def _fitting(name: str, place: str, array: Array, held: ir.TensorProtocol | None, type_: ir.Value) -> Array:
    """Returns an array if it has the type and shape of a tensor, or of a value where there is none."""
    # What the model says elsewhere of an initializer's type may be anything.
    dtype, shape = (type_.dtype, type_.shape) if held is None else (held.dtype, held.shape)
    expected = None if dtype is None else dtype.numpy()
    # An .npz file has bytes for a type that NumPy does not have, such as bfloat16.
    if expected is not None and expected.kind == "V" and array.dtype == np.dtype((np.void, expected.itemsize)):
        array = array.view(expected)
    if expected is not None and array.dtype != expected:
        raise InputError(f"{name!r} is {array.dtype}; expected {expected}, the type of {place!r}")
    if shape is not None and (
        len(shape) != array.ndim
        or any(isinstance(want, int) and want != got for want, got in zip(shape, array.shape, strict=True))
    ):
        want = shape_text(shape)
        raise InputError(f"{name!r} has shape {list(array.shape)}; expected {want}, the shape of {place!r}")
    return array


def _set(graph: ir.Graph, value: ir.Value, array: Array) -> None:
    """Gives an initializer or constant a value, or makes an initializer of an input."""
    if value.producer() is not None:
        value = lift_constant(graph, value)
    value.const_value = ir.tensor(array, name=value.name)
    value.dtype, value.shape = value.const_value.dtype, ir.Shape(array.shape)
    if not value.is_initializer():
        graph.register_initializer(value)
    if value.is_graph_input():
        graph.inputs.remove(value)
