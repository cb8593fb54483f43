"""A model that the worker has loaded: runs it, or captures its intermediate values.

**Capturing** turns intermediate values into outputs. The values of a training graph do not fit in memory at once,
so they come in chunks, each with a session and a run of its own, and values of different chunks must be of the
same computation to the last bit. So captures never let ORT optimize: a fusion that happens in one chunk, and is
prevented in another by the new output inside it, changes the digits.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx import external_data_helper, helper, numpy_helper

from bngrad.errors import InputError, ModelError, OracleError
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.io.files import to_proto
from bngrad.oracle import dims

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager
    from pathlib import Path

Model: TypeAlias = onnx.ModelProto | ir.Model
Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES = 512 << 20
"""The default size of a captured chunk."""

_LARGEST_ITEM = 8


class Host(Protocol):
    """The parts of the oracle that a session needs."""

    def ask(self, job: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Has the worker do a job."""

    def scratch(self) -> AbstractContextManager[Path]:
        """A new folder, removed at the end of the `with`."""


class Session:
    """A model that the oracle has loaded; `Oracle.load` makes it.

    Args:
        host: The oracle.
        model: The model.
        folder: The folder to write it to for the worker.
        options: threads, library and optimize, as the worker takes them.
    """

    def __init__(self, host: Host, model: Model, folder: Path, options: Mapping[str, Any]) -> None:
        self._host = host
        self._model = as_proto(model)
        self._graph = self._model.graph
        self._folder = folder
        self._options = {**options, "patch": None, "keep": True}
        self._unbound = dims.unbound(self._graph)
        self._files: dict[tuple[tuple[str, int], ...], str] = {}

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Returns the value of each of `outputs`; by default, of all of the graph's outputs.

        Raises:
            InputError: A feed has an element type that NumPy lacks, such as bfloat16.
            OracleError: ORT refuses the model or the feeds.
        """
        with self._host.scratch() as folder:
            files = _save(feeds, folder)
            return self._run(self._spec(feeds), files, None if outputs is None else list(outputs))

    def capture(
        self, feeds: Mapping[str, Array], names: Iterable[str], max_bytes: int = CHUNK_BYTES
    ) -> Iterator[dict[str, Array]]:
        """Runs the model and yields values by name: outputs, intermediate values, inputs and initializers.

        The digits do not depend on which names are captured together, nor on `max_bytes`.

        Args:
            feeds: The graph's inputs.
            names: Values of the main graph.
            max_bytes: The size of a chunk; a larger value is a chunk of its own.

        Yields:
            Chunks, in the order of `names`, of consecutive names and their values.

        Raises:
            InputError: An input is to be captured and was not fed.
            ModelError: The graph has no value of that name.
            OracleError: ORT refuses the model or the feeds.
        """
        unique_names = list(dict.fromkeys(names))
        computed = {name for node in self._graph.node for name in node.output if name}
        fed = self._given(feeds, set(unique_names) - computed, computed)
        with self._host.scratch() as folder:
            files = _save(feeds, folder)
            spec = self._spec(feeds)
            sizes = {name: value.nbytes for name, value in fed.items()}
            sizes |= self._sizes([name for name in unique_names if name in computed], spec, files, folder)
            for chunk in _chunks(unique_names, sizes, max_bytes):
                # No variable here holds a chunk, so that the previous one is freed before the next is made.
                yield self._chunk(chunk, fed, spec, files, folder)

    def _given(
        self, feeds: Mapping[str, Array], names: AbstractSet[str], computed: AbstractSet[str]
    ) -> dict[str, Array]:
        """The values of inputs and initializers."""
        constants = {tensor.name: tensor for tensor in self._graph.initializer}
        inputs = {value.name for value in self._graph.input}
        values = {}
        for name in names:
            if name in feeds:
                values[name] = np.asarray(feeds[name])
            elif name in constants:
                values[name] = numpy_helper.to_array(constants[name])
            elif name in inputs:
                raise InputError(f"input {name!r} is to be captured and was not fed; give it with the feeds")
            else:
                raise ModelError(unknown_name(name, computed | inputs | constants.keys(), "a value"))
        return values

    def _chunk(
        self,
        names: Sequence[str],
        fed: Mapping[str, Array],
        spec: Mapping[str, Any],
        files: Mapping[str, str],
        folder: Path,
    ) -> dict[str, Array]:
        """The values of a chunk, from one run."""
        computed = [name for name in names if name not in fed]
        patch = self._as_outputs(computed)
        values = self._run(_patched(spec, patch, folder), files, computed) if computed else {}
        return {name: values[name] if name in values else fed[name].copy() for name in names}

    def close(self) -> None:
        """Has the worker drop the model."""
        for path in self._files.values():
            self._host.ask({"job": "close", "model": path}, "closing a model")

    def _spec(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """The worker's specification of the session; its model has the sizes of the feeds if `dims` needs them."""
        sizes = dims.sizes(self._graph, feeds) if self._unbound else {}
        key = tuple(sorted(sizes.items()))
        if key not in self._files:
            model = self._model
            if sizes:
                model = onnx.ModelProto()
                model.CopyFrom(self._model)
                dims.bind(model.graph, sizes)
            if unbound := dims.unbound(model.graph):
                raise OracleError(
                    f"the sizes of the inputs do not determine the shapes of {listed(unbound)}, which ONNX "
                    "Runtime's pooling gradients need; give every symbolic dimension of the forward model a number"
                )
            path = self._folder / f"model_{len(self._files)}.onnx"
            write_model(model, path)
            self._files[key] = str(path)
        return {**self._options, "model": self._files[key]}

    def _sizes(
        self, names: Sequence[str], spec: Mapping[str, Any], files: Mapping[str, str], folder: Path
    ) -> dict[str, int]:
        """The bytes of each value, from a run that returns only shapes.

        An element of unknown type counts as the largest.
        """
        if not names:
            return {}
        stated = itertools.chain(self._graph.value_info, self._graph.output)
        items = {
            value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize
            for value in stated
            if value.type.tensor_type.elem_type
        }
        shape_of = {name: f"bngrad_oracle/shape_{index}" for index, name in enumerate(names)}
        patch = onnx.GraphProto()
        for name, shape in shape_of.items():
            patch.node.append(helper.make_node("Shape", [name], [shape]))
            patch.output.append(onnx.ValueInfoProto(name=shape))
        shapes = self._run(_patched(spec, patch, folder), files, list(shape_of.values()))
        return {
            name: math.prod(shapes[shape].tolist()) * items.get(name, _LARGEST_ITEM)
            for name, shape in shape_of.items()
        }

    def _as_outputs(self, names: Sequence[str]) -> onnx.GraphProto:
        """Returns a graph whose outputs, added to the model's, are the named values; ORT infers their types."""
        outputs = {value.name for value in self._graph.output}
        return onnx.GraphProto(output=[onnx.ValueInfoProto(name=name) for name in names if name not in outputs])

    def _run(
        self, spec: Mapping[str, Any], files: Mapping[str, str], outputs: Sequence[str] | None
    ) -> dict[str, Array]:
        """One run in the worker."""
        with self._host.scratch() as folder:
            job = {"job": "run", "session": spec, "feeds": files, "outputs": outputs, "into": str(folder)}
            answer = self._host.ask(job, f"running the model {self._graph.name!r}")
            return {name: np.load(path, allow_pickle=False) for name, path in answer["files"].items()}


