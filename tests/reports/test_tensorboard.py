"""Event files: their framing here, and with ``-m long`` also as TensorBoard reads them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from bngrad.errors import InputError
from bngrad.reports.tensorboard import EventFile, crc32c
from environments import cached_environment, run

RECORDS = [
    {"step": 1, "epoch": 1, "loss": 2.5, "learning_rate": 0.125, "gradient_norm": 3.0, "seconds": 0.01},
    {"step": 300, "epoch": 1, "loss": None, "learning_rate": 0.125, "seconds": 0.02},
    {"step": 300, "epoch": 1, "training_loss": 2.0, "validation_loss": 1.5, "accuracy": 0.75, "seconds": 0.03},
]
EXPECTED = {
    "loss/step": [[1, 2.5]],
    "learning_rate": [[1, 0.125], [300, 0.125]],
    "gradient_norm": [[1, 3.0]],
    "loss/epoch": [[300, 2.0]],
    "loss/validation": [[300, 1.5]],
    "accuracy/validation": [[300, 0.75]],
}
READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""


def written(folder):
    file = EventFile(folder)
    for record in RECORDS:
        file.add(record)
    file.close()
    return file.path


def test_the_checksum():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # of RFC 3720


def test_each_record_is_framed(tmp_path):
    content, contents = written(tmp_path / "runs" / "a").read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        contents.append(content[12 : 12 + length])
        content = content[16 + length :]
    assert len(contents) == 1 + len(RECORDS)
    assert b"brain.Event:2" in contents[0]
    assert struct.pack("<f", 2.5) in contents[1]
    assert b"loss/step" not in contents[2]  # a loss that is not finite
    assert b"accuracy/validation" in contents[3]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"events\.out\.tfevents.* cannot be written: "):
        EventFile(tmp_path / "file" / "folder")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path):
    file = EventFile(tmp_path)
    file.close()
    with Path("/dev/full").open("wb", buffering=0) as file._file, pytest.raises(InputError, match="No space left"):
        file.add(RECORDS[0])


@pytest.mark.long
def test_tensorboard_reads_it(tmp_path, tmp_path_factory):
    written(tmp_path)
    folder = tmp_path_factory.getbasetemp().parent / "tensorboard"
    python = cached_environment(folder, ["tensorboard==2.20.*", "setuptools<81"])
    assert json.loads(run(python, "-c", READ, tmp_path).splitlines()[-1]) == EXPECTED
