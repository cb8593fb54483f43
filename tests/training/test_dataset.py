"""Data of a training run: rows in batches, splits, orders, files, and what does not fit."""

from __future__ import annotations

import re
import zipfile
from itertools import chain
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.io.arrays import load_array, load_arrays
from bngrad.training import dataset
from bngrad.training.dataset import Dataset, load_data, permutation
from bngrad.training.step_info import DataInput

INPUTS = {"x": DataInput("float32", ("N", 2)), "y": DataInput("int64", ("N",))}


def arrays(rows=7):
    return {"x": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2), "y": np.arange(rows)}


def labels(batches, name="y"):
    return [batch[name].tolist() for _, batch in batches]


def test_batches():
    data = Dataset(arrays(), INPUTS)
    assert (len(data), data.batch_size) == (7, None)
    assert labels(data.batches(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert [rows for rows, _ in data.batches(3)] == [3, 3, 1]
    assert labels(data.batches(3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert labels(data.batches(3, start=2)) == [[6]]
    assert labels(data.batches(3, start=3)) == []
    assert labels(data.batches(4, np.array([6, 5, 4, 3, 2, 1, 0]))) == [[6, 5, 4, 3], [2, 1, 0]]
    assert [data.count(size, drop_last=drop) for size in (3, 7, 8) for drop in (False, True)] == [3, 2, 1, 1, 1, 0]
    for _, batch in data.batches(3):
        assert batch["x"].tolist() == [[2 * y, 2 * y + 1] for y in batch["y"]]


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_parts_are_the_batch_in_order(parts):
    data, order = Dataset(arrays(23), INPUTS), permutation(23, 0, 1)
    options = {"order": order, "start": 1}
    whole = labels(data.batches(6, **options))
    of_parts = [list(data.batches(6, **options, part=part, parts=parts)) for part in range(parts)]
    assert [list(chain(*labels(pieces))) for pieces in zip(*of_parts, strict=True)] == whole
    assert [[count for count, _ in part] for part in of_parts] == [[6, 6, 5]] * parts
    for pieces in zip(*of_parts, strict=True):
        sizes = [len(batch["y"]) for _, batch in pieces]
        assert max(sizes) - min(sizes) <= 1


def test_every_third_batch():
    data = Dataset(arrays(7), INPUTS)
    assert [labels(data.batches(2, start=rank, every=3)) for rank in range(3)] == [
        [[0, 1], [6]],
        [[2, 3]],
        [[4, 5]],
    ]


FINGERPRINTS = {
    "a-value": lambda data: data["x"].__setitem__((0, 1), 9),
    "a-value-anywhere": lambda data: data["x"].__setitem__((101, 1), 9),
    "the-last-row": lambda data: data["y"].__setitem__(-1, 9),
    "a-row-less": lambda data: data.update({name: array[:-1] for name, array in data.items()}),
    "the-order": lambda data: data.update({name: array[::-1] for name, array in data.items()}),
}


@pytest.mark.parametrize("case", FINGERPRINTS)
def test_other_data_have_another_fingerprint(case):
    data = arrays(200)
    before = Dataset(data, INPUTS).fingerprint()
    assert Dataset(arrays(200), INPUTS).fingerprint() == before
    FINGERPRINTS[case](data)
    assert Dataset(data, INPUTS).fingerprint() != before


def test_the_fingerprint_of_large_data_is_of_some_rows(monkeypatch):
    monkeypatch.setattr(dataset, "_COMPARED", 800)
    data = arrays(200)
    before = Dataset(data, INPUTS).fingerprint()
    data["y"][-1] = 9
    assert Dataset(data, INPUTS).fingerprint() != before


def test_permutations_depend_on_seed_and_epoch_alone():
    orders = [tuple(permutation(20, seed, epoch)) for seed in (0, 1) for epoch in (1, 2)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders == [tuple(permutation(20, seed, epoch)) for seed in (0, 1) for epoch in (1, 2)]


def test_split():
    first, second = Dataset(arrays(20), INPUTS).split(0.25, seed=3)
    assert (len(first), len(second)) == (15, 5)
    rows = [y for batch in labels(first.batches(4)) + labels(second.batches(4)) for y in batch]
    assert sorted(rows) == list(range(20))
    again = Dataset(arrays(20), INPUTS).split(0.25, seed=3)[1]
    other = Dataset(arrays(20), INPUTS).split(0.25, seed=4)[1]
    assert labels(again.batches(9)) == labels(second.batches(9)) != labels(other.batches(9))
    assert labels(first.batches(15, np.arange(14, -1, -1))) == [rows[14::-1]]


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_a_split_without_samples(fraction):
    with pytest.raises(InputError, match="expected at least one and not all"):
        Dataset(arrays(7), INPUTS).split(fraction, seed=0)


def test_inputs_that_take_the_whole_array():
    inputs = INPUTS | {"temperature": DataInput("float32", ()), "weights": DataInput("float32", (3,))}
    values = arrays() | {"temperature": np.array(2, np.float32), "weights": np.ones(3, np.float32)}
    for _, batch in Dataset(values, inputs).batches(3):
        assert batch["temperature"] == 2
        assert batch["weights"].shape == (3,)


def test_a_batch_size_that_the_model_fixes():
    inputs = {"x": DataInput("float32", (4, 2)), "y": DataInput("int64", (4,)), "s": DataInput("float32", ())}
    data = Dataset(arrays(8) | {"s": np.array(1, np.float32)}, inputs)
    assert (data.batch_size, labels(data.batches(4))) == (4, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_unknown_dimensions_and_ranks():
    inputs = {"x": DataInput("float32", (None, 2)), "y": DataInput("int64", None)}
    assert labels(Dataset(arrays(3), inputs).batches(2)) == [[0, 1], [2]]


def test_bfloat16_from_a_file(tmp_path):
    inputs = {"x": DataInput("bfloat16", ("N",))}
    values = np.arange(4).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "d.npz", x=values)
    np.save(tmp_path / "x.npy", values)
    for source in (tmp_path / "d.npz", f"x={tmp_path / 'x.npy'}"):
        ((_, batch),) = Dataset(load_data([str(source)], inputs), inputs).batches(4)
        assert batch["x"].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(batch["x"], values)


def changed(**changes):
    return {name: array for name, array in {**arrays(), **changes}.items() if array is not None}


REFUSED = {
    "missing": (INPUTS, changed(y=None), "there is no data for 'y'; expected an array for 'x' and 'y'"),
    "extra": (INPUTS, changed(z=np.ones(7)), "'z' is not a data input of this model"),
    "type": (INPUTS, changed(y=np.ones(7)), "'y' is float64; expected int64: convert it"),
    "rank": (INPUTS, changed(x=np.ones(7, np.float32)), "'x' has shape [7]; expected [?, 2]"),
    "size": (INPUTS, changed(x=np.ones((7, 3), np.float32)), "'x' has shape [7, 3]; expected [?, 2]"),
    "scalar": (INPUTS, changed(y=np.array(3)), "'y' has shape []; expected [?]"),
    "rows": (INPUTS, changed(y=np.arange(6)), "the arrays have different numbers of rows: 'x' 7, 'y' 6"),
    "empty": (INPUTS, arrays(0), "'x' has shape [0, 2], so it is empty"),
    "whole": (
        INPUTS | {"w": DataInput("float32", (3,))},
        changed(w=np.ones(7, np.float32)),
        "'w' has shape [7]; expected [3]",
    ),
    "fixed-sizes": (
        {"x": DataInput("float32", (4, 2)), "y": DataInput("int64", (3,))},
        arrays(),
        "no data input has a symbolic first dimension, and their sizes are not one batch size: 'x' 4, 'y' 3",
    ),
    "no-samples": (
        {"t": DataInput("float32", ())},
        {"t": np.array(1, np.float32)},
        "no data input has a symbolic first dimension, and their sizes are not one batch size: none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_arrays(case):
    inputs, values, message = REFUSED[case]
    with pytest.raises(InputError, match=re.escape(message)):
        Dataset(values, inputs)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("both.npz", **arrays())
    np.savez("x.npz", x=arrays()["x"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    for name, array in arrays().items():
        np.save(f"folder/{name}.npy", array)
        np.save(f"{name}.npy", array)
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    (tmp_path / "text.npz").write_text("not arrays")
    (tmp_path / "text.npy").write_text("not an array")


SOURCES = {
    "npz": ["both.npz"],
    "folder": ["folder"],
    "npy": ["x=x.npy", "y=y.npy"],
    "mixed": ["x.npz", "y=folder/y.npy"],
}


@pytest.mark.parametrize("case", SOURCES)
@pytest.mark.usefixtures("files")
def test_files(case):
    data = Dataset(load_data(SOURCES[case], INPUTS), INPUTS)
    assert labels(data.batches(4)) == [[0, 1, 2, 3], [4, 5, 6]]
    assert labels(data.batches(7), "x") == [arrays()["x"].tolist()]


@pytest.mark.usefixtures("files")
def test_a_single_array_stays_on_disk():
    assert isinstance(load_data(["folder"], INPUTS)["x"], np.memmap)


OLD_HEADERS = {"long": (b"(7, 2)", b"(7L,2)"), "alias": (b"'<f4'", b"'|a4'")}
"""Parts of headers, and what NumPy warns of in their place: integers of Python 2, and an old name of strings."""


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("case", OLD_HEADERS)
@pytest.mark.usefixtures("files")
def test_old_headers(case, suffix):
    """A command prints its own lines alone."""
    content = Path("x.npy").read_bytes().replace(*OLD_HEADERS[case])
    Path("x.npy").write_bytes(content)
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    x = load_array("x.npy") if suffix == "npy" else load_arrays("x.npz")["x"]
    expected = arrays()["x"]
    np.testing.assert_array_equal(x, expected if case == "long" else expected.view("S4"))


REFUSED_SOURCES = {
    "missing-file": (["none.npz"], "none.npz does not exist; expected an .npz file of arrays by input name"),
    "missing-array": (["x.npz"], "there is no data for 'y'"),
    "twice": (["both.npz", "x=x.npy"], "x=x.npy has 'x', which an earlier --data has, too; give it once"),
    "npy-without-name": (["x.npy"], "x.npy is a single array; write NAME=x.npy with one of 'x' or 'y'"),
    "unknown-name": (["z=x.npy"], "'z' is not a data input of this model"),
    "npz-for-npy": (["x=x.npz", "y=y.npy"], "x.npz is not an .npy file of a plain array"),
    "npy-missing": (["x=none.npy"], "none.npy does not exist; expected an .npy file"),
    "empty-folder": (["empty"], "folder empty has no .npy file; expected one for 'x' and 'y'"),
    "text": (["text.npz"], "text.npz is not an .npz file of plain arrays; create it with numpy.savez"),
    "text-npy": (["x=text.npy"], "text.npy is not an .npy file of a plain array; create it with numpy.save"),
    "objects": (["x=objects.npy"], "objects.npy is not an .npy file of a plain array"),
}


@pytest.mark.parametrize("case", REFUSED_SOURCES)
@pytest.mark.usefixtures("files")
def test_refused_files(case):
    sources, message = REFUSED_SOURCES[case]
    with pytest.raises(InputError) as raised:
        load_data(sources, INPUTS)
    assert str(raised.value).startswith(message)
