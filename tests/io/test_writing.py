"""Tests where outputs go: a link is followed, and anything but a regular file is refused and stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.io.arrays import load_array, load_arrays
from bngrad.io.files import load
from bngrad.io.tensor_files import read_tensors, write_tensors
from bngrad.io.writing import check_output, destination, write_text
from bngrad.training.run_log import RunLog
from bngrad.training.weights_file import load_weights

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links and pipes")

WRITERS = {
    "text": lambda path: write_text(path, "new"),
    "tensors": lambda path: write_tensors(path, {"x": np.zeros(3)}, {}),
    "log": RunLog,
}


def followed(folder):
    """Yields links, and the file that each names."""
    below = folder / "below"
    below.mkdir()
    for name in ("old", "kept"):
        (below / name).write_text("old")
    links = {
        "relative": ("below/old", below / "old"),
        "absolute": (below / "old", below / "old"),
        "of a link": ("relative", below / "old"),
        "to what is to be made": ("below/new", below / "new"),
        "with ..": ("below/../below/old", below / "old"),
    }
    for name, (link, target) in links.items():
        (folder / name).symlink_to(link)
        yield folder / name, target
    (folder / "folder").symlink_to("below")
    yield folder / "folder" / "old", below / "old"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_is_followed(writer, tmp_path):
    for link, target in followed(tmp_path):
        was_link = link.is_symlink()
        before = target.stat().st_ino if target.exists() else None
        assert check_output(link) == link
        WRITERS[writer](link)
        assert (link.is_symlink(), target.is_symlink()) == (was_link, False)
        assert target.stat().st_ino != before  # replaced, not written over
        assert link.read_bytes() == target.read_bytes() != b"old"
    assert sorted(path.name for path in (tmp_path / "below").iterdir()) == ["kept", "new", "old"]


def special(folder):
    """Yields outputs that are refused, and the beginning of the reason."""
    (folder / "file").write_text("old")
    (folder / "real").mkdir()
    os.mkfifo(folder / "pipe")
    descriptor = os.open(folder / "file", os.O_RDONLY)  # what a shell does for `> file`
    for name, link, reason in (
        ("to a device", os.devnull, "is a device or a pipe; expected a regular file"),
        ("to a pipe", "pipe", "is a device or a pipe; expected a regular file"),
        ("to an open file", f"/proc/self/fd/{descriptor}", "is a link to /proc/self/fd/"),
        ("to such a link", "to an open file", "is a link to /proc/self/fd/"),
        ("to what is not in dev", "/dev/bngrad-test-output", "is a link to /dev/bngrad-test-output"),
        ("to itself", "to itself", "cannot be written: Too many levels of symbolic links"),
        ("to a folder", "real", "is a directory; expected a file"),
    ):
        (folder / name).symlink_to(link)
        yield folder / name, reason
    yield folder / "pipe", "is a device or a pipe; expected a regular file"
    yield Path("/dev/bngrad-test-output"), "is in /dev: a device or an open file; expected a regular file"
    yield Path("/dev/fd/bngrad-test-output"), "is in /proc/"
    yield Path("/dev/null"), "is a device or a pipe; expected a regular file"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("writer", [*WRITERS, "check"])
def test_what_is_no_regular_file_is_refused(writer, tmp_path):
    for output, reason in special(tmp_path):
        kept = [path.lstat() for path in tmp_path.iterdir() if path.name != "real"]
        with pytest.raises(InputError) as error:
            WRITERS.get(writer, check_output)(output)
        assert str(error.value).startswith(f"output {output} {reason}")
        left = [path.lstat() for path in tmp_path.iterdir() if path.name != "real"]
        assert [(s.st_ino, s.st_mode, s.st_size) for s in left] == [(s.st_ino, s.st_mode, s.st_size) for s in kept]
    assert not Path("/dev/bngrad-test-output").exists()


def test_a_memory_disk_is_no_folder_of_devices():
    assert destination(Path("/dev/shm/bngrad-test-output")) == Path("/dev/shm/bngrad-test-output")  # noqa: S108


def test_a_name_that_is_too_long(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written: File name too long"):
        check_output(tmp_path / ("x" * 300))


READERS = {
    "a model": load,
    "an .npz file": load_arrays,
    "an .npy file": load_array,
    "tensors": read_tensors,
    "weights": load_weights,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe", "is a device or a pipe; expected an?"),
        ("device", "is a device or a pipe; expected an?"),
        (".", "is a directory; expected an?"),
        ("none", "does not exist; expected an?"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_readers_treat_what_is_no_file_alike(reader, name, reason, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=rf"^{tmp_path / name} {reason}"):
        READERS[reader](tmp_path / name)
