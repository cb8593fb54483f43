"""Tests the checkpoint files that are written and read without onnxruntime.training."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from flatbuffers import Builder

from bngrad.errors import InputError
from bngrad.ort_training import checkpoint_file, checkpoint_schema, flatbuffer
from bngrad.ort_training.checkpoint_file import (
    GROUP,
    Checkpoint,
    OptimizerGroup,
    read_checkpoint,
    write_checkpoint,
)
from bngrad.ort_training.errors import OrtTrainingError

DTYPES = ("float32", "float64", "float16", ml_dtypes.bfloat16, "int8", "uint8", "int16", "int32", "int64", "bool")
SHAPES = ((), (1,), (0,), (2, 0, 3), (3, 2), (1, 2, 1, 2, 1))


def checkpoint(rng):
    weights = {"w": rng.normal(size=(3, 4)).astype("f"), "b": rng.normal(size=4).astype("f")}
    moments = {name: {"momentum0": w * 2, "momentum1": w * w} for name, w in weights.items()}
    properties = {"epoch": 3, "": -(2**63), "loss": 0.5, "comment": "näh"}
    group = OptimizerGroup(7, 0.0009765625, moments)
    return Checkpoint(weights, {"mean": np.zeros(4, "f")}, groups={GROUP: group}, properties=properties)


def flat(value):
    """Everything in a checkpoint, comparable, with the order of names."""
    if isinstance(value, dict):
        return [(name, flat(item)) for name, item in value.items()]
    if dataclasses.is_dataclass(value):
        return flat(vars(value))
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (type(value), value)


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


CASES = {
    "whole": checkpoint,
    "empty": lambda _: Checkpoint(),
    "nominal": lambda _: Checkpoint({"w": np.empty(0, "f")}, {"m": np.empty(0, "f")}, nominal=True),
    "one-property": lambda _: Checkpoint(properties={"s": ""}),
    "step-0": lambda _: Checkpoint(groups={GROUP: OptimizerGroup(0, 0.0, {})}),
    "types": lambda _: Checkpoint({str(np.dtype(t)): np.ones((2, 3), t) for t in DTYPES}),
    "shapes": lambda _: Checkpoint({str(shape): np.ones(shape, "f") for shape in SHAPES}),
    "strides": lambda rng: Checkpoint({"t": rng.normal(size=(3, 4)).T, "every-other": np.arange(10)[::2]}),
}


@pytest.mark.parametrize("external", [False, True], ids=["inline", "data-file"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read(case, external, tmp_path, rng, monkeypatch):
    if external:
        monkeypatch.setattr(checkpoint_file, "_MAX_INLINE_BYTES", -1)
    content = CASES[case](rng)
    write_checkpoint(content, tmp_path / "checkpoint")
    assert flat(read_checkpoint(tmp_path / "checkpoint")) == flat(content)
    assert listing(tmp_path) == ["checkpoint", *(["checkpoint.data"] if external else [])]


def test_arrays_can_be_written_to(tmp_path, rng):
    write_checkpoint(checkpoint(rng), tmp_path / "checkpoint")
    assert read_checkpoint(tmp_path / "checkpoint").trainable["w"].flags.writeable


UNWRITABLE = {
    "a-property-of-no-type": (Checkpoint(properties={"p": None}), "property 'p' is NoneType; expected int, float"),
    "a-property-of-65-bits": (Checkpoint(properties={"p": 2**63}), "do not fit in a flatbuffer"),
    "a-float-beyond-32-bits": (Checkpoint(properties={"p": 1e60}), "do not fit in a flatbuffer"),
    "strings": (Checkpoint({"w": np.array(["a"])}), "tensor 'w' is <U1; expected numbers"),
    "objects": (Checkpoint({"w": np.array([None])}), "tensor 'w' is object; expected numbers"),
    "dates": (
        Checkpoint({"w": np.array(["2020"], "M8[s]")}),
        "tensor 'w' is datetime64[s], which ONNX has no type",
    ),
    "a-step-that-is-no-number": (
        Checkpoint(groups={GROUP: OptimizerGroup("7", 0.1, {})}),
        "do not fit in a flatbuffer",
    ),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_cannot_be_written_leaves_the_old_file(case, tmp_path, rng):
    path = tmp_path / "checkpoint"
    write_checkpoint(checkpoint(rng), path)
    before = path.read_bytes()
    unwritable, message = UNWRITABLE[case]
    with pytest.raises(OrtTrainingError) as caught:
        write_checkpoint(unwritable, path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert path.read_bytes() == before
    assert listing(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("name", ["no/checkpoint", ""], ids=["folder-missing", "a-folder"])
def test_paths_that_cannot_be_written(name, tmp_path):
    with pytest.raises(RuntimeError, match=r"cannot be written|is a directory|does not exist"):
        write_checkpoint(Checkpoint(), tmp_path / name)


def content(rng, tmp_path):
    write_checkpoint(checkpoint(rng), tmp_path / "whole")
    return (tmp_path / "whole").read_bytes()


UNREADABLE = {
    "empty": (lambda _: b"", "it lacks the identifier ODTC"),
    "text": (lambda _: b"not a checkpoint at all", "it lacks the identifier ODTC"),
    "another-flatbuffer": (lambda whole: whole.replace(b"ODTC", b"ORTM", 1), "it lacks the identifier ODTC"),
    "half": (lambda whole: whole[: len(whole) // 2], "an offset or a length in it points outside"),
    "header": (lambda whole: whole[:8], "an offset or a length in it points outside"),
    "same-name": (
        lambda whole: whole.replace(b"mean", b"w\0\0\0").replace(b"\4\0\0\0w\0\0\0", b"\1\0\0\0w\0\0\0"),
        "both",
    ),
    "not-utf8": (lambda whole: whole.replace("näh".encode(), b"n\xff\xffh"), "an offset or a length in it points"),
}


def with_tensors(tensors):
    """A file of trainable tensors, whatever they are."""
    values = {"version": 2, "module_state": {"requires_grad_params": tensors}}
    return bytes(flatbuffer.write(values, checkpoint_schema.CHECKPOINT, b"ODTC"))


UNREADABLE |= {
    f"a-tensor-of-shape-{name}": (
        lambda _, dims=dims, raw=raw: with_tensors([{"name": "w", "dims": dims, "data_type": 1, "raw_data": raw}]),
        "tensor 'w' has",
    )
    for name, dims, raw in (
        ("rank-70", [1] * 70, b"1234"),
        ("0-by-2^62", [0, 2**62], b""),
        ("2^62", [2**62], b""),
        ("negative", [-1], b""),
    )
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_other_files_are_refused(case, tmp_path, rng):
    change, message = UNREADABLE[case]
    path = tmp_path / "checkpoint"
    path.write_bytes(change(content(rng, tmp_path)))
    with pytest.raises(RuntimeError, match=message) as caught:
        read_checkpoint(path)
    assert isinstance(caught.value, InputError)
    assert str(caught.value).startswith(f"{path} is not a checkpoint of onnxruntime.training")


def test_another_version_is_refused(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(checkpoint_file, "VERSION", 1)
    path = tmp_path / "checkpoint"
    write_checkpoint(checkpoint(rng), path)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="it has version 1 of the format; expected 2"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["missing", ""], ids=["missing", "a-folder"])
def test_paths_that_cannot_be_read(name, tmp_path):
    with pytest.raises(RuntimeError, match="cannot be read"):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize(("data", "message"), [(None, "checkpoint.data cannot be read"), (b"short", "of its")])
def test_a_data_file_that_is_missing_or_short(data, message, tmp_path, rng, monkeypatch):
    monkeypatch.setattr(checkpoint_file, "_MAX_INLINE_BYTES", 0)
    write_checkpoint(checkpoint(rng), tmp_path / "checkpoint")
    (tmp_path / "checkpoint.data").unlink()
    if data is not None:
        (tmp_path / "checkpoint.data").write_bytes(data)
    with pytest.raises(RuntimeError, match=message):
        read_checkpoint(tmp_path / "checkpoint")


def test_damaged_files_are_refused_or_read(tmp_path, rng):
    """Whatever bytes are changed or missing, there is no other error."""
    whole, path = content(rng, tmp_path), tmp_path / "checkpoint"
    refused = 0
    for trial in range(600):
        damaged = bytearray(whole[: rng.integers(len(whole))] if trial % 3 == 0 else whole)
        for at in rng.integers(len(damaged), size=trial % 3) if damaged else ():
            damaged[at] = rng.choice([0, 1, 127, 128, 255])
        path.write_bytes(damaged)
        try:
            read_checkpoint(path)
        except OrtTrainingError:
            refused += 1
    assert refused > 300


def test_tensors_that_share_their_bytes_are_refused(tmp_path):
    """Each is within the data file, but a small file could name the same bytes any number of times."""
    shared = {"data_type": 2, "dims": [9999], "external_data_offset": 0}
    module = {"requires_grad_params": [{"name": str(i), **shared} for i in range(9)], "has_external_data": True}
    values = {"version": 2, "module_state": module}
    (tmp_path / "c").write_bytes(flatbuffer.write(values, checkpoint_schema.CHECKPOINT, b"ODTC"))
    (tmp_path / "c.data").write_bytes(bytes(9999))
    with pytest.raises(RuntimeError, match="shares its bytes with another"):
        read_checkpoint(tmp_path / "c")


def test_tables_that_share_others_are_refused(tmp_path):
    """60 groups that are one, of 60 states that are one, of 60 tensors that are one."""
    builder = Builder(0)

    def table(number, **fields):
        builder.StartObject(number)
        for slot, offset in fields.items():
            builder.PrependUOffsetTRelativeSlot(int(slot[1:]), offset, 0)
        return builder.EndObject()

    def sixty(offset):
        builder.StartVector(4, 60, 4)
        for _ in range(60):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    name = builder.CreateString("w")
    state = table(2, _0=name, _1=sixty(table(7, _0=name)))
    groups = sixty(table(4, _0=name, _3=sixty(state)))
    builder.Finish(table(4, _2=groups), file_identifier=b"ODTC")
    (tmp_path / "c").write_bytes(builder.Output())
    with pytest.raises(RuntimeError, match="an offset or a length in it points outside of it"):
        read_checkpoint(tmp_path / "c")
