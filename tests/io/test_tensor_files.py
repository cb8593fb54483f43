"""Tensor files: what is written is read back, files are replaced as a whole, and what is refused."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.io.tensor_files import read_tensors, write_tensors

ARRAYS = {
    "float": np.float32([[1, 2], [3, np.nan]]),
    "double": np.array([1e300, -0.0]),
    "half": np.float16([1, 2, 3]),
    "bfloat16": np.ones(2, ml_dtypes.bfloat16),
    "int64": np.int64([1, -2]),
    "bool": np.array([True, False]),
    "scalar": np.array(7, np.int64),
    "empty": np.empty((0, 3), np.float32),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "view": np.arange(10, dtype=np.float32)[2:6],
    "strided": np.arange(10, dtype=np.float32)[::2],
}


def bits(arrays):
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}


def test_written_tensors_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, ARRAYS, {"key": "value"})
    arrays, metadata = read_tensors(path)
    assert (bits(arrays), metadata) == (bits(ARRAYS), {"key": "value"})
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_file_without_metadata(tmp_path):
    write_tensors(tmp_path / "a", {"x": ARRAYS["float"]}, {})
    assert read_tensors(tmp_path / "a")[1] == {}


def test_arrays_that_were_read_can_be_changed(tmp_path):
    write_tensors(tmp_path / "a", {"x": np.zeros(3)}, {})
    arrays, _ = read_tensors(tmp_path / "a")
    arrays["x"][:] = 1
    assert read_tensors(tmp_path / "a")[0]["x"].tolist() == [0, 0, 0]


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX modes")
def test_the_file_has_the_usual_mode(tmp_path):
    (tmp_path / "usual").touch()
    write_tensors(tmp_path / "a", {"x": np.zeros(3)}, {})
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "a")}
    assert len(modes) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits")
def test_a_full_disk_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": np.zeros(3)}, {})
    before = path.read_bytes()
    program = (
        "import resource, sys, numpy, pathlib; from bngrad.io.tensor_files import write_tensors\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "write_tensors(pathlib.Path(sys.argv[1]), {'x': numpy.ones(2000)}, {})"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"bngrad.errors.InputError: {path} cannot be written: File too large"
    assert (path.read_bytes(), [path.name for path in tmp_path.iterdir()]) == (before, ["a.safetensors"])


def _float8():
    header = b'{"x":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    return struct.pack("<Q", len(header)) + header + b"\0"


REFUSED = {
    "text": (b"not a tensor file", "is not a .safetensors file, or is damaged: "),
    "empty": (b"", "is not a .safetensors file, or is damaged: "),
    "zip": (b"PK\3\4" + bytes(100), "is not a .safetensors file, or is damaged: "),
    "float8": (_float8(), "has a tensor of a type that NumPy lacks: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_files(case, tmp_path):
    content, message = REFUSED[case]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_tensors(tmp_path / "a")
    assert str(raised.value).startswith(f"{tmp_path / 'a'} {message}")


def test_a_truncated_file(tmp_path):
    path = tmp_path / "a"
    write_tensors(path, ARRAYS, {})
    for size in (4, 100, path.stat().st_size - 1):
        (tmp_path / "b").write_bytes(path.read_bytes()[:size])
        with pytest.raises(InputError, match=r"is not a .safetensors file, or is damaged"):
            read_tensors(tmp_path / "b")


@pytest.mark.parametrize(("name", "message"), [("none", "does not exist"), (".", "is a directory")])
def test_refused_paths(name, message, tmp_path):
    with pytest.raises(InputError, match=f"{message}; expected a .safetensors file"):
        read_tensors(tmp_path / name)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written: No such file or directory"):
        write_tensors(tmp_path / "none" / "a", {"x": np.zeros(3)}, {})
