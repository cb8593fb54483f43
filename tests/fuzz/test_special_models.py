"""Runs the commands on huge and deep models, and on models with external data in wrong places.

The processor time and memory of each command are limited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper

import fuzz.limited
from fuzz.judge import CommandResult, run_in_process
from fuzz.regressions import chain

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = ("inspect", "rewrite", "differentiate", "finalize")
NO_DATA = "the model's external data cannot be read: "
FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class Special:
    """A model and the expected message."""

    make: Callable[[], bytes]
    """Returns the content of the model file; called in the model's folder, where it may create other files."""
    message: str = ""
    """The expected error message; empty if the commands succeed."""
    commands: tuple[str, ...] = ("finalize",)
    seconds: int = 60
    """The limit on the processor time."""
    limited: bool = True
    """True if the command has a process of its own, with the limits."""
    megabytes: int = 2000
    """The limit on the address space; Python with onnx and ONNX Runtime uses 800 without a model."""


def _chain(length: int, **options: bool) -> bytes:
    return chain(length, **options).SerializeToString()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _head(number: int, length: int) -> bytes:
    return bytes([number << 3 | 2]) + _varint(length)


def _field(number: int, content: bytes) -> bytes:
    return _head(number, len(content)) + content


def _deep(levels: int) -> bytes:
    """Returns nested branches as bytes, because protobuf does not serialize messages so deep."""
    output = _field(12, _field(1, b"y"))
    attribute, node, end = (
        _field(1, b"then_branch"),
        _field(1, b"c") + _field(2, b"y") + _field(4, b"If"),
        b"\xa0\x01\x05",
    )
    heads, length = [], len(output)
    for _ in range(levels):
        # What is before the inner graph, outward, where only its length counts.
        head = attribute + _head(6, length)
        head = node + _head(5, len(head) + length + len(end)) + head
        heads.append(_head(1, len(head) + length + len(end)) + head)
        length += len(heads[-1]) + len(end) + len(output)
    graph = b"".join(reversed(heads)) + output + (end + output) * levels
    return b"\x08\x08" + _field(7, graph) + _field(8, b"\x10\x11")