def as_proto(model: Model) -> onnx.ModelProto:
    """Returns a model of either kind as an `onnx.ModelProto`.

    Raises:
        InputError: Its external data cannot be read.
        ModelError: It is too large for one file.
    """
    return to_proto(model) if isinstance(model, ir.Model) else model


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model for the worker, in one file.

    Raises:
        ModelError: It is too large for one file, or its weights are in other files.
    """
    if any(external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer):
        raise ModelError(
            "the model's weights are in other files; load them with onnx.load_external_data_for_model"
        )
    try:
        path.write_bytes(model.SerializeToString())
    except (ValueError, EncodeError) as error:
        raise ModelError(f"the model does not fit in one file of 2 GB: {error}") from error


def _patched(spec: Mapping[str, Any], patch: onnx.GraphProto, folder: Path) -> dict[str, Any]:
    """The same session with nodes and outputs added, not optimized and for a single run."""
    path = folder / "patch.onnx"
    path.write_bytes(onnx.ModelProto(graph=patch).SerializeToString())
    return {**spec, "patch": str(path), "optimize": False, "keep": False}


def _save(feeds: Mapping[str, Array], folder: Path) -> dict[str, str]:
    """Writes arrays, and returns the file of each."""
    files = {}
    for index, (name, value) in enumerate(feeds.items()):
        array = np.asarray(value, order="C")
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"input {name!r} is {array.dtype}, which the oracle cannot take; give a NumPy number type"
            )
        files[name] = str(folder / f"feed_{index}.npy")
        np.save(files[name], array, allow_pickle=False)
    return files


def _chunks(names: Iterable[str], sizes: Mapping[str, int], max_bytes: int) -> Iterator[list[str]]:
    """Cuts a list of names into consecutive parts of at most `max_bytes` each."""
    chunk: list[str] = []
    room = max_bytes
    for name in names:
        if chunk and sizes[name] > room:
            yield chunk
            chunk, room = [], max_bytes
        chunk.append(name)
        room -= sizes[name]
    if chunk:
        yield chunk
