"""Checks that the commands handle any model correctly; every violation is a finding.

A command must exit with 0, 1 or 2. With 2, it must write one line to stderr that is neither an internal error nor
out of memory, and no file. With 0, stderr may contain only bngrad's warnings, and onnx's checker and stock ONNX
Runtime must accept the output. In any case the input must not change, no other file may be left, no exception may
be raised, and the limits on time and memory, which `campaign` sets, must hold.

An output need not load in ONNX Runtime if the input contains the same problem:

- An output of `differentiate` or `finalize` must load if the input does.
- An output of `rewrite` must load if the rest of the input does. The rest is the input without the nodes that
  `rewrite` replaces or that stock ONNX Runtime does not support, whose outputs become graph inputs.

Models are loaded without optimizations, which would run parts of the model.
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
from bngrad.opset.functions import MIN_IR_VERSION
from bngrad.passes.pipeline import foreign_nodes, unknown_to_stock
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.runtime.session import register
from fuzz.cases import BESIDE, MODEL, OUTPUT, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuzz.cases import Case

OLD_OUTPUT = b"the old output"
EXIT_CODES = (0, 1, 2)


class Finding(NamedTuple):
    """A violation."""

    command: str
    what: str
    """The kind of the violation."""
    detail: str = ""


class CommandResult(NamedTuple):
    """The exit code and output of a command."""

    code: int | None
    """None if an exception was raised; stderr then contains it."""
    stdout: str
    stderr: str


def prepare(folder: Path) -> None:
    """Enters the folder and creates the files that external data may refer to."""
    os.chdir(folder)
    Path("data.bin").write_bytes(bytes(range(64)))
    Path("link.bin").symlink_to("/etc/hostname")
    os.mkfifo("fifo")


def judge(case: Case) -> tuple[list[Finding], Counter[str]]:
    """Runs the commands of a case in the current folder, which `prepare` has set up.

    Returns:
        The findings, and the numbers of exit codes and outputs by command.
    """
    Path(MODEL).write_bytes(case.content)
    Path(WEIGHTS).write_bytes(case.weights)
    findings, ends = [], Counter()
    for arguments in case.commands:
        for name in (OUTPUT, *BESIDE):
            _remove(name)
        if case.output_exists:
            Path(OUTPUT).write_bytes(OLD_OUTPUT)
        before = _files()
        result = run_in_process(list(arguments))
        ends[f"{arguments[0]} {result.code}"] += 1
        written = _files().get(OUTPUT) != before.get(OUTPUT)
        if _others(_files()) != _others(before) or (result.code == 2 and set(_files()) - {*before, OUTPUT}):
            findings.append(Finding(arguments[0], "files changed or left over", str(sorted(_files()))))
            _remove_new_files(before)
        findings += [Finding(arguments[0], *problem) for problem in _problems(result, written, "-o" in arguments)]
        if "--json" in arguments and result.code == 0:
            findings += [Finding(arguments[0], "no JSON", result.stdout)] if not _is_json(result.stdout) else []
        if result.code == 0 and written:
            problem, kind = _output_problem(arguments, Path(OUTPUT).read_bytes(), case.content)
            ends[f"{arguments[0]} output {kind}"] += 1
            findings += [Finding(arguments[0], "invalid output", problem)] if problem else []
    return findings, ends


def run_in_process(arguments: list[str]) -> CommandResult:
    """Runs a command in this process; stderr includes what native libraries write to the file descriptor."""
    stdout, code = io.StringIO(), None
    with _stderr_to_a_file() as file:
        with contextlib.redirect_stdout(stdout):
            try:
                code = run(arguments)
            except BaseException as error:  # noqa: BLE001 - any exception is a finding
                print(f"raised {type(error).__name__}: {error}", file=sys.stderr)
        sys.stderr.flush()
        os.lseek(file, 0, os.SEEK_SET)
        stderr = os.read(file, 1 << 20).decode(errors="replace")
    return CommandResult(code, stdout.getvalue(), stderr)


@contextlib.contextmanager
def _stderr_to_a_file() -> Iterator[int]:
    file, kept = os.memfd_create("stderr"), os.dup(2)
    os.dup2(file, 2)
    try:
        # Python's sys.stderr may use another descriptor.
        with os.fdopen(os.dup(file), "w", errors="backslashreplace") as stream, contextlib.redirect_stderr(stream):
            yield file
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


def _problems(result: CommandResult, written: bool, writes: bool) -> Iterator[tuple[str, str]]:
    lines = result.stderr.splitlines()
    if result.code not in EXIT_CODES:
        yield "exit code other than 0, 1 or 2", f"{result.code}: {result.stderr}"
    elif result.code == 2:
        if len(lines) != 1 or not lines[0].startswith("bngrad: error: "):
            yield "not one line on stderr", result.stderr
        elif "internal error" in lines[0]:
            yield "internal error", lines[0]
        elif "out of memory" in lines[0]:
            yield "out of memory", lines[0]
        if written:
            yield "output written with exit code 2", result.stderr
    else:
        if not all(line.startswith(("bngrad: warning: ", "bngrad: note: ")) for line in lines):
            yield "unexpected text on stderr", result.stderr
        if result.code == 0 and writes and not written:
            yield "no output with exit code 0", result.stdout


def _output_problem(arguments: tuple[str, ...], output: bytes, source: bytes) -> tuple[str, str]:
    """Returns what is wrong with an output, or an empty string, and the kind of the result."""
    problem = _checker_problem(output)
    if problem is not None and problem in (_checker_problem(source), _checker_problem(_with_ir_version(source))):
        # An input without a shape, which bngrad accepts as ONNX Runtime does.
        return "", "rejected by the checker like the input"
    if problem is not None:
        return f"onnx's checker: {problem}", "rejected by the checker"
    command, target = arguments[0], dict(pairwise(arguments)).get("--target")
    if target not in (None, "stock"):
        return "", "for a training build"
    reason = loading_error(output, registered="--no-functions" in arguments)
    if reason is None:
        return "", "loaded"
    rest = source if command != "rewrite" else _rest(source)
    # Wrong types of values between the nodes may hide from ONNX Runtime what is wrong with the input.
    if loading_error(rest) is not None or loading_error(_with_inferred_types(rest)) is not None:
        return "", "rejected like the input"
    return f"ONNX Runtime: {reason}", "rejected"


def _with_ir_version(source: bytes) -> bytes:
    """Returns a model with the IR version that bngrad writes: the checker names one that is too old first."""
    proto = onnx.ModelProto.FromString(source)
    proto.ir_version = max(proto.ir_version, MIN_IR_VERSION)
    return proto.SerializeToString()


def _with_inferred_types(source: bytes) -> bytes:
    """Returns a model with the types that onnx infers of the values between its nodes, not those it states."""
    proto = onnx.ModelProto.FromString(source)
    del proto.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(proto, data_prop=True).SerializeToString()


def _checker_problem(model: bytes) -> str | None:
    """Returns the message of onnx's checker about a model; None if the model passes."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # noqa: BLE001 - onnx raises errors of many types
        return str(error)
    return None


