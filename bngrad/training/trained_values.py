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
from bngrad.opset.known_shapes import shape_text, type_text

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
        names: The source of new names; nothing else may have used it yet.
        from_state: Whether the values are of the state of a training step, which has 16-bit weights as float.

    Returns:
        The names that got a value, as the inputs of a training graph have them.

    Raises:
        InputError: A name is unknown, two are of the same, one is of several things that training keeps apart, or
            a value has another shape or type than its place, or is for an input of data (no static shape).
    """
    places = _Places(model.graph, find_statistics(model, names), from_state=from_state)
    for name, array in values.items():
        places.take(name, np.asarray(array))
    return places.put()


class _Places:
    """The places for values, and the values to put there."""

    def __init__(self, graph: ir.Graph, statistics: Sequence[Statistic], *, from_state: bool) -> None:
        self._graph = graph
        self._from_state = from_state
        self._statistics = statistics
        constants = [v for node in graph for v in node.outputs if node.op_type == "Constant" and is_given(v)]
        values = (*graph.inputs, *graph.initializers.values(), *constants)
        self._given = {str(value.name): value for value in values}
        self._groups: dict[tuple[ir.Value, int, str | None], list[Statistic]] = {}
        for statistic in statistics:
            self._groups.setdefault(statistic.group, []).append(statistic)
        self._own = {statistic.name: statistic for statistic in statistics if statistic.name not in self._given}
        self._chains = {statistic.chain: members for members in self._groups.values() for statistic in members[1:]}
        self._outputs = {statistic.new_chain: statistic.chain for statistic in statistics}
        self._outputs |= {statistic.new_name: statistic.name for statistic in statistics}
        self._values: dict[str, Array] = {}
        self._names: dict[str, str] = {}
        """The name that the caller used, for each place."""

    def take(self, name: str, array: Array) -> None:
        """Takes a value by one of its names."""
        names = {*self._given, *self._own, *self._chains}
        place = name if name in names else self._outputs.get(name, name)
        if place not in names:
            raise InputError(unknown_name(name, [*names, *self._outputs], "a weight"))
        if place in self._values:
            other = name if name != place else self._names[place]
            raise InputError(f"{place!r} is given twice, also as its new value {other!r}; give one of them")
        if place in self._given:
            held, type_ = constant_tensor(self._given[place]), self._given[place]
            if held is None and not (type_.shape is not None and type_.shape.is_static()):
                raise InputError(
                    f"{name!r} is an input for data, {type_text(type_)}; expected weights and running statistics"
                )
        else:
            statistic = self._own[place] if place in self._own else self._chains[place][0]
            held, type_ = statistic.value, statistic.source
        if self._from_state:
            array = _narrowed(array, type_.dtype if held is None else held.dtype)
        self._values[place] = _fitting(name, place, array, held, type_)
        self._names[place] = name

    def put(self) -> list[str]:
        """Puts the values into their places; returns the names of the places."""
        placed = self._placed()
        direct = [name for name in self._values if name in self._given and self._has_readers(name, placed)]
        initializers: dict[str, ir.Value] = {}
        for statistic in self._statistics:
            name = placed.get((statistic.node, statistic.slot))
            if name is not None:
                if name not in initializers:
                    initializers[name] = new_initializer(self._graph, name, ir.tensor(self._values[name]))
                replace_statistic(statistic, initializers[name])
        for name in direct:
            _set(self._graph, self._given[name], self._values[name])
        return [name for name in self._values if name in initializers or name in direct]

    def _placed(self) -> dict[tuple[ir.Node, int], str]:
        """Returns the names of the values for running statistics that a training graph keeps apart."""
        placed = {
            (statistic.node, statistic.slot): statistic.name
            for statistic in self._own.values()
            if statistic.name in self._values
        }
        for name, members in self._chains.items():
            left = [statistic for statistic in members if (statistic.node, statistic.slot) not in placed]
            if name in self._values and name not in self._given:
                if not left:
                    raise InputError(_read_by_nothing(name, members))
                placed |= {(statistic.node, statistic.slot): name for statistic in left}
            elif name not in self._values and any(_trains(statistic.node) for statistic in left):
                self._require_inputs(members)
        return placed

    def _require_inputs(self, members: Sequence[Statistic]) -> None:
        """Refuses an output's name where it may be one batch norm's own statistic, or that of a chain."""
        for statistic in members:
            output = self._names.get(statistic.name, statistic.name)
            if output != statistic.name:
                raise InputError(
                    f"{output!r} is an output of {describe(statistic.node)}, one of {len(members)} batch norms "
                    f"that read one running statistic, and not all have a new value: give it as "
                    f"{statistic.name!r}, for this one only, or as {statistic.chain!r}, for all"
                )

    def _has_readers(self, name: str, placed: Mapping[tuple[ir.Node, int], str]) -> bool:
        """Tests whether an initializer, an input or a constant has readers that get its value.

        Raises:
            InputError: It is for things that training keeps apart, or all its readers have values of their own.
        """
        value = self._given[name]
        statistics = [statistic for statistic in self._statistics if statistic.source is value]
        if not statistics:
            return True
        left = [reader for reader in readers(value) if reader not in placed]
        if not left and not value.is_graph_output():
            held = constant_tensor(value)
            if held is None or not np.array_equal(held.numpy(), self._values[name]):
                raise InputError(_read_by_nothing(name, statistics))
            return False
        kinds = {index if is_statistic(node, index) else None for node, index in left}
        separate = [statistic for statistic in statistics if (statistic.node, statistic.slot) not in placed]
        if len(kinds) > 1:
            raise InputError(
                f"{name!r} is both {_role(separate[0])} and something else, which training keeps apart: give "
                f"{listed(statistic.name for statistic in separate)} as well"
            )
        return True


def _trains(node: ir.Node) -> bool:
    """Tests whether a batch norm is in training mode in the forward model; before opset 14 its outputs show it."""
    mode = node.attributes.get("training_mode")
    return len(node.outputs) > 1 if mode is None else bool(mode.value)


def _role(statistic: Statistic) -> str:
    kind = "mean" if statistic.slot == 3 else "variance"
    return f"the running {kind} of {describe(statistic.node)}"


def _read_by_nothing(name: str, statistics: Sequence[Statistic]) -> str:
    names = listed(dict.fromkeys(statistic.name for statistic in statistics))
    return f"{name!r} has a new value, but all that reads it has its own ({names}); leave one of them out"


def _narrowed(array: Array, dtype: ir.DataType | None) -> Array:
    """Returns float values in the 16-bit type of a model, and others as they are."""
    is_master = array.dtype == np.float32 and dtype in SIXTEEN_BITS
    return array.astype(dtype.numpy()) if is_master and dtype is not None else array


def _fitting(name: str, place: str, array: Array, held: ir.TensorProtocol | None, type_: ir.Value) -> Array:
    """Returns an array if it has the type and shape of a tensor, or of a value where there is none."""
    # The model may state any other type for an initializer elsewhere.
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
    """Sets the value of an initializer or constant, or converts an input to an initializer."""
    if value.producer() is not None:
        value = lift_constant(graph, value)
    value.const_value = ir.tensor(array, name=value.name)
    value.dtype, value.shape = value.const_value.dtype, ir.Shape(array.shape)
    if not value.is_initializer():
        graph.register_initializer(value)
    if value.is_graph_input():
        graph.inputs.remove(value)
