"""Mutations of files that are no models: JSON and what holds it, arrays, tensors by name, and logs."""

from __future__ import annotations

import copy
import io
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from fuzz import mutate_bytes
from fuzz.draw import FLOATS, NAMES, SIZES

if TYPE_CHECKING:
    from fuzz.draw import Draw

_VALUES: tuple[Any, ...] = (None, True, "x", "", [], {}, [1], {"a": 1}, *SIZES, *FLOATS, 10**30, -1, 0.5, *NAMES)
"""Values that replace a value of JSON."""


_TYPES = ("f2", "f8", "i1", "i8", "u8", "c8", "?", "S3", "U3", "M8[s]", "m8[s]", "V3", ">f4", "O")


def mutate_bytes_of(draw: Draw, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        if data:
            draw.choice(mutate_bytes.MUTATIONS)(draw, data)
    return bytes(data)


def mutate_json(draw: Draw, document: Any) -> Any:
    """Returns a document with one to three values replaced, removed, added or renamed, at any depth."""
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            return draw.choice(_VALUES)
        parent, key = draw.choice(places)
        kind = draw.randrange(6)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[draw.choice(NAMES)] = parent.pop(key)
        elif kind == 2:  # the value of another place
            other, there = draw.choice(places)
            parent[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
        elif kind == 3 and isinstance(parent, dict):
            parent[draw.choice(NAMES)] = draw.choice(_VALUES)
        else:
            parent[key] = draw.choice(_VALUES)
    return document


def _keys(document: Any) -> Any:
    return document.keys() if isinstance(document, dict) else range(len(document))


def _places(document: Any) -> Any:
    """Yields each container in a document with each of its keys."""
    if isinstance(document, dict | list):
        for key in list(_keys(document)):
            yield document, key
            yield from _places(document[key])


def _json_text(draw: Draw, text: str) -> str:
    """Returns a JSON text with another value, or rarely another text."""
    try:
        document = json.loads(text)
    except ValueError:  # it was changed before
        document = None
    if document is None or draw.chance(0.1):
        return draw.choice(("", "null", "[", "[" * 5000, '"x"', "{}", text[: len(text) // 2]))
    return json.dumps(mutate_json(draw, document))


def mutate_safetensors(draw: Draw, content: bytes) -> bytes:
    """Changes the header, or the JSON in its metadata."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = header.get("__metadata__", {})
    if metadata and draw.chance(0.7):
        key = draw.choice(list(metadata))
        metadata[key] = _json_text(draw, metadata[key])
    elif draw.chance(0.5):  # another type of the same size, or another order of the same data
        tensor = header[draw.choice([key for key in header if key != "__metadata__"])]
        kind = draw.randrange(3)
        if kind == 0:
            tensor["dtype"] = draw.choice(("I32", "U32", "F32", "I8", "BF16", "F8_E4M3", "C64", "BOOL"))
        elif kind == 1:
            tensor["shape"] = draw.choice(
                ([], [1], tensor["shape"][::-1], [*tensor["shape"], 1], [0], [1 << 62, 4])
            )
        else:
            data = draw.randbytes(len(data))
    else:
        header = mutate_json(draw, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def mutate_npz(draw: Draw, content: bytes) -> bytes:
    """Changes the arrays of an archive, or their names."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for _ in range(draw.choice((1, 1, 2))):
        name = draw.choice(list(arrays) or [""])
        kind = draw.randrange(5)
        if kind == 0:
            arrays.pop(name, None)
        elif kind == 1:
            arrays[draw.choice(("x", "w", "labels", "a", "loss", "é"))] = arrays.get(name, np.zeros(3))
        else:
            arrays[name or "x"] = mutate_array(draw, arrays.get(name, np.zeros(3, np.float32)))
    file = io.BytesIO()
    draw.choice((np.savez, np.savez_compressed))(file, **arrays)
    return file.getvalue()


def mutate_npy(draw: Draw, content: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, mutate_array(draw, np.load(io.BytesIO(content))))
    return file.getvalue()


def mutate_array(draw: Draw, array: np.ndarray) -> np.ndarray:
    """Returns an array of another type, shape or with other values."""
    kind = draw.randrange(4)
    if kind == 0:
        name = draw.choice(
            ("f2", "f8", "i1", "i8", "u8", "c8", "?", "S3", "U3", "M8[s]", "m8[s]", "V3", ">f4", "O")
        )
        with np.errstate(all="ignore"):
            is_number = array.dtype.kind in "biufc" and name[0] not in "SUMmVO"
            return array.astype(name) if is_number else np.zeros(array.shape, name)
    if kind == 1:
        shapes = ((), (0,), (1,), (3, 0), (*array.shape, 1), array.shape[::-1], (1, *array.shape), (2,) * 12)
        return np.resize(array, draw.choice(shapes))
    if kind == 2:
        return array[: draw.choice((0, 1, 2, 5))] if array.ndim else array
    changed = array.copy().reshape(-1)
    if changed.size and changed.dtype.kind in "fiu":
        values = FLOATS if changed.dtype.kind == "f" else (-1, 3, 100, 1 << 31, -(1 << 63))
        changed[draw.randrange(changed.size)] = np.array(draw.choice(values)).astype(changed.dtype)
    return changed.reshape(array.shape)


def mutate_log(draw: Draw, content: bytes) -> bytes:
    """Changes some lines of JSON."""
    lines = content.decode().splitlines()
    for _ in range(draw.choice((1, 1, 2, 4))):
        index = draw.randrange(len(lines))
        lines[index] = _json_text(draw, lines[index]) if lines[index].startswith("{") else draw.choice(NAMES)
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def mutate_metadata(draw: Draw, content: bytes) -> bytes:
    """Changes the metadata of a model: a step's is a JSON document."""
    model = onnx.ModelProto.FromString(content)
    entry = draw.some(model.metadata_props)
    if entry is not None:
        kind = draw.randrange(6)
        if kind == 0:
            model.metadata_props.remove(entry)
        elif kind == 1:
            entry.key = draw.choice((*NAMES, *(other.key for other in model.metadata_props)))
        elif entry.value[:1] in ("{", "["):
            entry.value = _json_text(draw, entry.value)
        else:
            entry.value = draw.choice(("", "{}", "null", "x", "1" * 30, *NAMES))
    return model.SerializeToString()


BY_SUFFIX = {
    ".safetensors": mutate_safetensors,
    ".npz": mutate_npz,
    ".npy": mutate_npy,
    ".jsonl": mutate_log,
    ".onnx": mutate_metadata,
}
"""The mutations that keep the format of a file, by its suffix."""


def mutate_file(draw: Draw, name: str, content: bytes) -> bytes:
    """Returns a changed file: its bytes, or its values within its format."""
    if draw.chance(0.2):
        return mutate_bytes_of(draw, content)
    return BY_SUFFIX[name[name.rindex(".") :]](draw, content)