def loading_error(model: bytes, *, registered: bool = False) -> str | None:
    """Returns why stock ONNX Runtime does not load a model; None if it does."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if registered:
        register(options)
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises errors of many types
        return str(error)
    return None


def _rest(source: bytes) -> bytes:
    """Returns a training graph without the nodes that `rewrite` replaces; their outputs become graph inputs."""
    Path(MODEL).write_bytes(source)
    model = load(MODEL)
    InferTypesPass()(model)
    replaced = {*unknown_to_stock(model), *foreign_nodes(model)}
    for node in [node for node in model.graph if node in replaced]:
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                new_input = ir.Value(name=f"{value.name}_given", type=value.type, shape=_shape(node, value))
                value.replace_all_uses_with(new_input, replace_graph_outputs=True)
                model.graph.inputs.append(new_input)
        model.graph.remove(node)
    return ir.to_proto(model).SerializeToString()


def _shape(node: ir.Node, value: ir.Value) -> ir.Shape | None:
    """Returns the known shape of an output; that of a batch norm has as many channels as its scale."""
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


def _files() -> dict[str, str]:
    """Returns the hashes of the files in the current folder, by name."""
    hashes = {}
    for entry in os.scandir():
        plain = entry.is_file(follow_symlinks=False)
        hashes[entry.name] = hashlib.sha1(Path(entry).read_bytes()).hexdigest() if plain else "special"  # noqa: S324
    return hashes


def _others(files: dict[str, str]) -> dict[str, str]:
    """Returns the files that no command may change."""
    return {name: content for name, content in files.items() if name not in (OUTPUT, *BESIDE)}


def _remove_new_files(before: dict[str, str]) -> None:
    for name in set(_files()) - {*before, OUTPUT}:
        _remove(name)


def _remove(name: str) -> None:
    Path(name).unlink(missing_ok=True)
