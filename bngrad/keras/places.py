"""The layers of a Keras model that the ops of its trace belong to, for messages.

The names of ops are not enough: TensorFlow numbers them, so that ``dense_1`` may be of the layer ``dense``.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.errors import BngradError

_QUOTED = re.compile(r"'([^']+)'")


class _Call(NamedTuple):
    graph: Any
    before: int
    """The version of the graph, which every new op increases."""
    after: int
    text: str
    layer: Any


class Places:
    """The calls of layers and losses of one trace, the inner ones first."""

    def __init__(self, tf: Any) -> None:  # noqa: ANN401
        self._tf = tf
        self._calls: list[_Call] = []
        self._graph: Any = None
        self._open: list[str] = []

    def clear(self) -> None:
        """Removes all calls: a trace begins, perhaps a second one."""
        self._calls.clear()
        self._graph = self._tf.compat.v1.get_default_graph()

    @contextmanager
    def within(self, text: str, layer: Any = None) -> Iterator[None]:  # noqa: ANN401
        """Records the ops that the block adds.

        Args:
            text: Their name in a message.
            layer: The layer that is called.
        """
        graph = self._tf.compat.v1.get_default_graph()
        before = graph.version
        self._open.append(text)
        try:
            yield
        finally:
            self._open.pop()
        self._calls.append(_Call(graph, before, graph.version, text, layer))

    @contextmanager
    def watching(self, keras: Any) -> Iterator[None]:  # noqa: ANN401
        """Records the calls of all layers and losses within the block."""
        layer_call, loss_call = keras.layers.Layer.__call__, keras.losses.Loss.__call__

        def call_layer(layer: Any, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            text = f"the layer {layer.path or layer.name!r} ({type(layer).__name__})"
            with self.within(text, layer):
                return layer_call(layer, *arguments, **keywords)

        def call_loss(loss: Any, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            with self.within(f"the loss {type(loss).__name__}"):
                return loss_call(loss, *arguments, **keywords)

        keras.layers.Layer.__call__, keras.losses.Loss.__call__ = call_layer, call_loss
        try:
            yield
        finally:
            keras.layers.Layer.__call__, keras.losses.Loss.__call__ = layer_call, loss_call

    def here(self) -> str:
        """Returns the name, in a message, of the layer that is being called."""
        return self._open[-1] if self._open else "the model"

    def of(self, name: str) -> str:
        """Returns the name, in a message, of the layer of an op of TensorFlow or of a node made from it."""
        call = self._call(name)
        return "the model or its loss" if call is None else call.text

    def layer(self, name: str) -> Any:  # noqa: ANN401
        """Returns the layer of an op of TensorFlow or of a node made from it; None if it has no layer."""
        call = self._call(name)
        return None if call is None else call.layer

    def explain(self, error: BngradError) -> str:
        """Returns the message of an error, after the layer of the node that it names."""
        for name in _QUOTED.findall(str(error)):
            if (call := self._call(name)) is not None:
                unrolled = "; or build it with unroll=True" if getattr(call.layer, "unroll", None) is False else ""
                return f"{call.text}: {error}{unrolled}"
        return str(error)

    def _call(self, name: str) -> _Call | None:
        """Returns the innermost call that made the op with the longest name that starts the name."""
        operations = {op.name: number for number, op in enumerate(self._graph.get_operations(), 1)}
        starts = [name, *(name[: match.start()] for match in re.finditer("[/:_]", name))]
        number = operations.get(max((prefix for prefix in starts if prefix in operations), key=len, default=""), 0)
        calls = [call for call in self._calls if call.graph is self._graph and call.before < number <= call.after]
        return min(calls, key=lambda call: call.after - call.before, default=None)
