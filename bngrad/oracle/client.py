"""The oracle as a Python object: ONNX Runtime's own gradient builder and kernels, for models of this process.

with Oracle() as oracle:
    training = oracle.build_gradient(model, "loss", ["weight"])
    values = oracle.run(training, feeds)
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import onnx

from bngrad.errors import OracleError
from bngrad.oracle import environment
from bngrad.oracle.process import Worker, WorkerStartError
from bngrad.oracle.session import CHUNK_BYTES, Session, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from bngrad.oracle.packages import Progress
    from bngrad.oracle.session import Array


class Oracle:
    """ONNX Runtime's training build 1.19.2 in a process of its own; a context manager.

    A worker that dies over a job is replaced for the next one. Not for several threads at once.

    Args:
        progress: told about the stages of the environment's installation, should there be one.
        python: an interpreter that has the oracle's packages; by default the one of the environment in the user's
            cache, which is made when it is missing and made anew, once, when the worker does not start in it.
        timeout: seconds that a single job may take.
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
            if error is None:
                self._worker.stop()
            else:
                self._worker.kill()
            self._worker = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def build_gradient(self, model: onnx.ModelProto, loss: str, wrt: Sequence[str]) -> onnx.ModelProto:
        """The training graph of a forward model, as ORT's gradient builder makes it.

        Args:
            model: as `preparation.prepare_forward` leaves it.
            loss: the float32 scalar to differentiate, an output of the graph.
            wrt: the graph inputs to differentiate by.

        Returns:
            The model with an output `<name>_grad` for every name in `wrt`, in that order, after its own.

        Raises:
            OracleError: ORT refuses.
        """
        with self.scratch() as folder:
            forward, training_file = folder / "forward.onnx", folder / "training.onnx"
            write_model(model, forward)
            job = {
                "job": "gradient",
                "model": str(forward),
                "into": str(training_file),
                "loss": loss,
                "wrt": list(wrt),
            }
            self.ask(job, f"building the gradient of {loss!r}")
            training = onnx.load_model(training_file)
        # ORT walks a set of names, so the order of its outputs means nothing.
        place = {f"{name}_grad": index for index, name in enumerate(wrt)}
        outputs = sorted(training.graph.output, key=lambda output: place.get(output.name, -1))
        del training.graph.output[:]
        training.graph.output.extend(outputs)
        return training

    @contextlib.contextmanager
    def load(
        self, model: onnx.ModelProto, *, threads: int = 0, library: Path | None = None, optimize: bool = True
    ) -> Iterator[Session]:
        """Hand a model over once, to run it several times.

        Args:
            model: any model that ORT 1.19.2 can run, training ops included.
            threads: for the work inside one node; 0 leaves it to ORT.
            library: a custom-op library to register.
            optimize: let ORT fuse and reorder as it likes; False runs the nodes as they stand.
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
        model: onnx.ModelProto,
        feeds: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        threads: int = 0,
        library: Path | None = None,
    ) -> dict[str, Array]:
        """Run a model once; `load` documents the options.

        Returns:
            The value of each of `outputs`, all of the graph's by default.

        Raises:
            OracleError: ORT refuses.
        """
        with self.load(model, threads=threads, library=library) as session:
            return session.run(feeds, outputs)

    def capture(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Array],
        names: Sequence[str],
        max_bytes: int = CHUNK_BYTES,
        *,
        threads: int = 0,
        library: Path | None = None,
    ) -> Iterator[dict[str, Array]]:
        """Run a model and hand out intermediate values, in pieces of about `max_bytes`; see `Session.capture`."""
        with self.load(model, threads=threads, library=library, optimize=False) as session:
            yield from session.capture(feeds, names, max_bytes)

    def ask(self, job: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Have the worker do a job; `process.Worker.ask` documents what can happen."""
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
        """A new folder that the worker sees, gone after the `with`."""
        if self._folder is None:
            raise OracleError("the oracle is closed: use it inside `with Oracle() as oracle`")
        folder = Path(self._folder.name) / str(next(self._names))
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self) -> Worker:
        """A worker; should it not start in the user's environment, that one is made anew, once."""
        scratch = Path(self._folder.name) if self._folder is not None else Path()
        if self._python is not None:
            return Worker(self._python, scratch)
        place = environment.ensure(self._progress)
        try:
            return Worker(place.python, scratch)
        except WorkerStartError:
            return Worker(environment.install(self._progress, replace=place).python, scratch)
