"""Tests reading and atomic writing of models."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import InputError, ModelError
from bngrad.io import files, writing

TRAINING_GRAPH = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N,3,4] dy, float[N,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v)
    => (float[N,3,4] dx, float[3] ds, float[3] db) {
    y, m2, v2, sm, si = com.microsoft.BatchNormInternal<epsilon = 0.001, momentum = 0.9>(x, s, b, m, v)
    dx, ds, db = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(dy, x, s, sm, si)
}"""
WEIGHTS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float[4] u = {5, 6, 7, 8}> {
    z = Add(x, w)
    y = Mul(z, u)
}"""


def proto(text=TRAINING_GRAPH):
    return onnx.parser.parse_model(text)


def model_file(folder, text=TRAINING_GRAPH, name="model.onnx"):
    path = folder / name
    path.write_bytes(proto(text).SerializeToString())
    return path


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


# ---- load ----


@pytest.mark.parametrize("kind", [str, Path], ids=["str", "path"])
def test_load(kind, tmp_path):
    model = files.load(kind(model_file(tmp_path)))
    assert [node.op_type for node in model.graph] == ["BatchNormInternal", "BatchNormalizationGrad"]


NOT_VALID_PROTOBUF = "{} is not an ONNX model, or is truncated ({} bytes): not valid protobuf"
NOT_MODELS = {
    "empty": (b"", "{} is empty; expected an ONNX model"),
    "text": (b"hello world, this is not a model\n", NOT_VALID_PROTOBUF),
    "zeros": (bytes(100), NOT_VALID_PROTOBUF),
    "truncated": (proto().SerializeToString()[:250], NOT_VALID_PROTOBUF),
    "a-tensor": (
        onnx.numpy_helper.from_array(np.ones(3)).SerializeToString(),
        "{} is not an ONNX model: it has no graph",
    ),
    "no-graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "{} is not an ONNX model: it has no graph"),
    "a-value-from-nowhere": (
        proto(WEIGHTS.replace("z = Add(x, w)", "z = Add(x, q)")).SerializeToString(),
        "{} is not valid: Add node (outputs z) reads 'q', which no preceding node produces",
    ),
    "nodes-out-of-order": (
        proto(
            WEIGHTS.replace("z = Add(x, w)", "").replace("y = Mul(z, u)", "y = Mul(z, u) z = Add(x, w)")
        ).SerializeToString(),
        "{} is not valid: Mul node (outputs y) reads 'z', which no preceding node produces",
    ),
    "an-output-from-nowhere": (
        proto(WEIGHTS.replace("(float[4] y)", "(float[4] y, float[4] q)")).SerializeToString(),
        "{} is not valid: no node produces its output 'q'",
    ),
    "a-value-made-twice": (
        proto(WEIGHTS.replace("y = Mul", "z = Mul")).SerializeToString(),
        "{} is not a valid ONNX model: Output 'z' is redeclared in the current graph scope.",
    ),
}


@pytest.mark.parametrize("case", NOT_MODELS)
def test_load_refuses_what_is_no_model(case, tmp_path):
    content, message = NOT_MODELS[case]
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError) as error:
        files.load(path)
    assert str(error.value).startswith(message.format(path, len(content)))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("case", [c for c in NOT_MODELS if "-value-" in c or "-order" in c or "-output-" in c])
def test_a_proto_that_is_no_model_is_refused_like_a_file(case):
    model = onnx.ModelProto.FromString(NOT_MODELS[case][0])
    with pytest.raises(ModelError) as error:
        files.as_ir(model)
    assert str(error.value).startswith("the model ")
    assert len(str(error.value)) < 400


def test_values_of_outer_graphs_and_of_functions_are_made_somewhere(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
        h = f.F(x)
        y = If(c) <then_branch = t () => (float[2] a) { a = Add(h, w) },
                   else_branch = e () => (float[2] b) <float[2] u = {1, 2}> { b = Mul(x, u) }>
    }
    <domain: "f", opset_import: ["" : 17]> F (a) => (b) { c = Neg(a)  b = Neg(c) }"""
    assert len(files.load(model_file(tmp_path, text)).graph) == 2


@pytest.mark.parametrize("folder_in_place", [True, False], ids=["directory", "missing"])
def test_load_refuses_what_is_no_file(folder_in_place, tmp_path):
    path = tmp_path / "model.onnx"
    if folder_in_place:
        path.mkdir()
    problem = "is a directory" if folder_in_place else "does not exist"
    with pytest.raises(InputError) as error:
        files.load(path)
    assert str(error.value) == f"{path} {problem}; expected an ONNX model file"


