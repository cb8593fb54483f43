"""The oracle as a Python object: ONNX Runtime's own gradient builder and kernels, for models of this process.

with Oracle() as oracle:
    training, gradients = oracle.build_gradient(model, "loss", ["weight"])
    values = oracle.run(training, feeds)
    print(values[gradients["weight"]])
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import onnx
import onnx_ir as ir

from bngrad.errors import OracleError
from bngrad.oracle import environment
from bngrad.oracle.process import Worker, WorkerStartError
from bngrad.oracle.session import CHUNK_BYTES, Session, as_proto, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from bngrad.oracle.packages import Progress
    from bngrad.oracle.session import Array, Model


class Built(NamedTuple):
    """The training graph that ORT's gradient builder returns for a forward model."""

    model: ir.Model
    """The training graph; its outputs are those of the forward model, then the gradients in the order of `wrt`."""
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the name of the input."""


class Oracle:
    """ONNX Runtime's training build 1.19.2 in a process of its own; a context manager.

    A worker that crashes is replaced for the next job. Not for several threads at once.

    Args:
        progress: Called with the stages of the environment's installation, if it has to be installed.
        python: An interpreter that has the oracle's packages; by default that of the environment in the user's
            cache, which is created if it is missing, and once more if the worker does not start in it.
        timeout: The seconds that a job may take; None for no limit.
    """

    def __init__(
        self, *, progress: Progress | None = None, python: Path | None = None, timeout: float | None = 1800
    ) -> None:
        self._progress = progress
        self._python = python
        self._timeout = timeout
        self._worker: Worker | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._names = itertools.count()

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="bngrad-oracle-", ignore_cleanup_errors=True)
        try:
            self._worker = self._start()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            self._worker.__exit__(kind, error, trace)
            self._worker = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def build_gradient(self, model: Model, loss: str, wrt: Sequence[str]) -> Built:
        """Has ORT's gradient builder make the training graph of a forward model.

        Args:
            model: The model, as `preparation.prepare_forward` leaves it.
            loss: The float scalar to differentiate, an output of the graph.
            wrt: The graph inputs to differentiate with respect to.

        Raises:
            OracleError: ORT refuses the model.
        """
        with self.scratch() as folder:
            forward, training_file = folder / "forward.onnx", folder / "training.onnx"
            write_model(as_proto(model), forward)
            job = {
                "job": "gradient",
                "model": str(forward),
                "into": str(training_file),
                "loss": loss,
                "wrt": list(wrt),
            }
            gradients: dict[str, str] = self.ask(job, f"building the gradient of {loss!r}")["gradients"]
            training = ir.from_proto(onnx.load_model(training_file))
        # ORT's own order of the gradients is that of a set.
        place = {output: index for index, output in enumerate(gradients.values())}
        outputs = training.graph.outputs
        outputs[:] = sorted(outputs, key=lambda output: place.get(str(output.name), -1))
        return Built(training, gradients)

    @contextlib.contextmanager
    def load(
        self, model: Model, *, threads: int = 0, library: Path | None = None, optimize: bool = True
    ) -> Iterator[Session]:
        """Loads a model once, to run it several times.

        Args:
            model: Any model that ORT 1.19.2 can run, training ops included.
            threads: The threads inside one node; 0 for ORT's default.
            library: A custom-op library to register.
            optimize: Whether ORT may fuse and reorder nodes.
        """
        with self.scratch() as folder:
            options = {"threads": threads, "library": None if library is None else str(Path(library).resolve())}
            session = Session(self, model, folder, {**options, "optimize": optimize})
            try:
                yield session
            finally:
                if self._worker is not None and self._worker.alive:
                    session.close()

    def run(
        self,
        model: Model,
        feeds: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        threads: int = 0,
        library: Path | None = None,
    ) -> dict[str, Array]:
        """Runs a model once; `load` documents the options.

        Returns:
            The value of each of `outputs`; by default, of all of the graph's outputs.

        Raises:
            OracleError: ORT refuses the model or the feeds.
        """
        with self.load(model, threads=threads, library=library) as session:
            return session.run(feeds, outputs)

    def capture(
        self,
        model: Model,
        feeds: Mapping[str, Array],
        names: Sequence[str],
        max_bytes: int = CHUNK_BYTES,
        *,
        threads: int = 0,
        library: Path | None = None,
    ) -> Iterator[dict[str, Array]]:
        """Runs a model and yields intermediate values in chunks of at most `max_bytes`; see `Session.capture`."""
        with self.load(model, threads=threads, library=library, optimize=False) as session:
            yield from session.capture(feeds, names, max_bytes)

    def ask(self, job: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Has the worker do a job; `process.Worker.ask` documents the errors."""
        if self._folder is None:
            raise OracleError("the oracle is closed: use it inside `with Oracle() as oracle`")
        if self._worker is not None and not self._worker.alive:
            self._worker.kill()
            self._worker = None
        if self._worker is None:
            self._worker = self._start()
        return self._worker.ask(job, what, self._timeout)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder in the worker's scratch, removed at the end of the `with`."""
        if self._folder is None:
            raise OracleError("the oracle is closed: use it inside `with Oracle() as oracle`")
        folder = Path(self._folder.name) / str(next(self._names))
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self) -> Worker:
        """Returns a new worker; if it does not start in the user's environment, that is created once more."""
        scratch = Path(self._folder.name) if self._folder is not None else Path()
        if self._python is not None:
            return Worker(self._python, scratch)
        place = environment.ensure(self._progress)
        try:
            return Worker(place.python, scratch)
        except WorkerStartError:
            return Worker(environment.install(self._progress, replace=place).python, scratch)
