"""What a command may do with a model of any kind, and what is a find.

Exit 0, 1 or 2. With 2: one line on stderr that is no internal error nor a want of memory, and nothing written.
With 0: nothing but warnings of ours on stderr, and an output that onnx's checker takes and stock ONNX Runtime
loads. In any case: the input is as before, no file is left over, nothing is raised, and time and memory are within
their bounds, which `campaign` sets.

ONNX Runtime may refuse an output for what it would have refused in the input, which is no fault of ours:

- what `differentiate` and `finalize` made must load if the input does;
- what `rewrite` made must load if the rest of the input does: the input without the nodes that stock ONNX Runtime
  does not have or that `rewrite` makes its own, whose outputs become inputs of the graph.

Nothing is optimized at loading, for that would run the model.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import onnx
import onnx_ir as ir
import onnxruntime

from bngrad.cli import run
from bngrad.io.files import load
from bngrad.passes.pipeline import foreign_nodes, unknown_to_stock
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import register
from fuzz.cases import MODEL, OUTPUT, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuzz.cases import Case

OLD = b"what was there before"
EXIT_CODES = (0, 1, 2)


class Find(NamedTuple):
    """What is wrong."""

    command: str
    what: str
    detail: str = ""


class Ran(NamedTuple):
    """What a command did."""

    code: int | None
    """None where something was raised, of which stderr tells."""
    stdout: str
    stderr: str


def prepare(folder: Path) -> None:
    """Makes what external data may name, and enters the folder."""
    os.chdir(folder)
    Path("data.bin").write_bytes(bytes(range(64)))
    Path("link.bin").symlink_to("/etc/hostname")
    os.mkfifo("fifo")


def judge(case: Case) -> tuple[list[Find], Counter[str]]:
    """Runs the commands of a case in the current folder, which `prepare` made.

    Returns:
        What is wrong, and how often each command ended how.
    """
    Path(MODEL).write_bytes(case.content)
    Path(WEIGHTS).write_bytes(case.weights)
    finds, ends = [], Counter()
    for arguments in case.commands:
        _remove(OUTPUT)
        if case.output_exists:
            Path(OUTPUT).write_bytes(OLD)
        before = _state()
        ran = run_here(list(arguments))
        ends[f"{arguments[0]} {ran.code}"] += 1
        written = _state().get(OUTPUT) != before.get(OUTPUT)
        if {**_state(), OUTPUT: ""} != {**before, OUTPUT: ""}:
            finds.append(Find(arguments[0], "files changed or left over", str(sorted(_state()))))
            _clean(before)
        finds += [Find(arguments[0], *problem) for problem in _problems(ran, written, "-o" in arguments)]
        if "--json" in arguments and ran.code == 0:
            finds += [Find(arguments[0], "no JSON", ran.stdout)] if not _is_json(ran.stdout) else []
        if ran.code == 0 and written:
            problem, how = _output_problem(arguments, Path(OUTPUT).read_bytes(), case.content)
            ends[f"{arguments[0]} output {how}"] += 1
            finds += [Find(arguments[0], "a bad output", problem)] if problem else []
    return finds, ends


def run_here(arguments: list[str]) -> Ran:
    """Runs a command in this process; its stderr is what any library writes to the descriptor."""
    stdout, code = io.StringIO(), None
    with _stderr_to_a_file() as file:
        with contextlib.redirect_stdout(stdout):
            try:
                code = run(arguments)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is a find
                print(f"raised {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        os.lseek(file, 0, os.SEEK_SET)
        stderr = os.read(file, 1 << 20).decode(errors="replace")
    return Ran(code, stdout.getvalue(), stderr)


@contextlib.contextmanager
def _stderr_to_a_file() -> Iterator[int]:
    file, kept = os.memfd_create("stderr"), os.dup(2)
    os.dup2(file, 2)
    try:
        # Python's own may be another than the descriptor's.
        with os.fdopen(os.dup(file), "w", errors="backslashreplace") as stream, contextlib.redirect_stderr(stream):
            yield file
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


def _problems(ran: Ran, written: bool, writes: bool) -> Iterator[tuple[str, str]]:
    lines = ran.stderr.splitlines()
    if ran.code not in EXIT_CODES:
        yield "not exit 0, 1 or 2", f"{ran.code}: {ran.stderr}"
    elif ran.code == 2:
        if len(lines) != 1 or not lines[0].startswith("bngrad: error: "):
            yield "not one line", ran.stderr
        elif "internal error" in lines[0]:
            yield "an internal error", lines[0]
        elif "out of memory" in lines[0]:
            yield "out of memory", lines[0]
        if written:
            yield "written with exit 2", ran.stderr
    else:
        if not all(line.startswith("bngrad: warning: ") for line in lines):
            yield "noise", ran.stderr
        if ran.code == 0 and writes and not written:
            yield "nothing written with exit 0", ran.stdout


def _output_problem(arguments: tuple[str, ...], output: bytes, source: bytes) -> tuple[str, str]:
    """What is wrong with an output, if anything; and how it came through."""
    try:
        onnx.checker.check_model(output, full_check=True)
    except Exception as error:  # noqa: BLE001 - of any kind
        return f"onnx's checker: {error}", "refused by the checker"
    command, target = arguments[0], dict(pairwise(arguments)).get("--target")
    if target not in (None, "stock"):
        return "", "for a training build"
    refusal = loading_error(output, registered="--no-functions" in arguments)
    if refusal is None:
        return "", "loaded"
    rest = source if command != "rewrite" else _rest(source)
    if loading_error(rest) is not None:
        return "", "refused like the input"
    return f"ONNX Runtime: {refusal}", "refused"


def loading_error(model: bytes, *, registered: bool = False) -> str | None:
    """Why stock ONNX Runtime does not load a model; None if it does."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if registered:
        register(options)
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - of any kind
        return str(error)
    return None


def _rest(source: bytes) -> bytes:
    """A training graph without the nodes that `rewrite` replaces; their outputs are inputs of the graph."""
    Path(MODEL).write_bytes(source)
    model = load(MODEL)
    InferTypesPass()(model)
    replaced = {*unknown_to_stock(model), *foreign_nodes(model)}
    for node in [node for node in model.graph if node in replaced]:
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                given = ir.Value(name=f"{value.name}_given", type=value.type, shape=_shape(node, value))
                value.replace_all_uses_with(given, replace_graph_outputs=True)
                model.graph.inputs.append(given)
        model.graph.remove(node)
    return ir.to_proto(model).SerializeToString()


def _shape(node: ir.Node, value: ir.Value) -> ir.Shape | None:
    """What is known of an output's shape: of a batch norm's, that it has as many channels as its scale."""
    channels = node.inputs[1].shape if node.op_type == "BatchNormalization" and node.inputs[1] else None
    if value is not node.outputs[0] or not channels or value.shape is None or len(value.shape) < 2:
        return value.shape
    return ir.Shape([value.shape[0], channels[0], *value.shape[2:]])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _state() -> dict[str, str]:
    """The files here, and what is in them."""
    found = {}
    for entry in os.scandir():
        plain = entry.is_file(follow_symlinks=False)
        found[entry.name] = hashlib.sha1(Path(entry).read_bytes()).hexdigest() if plain else "special"  # noqa: S324
    return found


def _clean(before: dict[str, str]) -> None:
    for name in set(_state()) - {*before, OUTPUT}:
        _remove(name)


def _remove(name: str) -> None:
    Path(name).unlink(missing_ok=True)