def test_load_of_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    def denied(*_arguments, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    path = model_file(tmp_path)
    monkeypatch.setattr(onnx, "load", denied)
    with pytest.raises(InputError) as error:
        files.load(path)
    assert str(error.value) == f"{path} cannot be read: Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_load_of_a_file_without_rights(tmp_path):
    path = model_file(tmp_path)
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        files.load(path)


# ---- as_ir, and the kinds of rewrite ----


def test_as_ir_takes_every_kind(tmp_path):
    path = model_file(tmp_path)
    model = ir.from_proto(proto())
    assert files.as_ir(model) is model
    for argument in (path, str(path), proto()):
        assert isinstance(files.as_ir(argument), ir.Model)


@pytest.mark.parametrize("argument", [None, 3, b"model.onnx", {"a": 1}], ids=["none", "int", "bytes", "dict"])
def test_as_ir_refuses_the_rest(argument):
    with pytest.raises(InputError, match=f"model has type {type(argument).__name__}; expected"):
        files.as_ir(argument)


@pytest.mark.parametrize("kind", ["path", "str", "proto", "ir"])
def test_rewrite_answers_in_kind_and_leaves_its_argument_alone(kind, tmp_path):
    path = model_file(tmp_path)
    model = {"path": path, "str": str(path), "proto": proto(), "ir": ir.from_proto(proto())}[kind]
    result = bngrad.rewrite(model)
    assert isinstance(result, ir.Model if kind == "ir" else onnx.ModelProto)
    rewritten = ir.to_proto(result) if kind == "ir" else result
    assert {node.domain for node in rewritten.graph.node} == {"", "bngrad"}
    if kind == "ir":
        model = ir.to_proto(model)
    left = proto() if kind in ("path", "str") else model
    assert [node.op_type for node in left.graph.node] == ["BatchNormInternal", "BatchNormalizationGrad"]
    assert path.read_bytes() == proto().SerializeToString()
    assert listing(tmp_path) == ["model.onnx"]


@pytest.mark.parametrize("model", [onnx.ModelProto(), proto(WEIGHTS)], ids=["empty", "no-batch-norm"])
def test_rewrite_refuses_a_model_with_nothing_to_rewrite(model):
    with pytest.raises(ModelError):
        bngrad.rewrite(model)


# ---- check_output ----


def test_check_output_accepts_new_and_existing_files(tmp_path, monkeypatch):
    source = model_file(tmp_path)
    existing = model_file(tmp_path, name="old.onnx")
    assert writing.check_output(tmp_path / "new.onnx", source) == tmp_path / "new.onnx"
    assert writing.check_output(str(existing), source) == existing
    assert writing.check_output(existing) == existing
    assert writing.check_output(tmp_path / "new.onnx", tmp_path / "missing.onnx") == tmp_path / "new.onnx"
    monkeypatch.chdir(tmp_path)
    assert writing.check_output("new.onnx", source) == Path("new.onnx")


def test_check_output_refuses_the_input_by_any_name(tmp_path, monkeypatch):
    source = model_file(tmp_path)
    (tmp_path / "folder").mkdir()
    symbolic, hard = tmp_path / "symbolic.onnx", tmp_path / "hard.onnx"
    symbolic.symlink_to(source)
    hard.hardlink_to(source)
    monkeypatch.chdir(tmp_path)
    for output in (source, "model.onnx", tmp_path / "folder" / ".." / "model.onnx", symbolic, hard):
        with pytest.raises(InputError) as error:
            writing.check_output(output, source)
        assert str(error.value) == f"output {output} is the input; choose another file"


@pytest.mark.skipif(os.name != "posix", reason="needs named pipes")
def test_check_output_refuses_to_take_the_place_of_a_device(tmp_path):
    """Renaming a file to /dev/null would replace the device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(os.devnull)
    for output in (Path(os.devnull), tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(InputError) as error:
            writing.check_output(output)
        assert str(error.value).startswith(f"output {output} is a device or a pipe")


def test_check_output_refuses_places_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for output, message in (
        (tmp_path, f"output {tmp_path} is a directory; expected a file"),
        (tmp_path / "no" / "m.onnx", f"output folder {tmp_path / 'no'} does not exist; create it first"),
        (tmp_path / "file" / "m.onnx", f"output folder {tmp_path / 'file'} does not exist; create it first"),
    ):
        with pytest.raises(InputError) as error:
            writing.check_output(output)
        assert str(error.value) == message
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError) as error:
        writing.check_output(tmp_path / "m.onnx")
    assert str(error.value) == f"output folder {tmp_path} is not writable"


# ---- replacing and save ----


def test_replacing_writes_a_file_with_the_usual_rights(tmp_path):
    path = tmp_path / "out"
    with writing.replacing(path) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert not path.exists()
    usual = tmp_path / "usual"
    usual.write_text("")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    assert listing(tmp_path) == ["out", "usual"]


class StopError(Exception):
    """An error while a file is written."""


def test_replacing_keeps_the_old_file_on_any_failure(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")

    def fail(error):
        with writing.replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(StopError):
        fail(StopError())
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    with pytest.raises(InputError) as error:
        fail(OSError(errno.ENOSPC, "No space left on device"))
    assert str(error.value) == f"{path} cannot be written: No space left on device"
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("winerror", "remedy"),
    [(5, "; if a program has it open, close it"), (32, "; if a program has it open, close it"), (112, "")],
)
def test_replacing_a_file_that_is_open_on_windows(tmp_path, monkeypatch, winerror, remedy):
    """112 is a full disk."""

    def refuse(*_):
        error = PermissionError(errno.EACCES, "Access is denied")
        error.winerror = winerror
        raise error

    monkeypatch.setattr(Path, "replace", refuse)
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(InputError) as error, writing.replacing(path) as temporary:
        temporary.write_text("new")
    assert str(error.value) == f"{path} cannot be written: Access is denied{remedy}"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no/out", "No such file or directory"), ("x" * 250, "File name too long")],
    ids=["no-folder", "long-name"],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the messages of POSIX")
def test_replacing_where_no_file_can_be_made(name, reason, tmp_path):
    with (
        pytest.raises(InputError, match=f"cannot be written: {reason}"),
        writing.replacing(tmp_path / name),
    ):
        raise AssertionError("nothing to write to")


def test_save_and_load_again(tmp_path):
    path = tmp_path / "out.onnx"
    model = proto(WEIGHTS)
    files.save(ir.from_proto(model), path)
    saved = onnx.load(path)
    assert (saved.ir_version, saved.opset_import) == (model.ir_version, model.opset_import)
    assert [node.op_type for node in saved.graph.node] == ["Add", "Mul"]
    assert saved.graph.input == model.graph.input
    assert saved.graph.output == model.graph.output
    np.testing.assert_array_equal(run(path), [5, 12, 21, 32])
    assert listing(tmp_path) == ["out.onnx"]


def full_disk(monkeypatch):
    def write(path, content):
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)


@pytest.mark.parametrize("old", [b"old", None], ids=["over-an-old-file", "new"])
def test_save_on_a_full_disk(old, tmp_path, monkeypatch):
    path = tmp_path / "out.onnx"
    if old:
        path.write_bytes(old)
    full_disk(monkeypatch)
    with pytest.raises(InputError) as error:
        files.save(ir.from_proto(proto()), path)
    assert str(error.value) == f"{path} cannot be written: No space left on device"
    assert listing(tmp_path) == (["out.onnx"] if old else [])
    assert not old or path.read_bytes() == old


def external(folder, name="model.onnx", data="weights.bin"):
    path, model = folder / name, proto(WEIGHTS)
    for tensor in model.graph.initializer:  # only raw data is moved out
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def run(path):
    from bngrad.runtime.session import session

    return session(path, "function").run(None, {"x": np.zeros(4, np.float32)})[0]


def test_a_model_with_external_data_is_saved_whole(tmp_path):
    """The output folder may differ, so relative paths must not be kept."""
    source = external(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("model.onnx", "weights.bin")}
    target = tmp_path / "elsewhere"
    target.mkdir()
    files.save(files.load(source), target / "out.onnx")
    assert listing(target) == ["out.onnx"]
    np.testing.assert_array_equal(run(target / "out.onnx"), run(source))
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_external_data_that_is_missing(tmp_path):
    source = external(tmp_path)
    loaded = files.load(source)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match=r"weights.bin"):
        files.save(loaded, tmp_path / "out.onnx")
    with pytest.raises(InputError, match=r"'weights.bin', of tensor 'w': it does not exist"):
        files.load(source)
    assert listing(tmp_path) == ["model.onnx"]


def test_external_data_that_is_truncated(tmp_path):
    source = external(tmp_path)
    loaded = files.load(source)
    (tmp_path / "weights.bin").write_bytes(b"1234567")
    with pytest.raises(InputError, match="external data cannot be read: buffer is smaller than requested size"):
        files.save(loaded, tmp_path / "out.onnx")
    with pytest.raises(InputError, match=r"external data cannot be read: 'weights.bin', .* it has 7 bytes"):
        files.load(source)
    assert listing(tmp_path) == ["model.onnx", "weights.bin"]
