"""AllGather and AllReduce between ranks: headers, sums by the documented tree, and what is refused."""

from __future__ import annotations

import ctypes
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ranks import ALL_GATHER, ALL_TO_ALL, World, copies

VERSION = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
HEADER = 256
MISMATCH = (
    "2: ranks 0 and {} do not match: rank 0 is at {}, rank {} at {}; expected the same model, bngrad and ONNX "
)
MISMATCH += "Runtime on all ranks"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return copies(tmp_path_factory.mktemp("ranks"), 8)


@pytest.fixture
def alone(libraries):
    libraries[0].unset()
    libraries[0].log.clear()
    return libraries[0]


def tree(values):
    """The sum over the first axis in float64: first neighbors, then ranks at a distance of 2, 4, ..."""
    rows = list(np.asarray(values, np.float64))
    stride = 1
    while stride < len(rows):
        for i in range(0, len(rows) - stride, 2 * stride):
            rows[i] = rows[i] + rows[i + stride]
        stride *= 2
    return rows[0]


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("shape", [(), (3, 5), (0,), (2, 0, 3)], ids=str)
def test_all_gather(libraries, ranks, shape, rng):
    values = rng.standard_normal((ranks, *shape))
    got = World(libraries[:ranks]).run(lambda rank: rank.all_gather("bn/moments", values[rank.rank], ranks))
    for gathered in got:
        np.testing.assert_array_equal(gathered, values)


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, 300, 2048, 2049, 20011])
def test_all_reduce(libraries, ranks, dtype, count, rng):
    """Both ways, gathering and exchanging parts, add up by the tree; 2^30 is what a float sum would lose 1 to."""
    values = (rng.standard_normal((ranks, count)) * 2.0 ** rng.integers(-30, 30, (ranks, count))).astype(dtype)
    world = World(libraries[:ranks])
    totals = world.run(lambda rank: rank.all_reduce("gradients/0", values[rank.rank]))
    expected = tree(values).astype(dtype)
    for total in totals:
        assert total.tobytes() == expected.tobytes()
    gathers = count * ranks * values.itemsize <= 1 << 16
    moves = [] if count == 0 else [ALL_GATHER] if gathers else [ALL_TO_ALL, ALL_GATHER]
    assert [operation for operation, _ in libraries[0].log] == [ALL_GATHER, *moves]


def test_all_reduce_keeps_what_is_not_finite(libraries):
    values = np.array([[np.nan, np.inf, np.inf, 1], [1, 1, -np.inf, 1]], np.float32)
    for total in World(libraries[:2]).run(lambda rank: rank.all_reduce("g", values[rank.rank])):
        np.testing.assert_array_equal(total, np.array([np.nan, np.inf, np.nan, 2], np.float32))


def test_one_rank_without_a_collective_copies(alone, rng):
    value = rng.standard_normal(9)
    np.testing.assert_array_equal(alone.all_gather("a", value, 1), value[None])
    np.testing.assert_array_equal(alone.all_reduce("b", value), value)
    alone.fail("nobody hears this")
    assert alone.log == []