def _functions(length: int, *, doubling: bool) -> bytes:
    """Returns functions that each call the next once, or twice, which makes 2^length nodes when inlined."""
    functions = []
    for i in range(length):
        body = [helper.make_node(f"F{i + 1}" if i + 1 < length else "Neg", ["a"], ["b"])]
        if doubling:
            body.append(helper.make_node(body[0].op_type, ["b"], ["c"]))
        for node in body:
            node.domain = "local" if i + 1 < length else ""
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"F{i}", ["a"], [body[-1].output[0]], body, imports))
    nodes = [
        helper.make_node("F0", ["x"], ["y"], domain="local"),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    data = helper.make_tensor_value_info("x", FLOAT, [3])
    graph = helper.make_graph(nodes, "g", [data], [helper.make_tensor_value_info("loss", FLOAT, [])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=8).SerializeToString()


def _external(location: str, **places: str) -> bytes:
    """Returns a model with one weight of 16 bytes in another file."""
    tensor = onnx.TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": location, **places}.items():
        tensor.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    data = helper.make_tensor_value_info("x", FLOAT, [4])
    outputs = [helper.make_tensor_value_info("y", FLOAT, [4]), helper.make_tensor_value_info("loss", FLOAT, [])]
    graph = helper.make_graph(nodes, "g", [data], outputs, [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def _with(make: Callable[[], object], location: str, **places: str) -> Callable[[], bytes]:
    """Returns the same model, after creating files in the folder."""

    def both() -> bytes:
        make()
        return _external(location, **places)

    return both


def _file(size: int) -> Callable[[], object]:
    return lambda: Path("w.bin").write_bytes(bytes(size))


def _outside() -> None:
    Path("../secret.bin").write_bytes(bytes(16))


OUTSIDE = NO_DATA + "{!r}, of tensor 'w': it is outside the model's folder"
SPECIALS = {
    "data": Special(_with(_file(16), "w.bin")),
    "data-in-a-folder-below": Special(
        _with(lambda: (Path("d").mkdir(), Path("d/w.bin").write_bytes(bytes(16))), "d/w.bin")
    ),
    "data-by-a-link-within-the-folder": Special(
        _with(lambda: (_file(16)(), Path("l").symlink_to("w.bin")), "l"),
    ),
    "data-missing": Special(
        lambda: _external("w.bin"), NO_DATA + "'w.bin', of tensor 'w': it does not exist", EVERY
    ),
    "data-truncated": Special(
        _with(_file(15), "w.bin"), NO_DATA + "'w.bin', of tensor 'w': it has 15 bytes; expected 16 from byte 0 on"
    ),
    "data-behind-its-end": Special(
        _with(_file(16), "w.bin", offset="8"),
        NO_DATA + "'w.bin', of tensor 'w': it has 16 bytes; expected 16 from",
    ),
    "data-longer-than-its-file": Special(
        _with(_file(16), "w.bin", length=str(1 << 59)),
        NO_DATA + "'w.bin', of tensor 'w': the model states 576460752303423488 bytes there; expected 16",
    ),
    "data-at-a-negative-place": Special(_with(_file(16), "w.bin", offset="-8"), "is not a valid ONNX model"),
    "data-above": Special(_with(_outside, "../secret.bin"), OUTSIDE.format("../secret.bin")),
    "data-by-an-absolute-path": Special(
        lambda: _external("/etc/passwd"), NO_DATA + "'/etc/passwd', of tensor 'w': expected a path relative to"
    ),
    "data-by-a-link-out": Special(
        _with(lambda: (_outside(), Path("l").symlink_to("../secret.bin")), "l"), OUTSIDE.format("l")
    ),
    "data-of-a-device": Special(
        lambda: _external("/dev/zero"), NO_DATA + "'/dev/zero', of tensor 'w': expected a path relative to"
    ),
    "data-of-a-device-by-a-link": Special(
        _with(lambda: Path("l").symlink_to("/dev/zero"), "l"), OUTSIDE.format("l")
    ),
    "data-of-a-fifo": Special(
        _with(lambda: os.mkfifo("f"), "f"), NO_DATA + "'f', of tensor 'w': it is not a regular file"
    ),
    "data-of-a-folder": Special(
        _with(lambda: Path("d").mkdir(), "d"), NO_DATA + "'d', of tensor 'w': it is not a regular file"
    ),
    "data-of-a-link-in-a-circle": Special(_with(lambda: Path("l").symlink_to("l"), "l"), NO_DATA + "'l'"),
    "a-chain-of-4000-nodes": Special(lambda: _chain(4000), commands=("inspect",)),
    "branches-17-deep": Special(lambda: _deep(17), "it has subgraphs nested 17 deep; expected at most 16"),
    "branches-1000-deep": Special(lambda: _deep(1000), "is not an ONNX model, or is truncated"),
    "branches-100000-deep": Special(lambda: _deep(20_000), "is not an ONNX model, or is truncated"),
    "functions-that-call-30-others-twice": Special(
        lambda: _functions(30, doubling=True),
        "it has 131072 nodes after inlining its functions; expected at most 100000",
        commands=("inspect", "rewrite", "differentiate", "finalize"),
    ),
    "functions-that-call-10-others": Special(lambda: _functions(10, doubling=False), commands=("inspect",)),
}
SPECIALS |= {name: replace(SPECIALS[name], limited=False) for name in SPECIALS if name.startswith("data")}
LONG = {
    "a-chain-of-100000-nodes": Special(
        lambda: _chain(100_000), commands=("inspect",), seconds=150, megabytes=6000
    ),
    "a-broken-chain-of-200000-nodes": Special(
        lambda: _chain(200_000, broken=True), "reads 'nothing', which no preceding node", EVERY, seconds=100,
        megabytes=6000,
    ),
    "a-chain-of-100000-nodes-with-nothing-to-rewrite": Special(
        lambda: _chain(100_000), "expected a training graph", ("rewrite",), seconds=90, megabytes=6000
    ),
}  # fmt: skip
OPTIONS = {
    "inspect": (),
    "rewrite": ("-o", "out.onnx"),
    "differentiate": ("-o", "out.onnx", "--wrt", "x", "--loss", "loss"),
    "finalize": ("-o", "out.onnx", "--weights", "weights.npz", "--keep", "loss"),
}


@pytest.fixture(scope="module")
def limited():
    """Runs a command in a folder within the limits of its special model, in a process of its own."""
    program = subprocess.Popen(
        [sys.executable, fuzz.limited.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )

    def ask(folder: Path, arguments: list[str], special: Special) -> CommandResult:
        program.stdin.write(json.dumps([str(folder), arguments, special.seconds, special.megabytes]) + "\n")
        program.stdin.flush()
        return CommandResult(*json.loads(program.stdout.readline()))

    with program:
        yield ask


def check(special: Special, command: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """Runs a command within its limits, and checks its output and the files afterwards."""
    home = folder / "home"
    home.mkdir()
    os.chdir(home)
    (home / "model.onnx").write_bytes(special.make())
    np.savez(home / "weights.npz")
    before = sorted(path.name for path in home.iterdir())
    arguments = [command, "model.onnx", *OPTIONS[command]]
    if special.limited:
        result = request.getfixturevalue("limited")(home, arguments, special)
    else:
        result = run_in_process(arguments)
    written = ["out.onnx"] if not special.message and command != "inspect" else []
    assert result.code == (2 if special.message else 0), result.stderr[:2000]
    assert special.message in result.stderr
    assert len(result.stderr.splitlines()) == (1 if special.message else 0), result.stderr[:2000]
    assert "internal error" not in result.stderr
    assert sorted(path.name for path in home.iterdir()) == sorted([*before, *written])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def each(table):
    return pytest.mark.parametrize(
        ("name", "command"), [(name, command) for name, special in table.items() for command in special.commands]
    )


@each(SPECIALS)
def test_a_special_model(name, command, tmp_path, request):
    check(SPECIALS[name], command, tmp_path, request)


@pytest.mark.long
@each(LONG)
def test_a_special_model_that_takes_long(name, command, tmp_path, request):
    check(LONG[name], command, tmp_path, request)