LONG = "x" * 300
HEADERS = {
    "gather": (lambda rank: rank.all_gather("bn1/sums", np.zeros(5), 1), "AllGather 'bn1/sums' of 40 bytes"),
    "float": (lambda rank: rank.all_reduce("loss", np.zeros((2, 3), "f4")), "AllReduce 'loss' of float[6]"),
    "double": (lambda rank: rank.all_reduce("loss", np.zeros(4)), "AllReduce 'loss' of double[4]"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_the_header(libraries, case):
    work, text = HEADERS[case]
    World(libraries[:1]).run(work)
    assert libraries[0].log[0] == (ALL_GATHER, f"{text}, bngrad {VERSION}".encode().ljust(HEADER, b"\0"))


@pytest.mark.parametrize(
    ("first", "second"),
    [(LONG + "a", LONG + "b"), ("ä" * 200, "ä" * 201), ("a\nb", "a b"), ("a\nb", "a\tb")],
    ids=["long", "utf-8", "line", "control"],
)
def test_headers_that_do_not_fit_differ(libraries, first, second):
    sent = []
    for key in (first, second):
        World(libraries[:1]).run(lambda rank, key=key: rank.all_gather(key, 0.0, 1))
        sent.append(libraries[0].log[0][1].rstrip(b"\0").decode())
    assert sent[0] != sent[1]
    assert all(len(text.encode()) < HEADER and "\n" not in text for text in sent)


def header(key, contents="8 bytes", operation="AllGather"):
    return f"{operation} '{key}' of {contents}, bngrad {VERSION}"


MISMATCHES = {
    "key": (lambda rank: rank.all_gather("ab"[rank.rank // 2], 0.0, 3), 2, header("a"), header("b")),
    "size": (
        lambda rank: rank.all_gather("a", [0.0] * (1 + rank.rank // 2), 3),
        2,
        header("a"),
        header("a", "16 bytes"),
    ),
    "operation": (
        lambda rank: rank.all_gather("a", 0.0, 3) if rank.rank == 0 else rank.all_reduce("a", 0.0),
        1,
        header("a"),
        header("a", "double[1]", "AllReduce"),
    ),
    "type": (
        lambda rank: rank.all_reduce("a", np.zeros(4, "f4" if rank.rank < 2 else "f8")),
        2,
        header("a", "float[4]", "AllReduce"),
        header("a", "double[4]", "AllReduce"),
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_ranks_that_do_not_match(libraries, case):
    work, rank, first, other = MISMATCHES[case]
    world = World(libraries[:3])
    assert world.run(work) == [MISMATCH.format(rank, first, rank, other)] * 3
    # All ranks know: there is nobody to tell, and the next operation works.
    assert world.run(lambda rank: rank.fail("again")) == [None] * 3
    assert [len(rank.log) for rank in libraries[:3]] == [1] * 3
    np.testing.assert_array_equal(world.run(lambda rank: rank.all_reduce("b", 1.0)), [3.0] * 3)


def test_another_version_does_not_match(libraries):
    """The other rank's header is what bngrad 99.0.0 would send."""
    rank = libraries[0]
    rank.set(lambda _, sent: sent + sent.replace(VERSION.encode(), b"99.0.0").ljust(HEADER, b"\0")[:HEADER], 0, 2)
    with pytest.raises(
        RuntimeError, match=r"rank 1 at AllGather 'a' of 8 bytes, bngrad 99\.0\.0; expected the same"
    ):
        rank.all_gather("a", 0.0, 2)


def test_a_rank_that_fails_tells_the_others(libraries):
    message = "no space left\non device: " + "€" * 100
    world = World(libraries[:3])
    got = world.run(lambda rank: rank.fail(message) if rank.rank == 1 else rank.all_reduce("g", 1.0))
    assert got[1] is None
    assert got[0] == got[2]
    assert got[0].startswith("2: rank 1 failed: no space left on device: €€€")
    assert got[0].endswith("€...")
    # It fails once: the others do not answer any more.
    world.run(lambda rank: rank.fail(message) if rank.rank == 1 else None)
    assert [len(rank.log) for rank in libraries[:3]] == [1] * 3


def test_the_first_of_two_failures_is_reported(libraries):
    got = World(libraries[:3]).run(
        lambda rank: rank.fail(str(rank.rank)) if rank.rank else rank.all_reduce("g", 1.0)
    )
    assert got == ["2: rank 1 failed: 1", None, None]


FUNCTION_FAILURES = {
    "message": (OSError("no answer of rank 1\nin 5 s"), "no answer of rank 1 in 5 s"),
    "no message": (OSError(""), "the collective function returned 7 without a message"),
    "long": (OSError("y" * 5000), "y" * 900),
}


@pytest.mark.parametrize("case", FUNCTION_FAILURES)
@pytest.mark.parametrize("at", [1, 2, 3], ids=["header", "parts", "totals"])
def test_a_function_that_fails(libraries, case, at):
    failure, text = FUNCTION_FAILURES[case]
    rank = libraries[0]
    rank.log.clear()

    def move(operation, sent):
        if len(rank.log) == at:
            raise failure
        return sent * 2 if operation == ALL_GATHER else sent

    rank.set(move, 0, 2)
    expected = header("gradients/0", "float[20000]", "AllReduce")
    with pytest.raises(RuntimeError) as caught:
        rank.all_reduce("gradients/0", np.zeros(20000, np.float32))
    assert str(caught.value).startswith(f"2: {expected}: {text}")
    rank.fail("the others find out by themselves")
    assert len(rank.log) == at


def test_a_function_that_mixes_up_the_ranks(libraries):
    rank = libraries[0]
    rank.set(lambda _, sent: sent + bytes(len(sent)), 1, 2)
    with pytest.raises(
        RuntimeError, match="did not return the block of rank 1, which is this one, as it was sent"
    ):
        rank.all_gather("a", 0.0, 2)


def test_operations_run_one_at_a_time(libraries):
    """As with parallel execution of ONNX Runtime, where the ranks could meet in different operations."""
    rank, inner = libraries[0], []

    def move(_, sent):
        if not inner:
            inner.append("")
            with pytest.raises(RuntimeError) as caught:
                rank.all_reduce("b", 1.0)
            inner.append(str(caught.value))
        return sent

    rank.set(move, 0, 1)
    rank.all_gather("a", 0.0, 1)
    assert "AllReduce 'b'" in inner[1]
    assert "another collective operation of this process is running; run them one at a time" in inner[1]


def gather(rank, key=b"a", size=8, value=8, gathered=8):
    return rank.call("bngrad_all_gather", key, ctypes.c_int64(size), *arrays(value, gathered))


def reduce(rank, key=b"a", count=1, kind=11, value=8, total=8):
    return rank.call("bngrad_all_reduce", key, ctypes.c_int64(count), kind, *arrays(value, total))


def arrays(*sizes):
    """Pointers into one array: None, or the offset from its beginning."""
    return [
        None if offset is None else ctypes.c_void_p(MEMORY.ctypes.data + 64 * i + offset)
        for i, offset in enumerate(sizes)
    ]


MEMORY = np.zeros(64)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda r: gather(r, key=None), "key is null; expected a text that names the operation"),
        (lambda r: gather(r, key=b""), "key is empty; expected a text that names the operation"),
        (lambda r: reduce(r, key=None), "key is null; expected a text that names the operation"),
        (lambda r: gather(r, size=-1), "size is -1; expected 0 to "),
        (lambda r: gather(r, size=2**62), "size is 4611686018427387904; expected 0 to "),
        (lambda r: reduce(r, count=-1), "count is -1; expected 0 to "),
        (lambda r: reduce(r, count=2**60), "count is 1152921504606846976; expected 0 to "),
        (lambda r: reduce(r, kind=10), r"type is 10; expected 1 \(float\) or 11 \(double\)"),
        (lambda r: gather(r, value=None), "value is null; expected an array of 8 elements"),
        (lambda r: gather(r, gathered=None), "gathered is null; expected an array of 8 elements"),
        (lambda r: reduce(r, value=None), "value is null; expected an array of 1 elements"),
        (lambda r: reduce(r, total=None), "total is null; expected an array of 1 elements"),
        (lambda r: gather(r, gathered=-60), "gathered overlaps value"),
        (lambda r: reduce(r, total=-56), "total overlaps value"),
        (lambda r: reduce(r, value=1), "value is not aligned"),
        (lambda r: r.set(lambda *_: b"", 0, 0), "ranks is 0; expected 1 or more"),
        (lambda r: r.set(lambda *_: b"", 0, -3), "ranks is -3; expected 1 or more"),
        (lambda r: r.set(lambda *_: b"", -1, 2), "rank is -1; expected 0 to 1"),
        (lambda r: r.set(lambda *_: b"", 2, 2), "rank is 2; expected 0 to 1"),
        (lambda r: r.call("bngrad_fail_collective", None), "message is null; expected a string"),
    ],
)
def test_refusals(alone, work, message):
    with pytest.raises(RuntimeError, match=f"^1: {message}"):
        work(alone)
    # What was refused has changed nothing.
    assert alone.all_reduce("a", 2.0) == 2.0


@pytest.mark.parametrize("at", [1, 2, 3], ids=["header", "parts", "totals"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_of_ctypes_that_is_interrupted(libraries, at):
    """ctypes returns the 0 of the call before."""
    rank = libraries[0]
    rank.log.clear()

    def move(_operation, sent):
        if len(rank.log) == at:
            raise KeyboardInterrupt
        return sent

    rank.set(move, 0, 1)
    with pytest.raises(
        RuntimeError, match=r"^2: AllReduce 'g' of .*: the collective function did not run to its end$"
    ):
        rank.all_reduce("g", np.zeros(1 << 15))
