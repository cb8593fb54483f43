"""The ranks of a run: errors that all ranks raise, values that must be the same, and actions of one rank."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.errors import DistributedError, InputError, ModelError, TrainingError
from bngrad.training.ranks import Ranks
from thread_ranks import on_threads


def together(errors):
    """The errors that `together` raises if some ranks have one."""

    def function(comm):
        ranks = Ranks(comm)
        with ranks.together("work"):
            if comm.rank in errors:
                raise errors[comm.rank]
        return "done"

    return on_threads(3, function)


TOGETHER = {
    "none": ({}, ["done"] * 3),
    "one": ({1: InputError("a")}, [(InputError, "rank 1: a")] * 3),
    "first": ({0: ModelError("a")}, [(ModelError, "rank 0: a")] * 3),
    "the-lowest": ({1: InputError("a"), 2: TrainingError("b")}, [(InputError, "rank 1: a")] * 3),
    "all": (dict.fromkeys(range(3), InputError("a")), [(InputError, "a")] * 3),
    "two-of-three": (dict.fromkeys((0, 2), InputError("a")), [(InputError, "rank 0: a")] * 3),
    "a-bug": (
        {2: KeyError("k")},
        [*[(DistributedError, "rank 2 failed: KeyError: 'k'")] * 2, (KeyError, "'k'")],
    ),
    "an-interrupt": (
        {0: KeyboardInterrupt()},
        [(KeyboardInterrupt, ""), *[(DistributedError, "rank 0 failed: KeyboardInterrupt: ")] * 2],
    ),
}


def described(results):
    return [(type(result), str(result)) if isinstance(result, BaseException) else result for result in results]


@pytest.mark.parametrize("case", TOGETHER)
def test_all_ranks_raise_the_error_of_one(case):
    errors, expected = TOGETHER[case]
    results = together(errors)
    assert described(results) == expected
    kinds = (InputError, ModelError, TrainingError)
    assert all(result.on_all_ranks for result in results if isinstance(result, kinds))


ON_FIRST = {
    "a-value": (lambda: {"a": [1, None]}, [{"a": [1, None]}] * 3),
    "nothing": (lambda: None, [None] * 3),
    "an-error": (lambda: (_ for _ in ()).throw(InputError("full")), [(InputError, "full")] * 3),
    "a-bug": (
        lambda: {}["k"],
        [(KeyError, "'k'"), *[(DistributedError, "rank 0 failed: KeyError: 'k'")] * 2],
    ),
}


@pytest.mark.parametrize("case", ON_FIRST)
def test_rank_0_works_for_all(case):
    action, expected = ON_FIRST[case]
    calls = []

    def function(comm):
        return Ranks(comm).on_first("work", lambda: calls.append(comm.rank) or action())

    assert described(on_threads(3, function)) == expected
    assert calls == [0]


def test_an_error_of_one_rank_alone_is_told_once():
    def function(comm):
        ranks = Ranks(comm)
        with ranks.alone(), ranks.alone():
            if comm.rank == 1:
                raise InputError("its data")
            ranks.any("step 1", flag=False)
        return "done"

    expected = (DistributedError, "rank 1 failed: its data")
    assert described(on_threads(3, function)) == [expected, (InputError, "its data"), expected]


@pytest.mark.parametrize("first", [False, True], ids=["together", "on-first"])
def test_a_bug_is_told_once(first):
    def function(comm):
        ranks = Ranks(comm)
        with ranks.alone():
            if first:
                ranks.on_first("work", lambda: {}["k"])
            else:
                with ranks.together("work"):
                    if comm.rank == 0:
                        raise KeyError("k")

    expected = (DistributedError, "rank 0 failed: KeyError: 'k'")
    assert described(on_threads(3, function)) == [(KeyError, "'k'"), expected, expected]


@pytest.mark.parametrize("kind", [DistributedError, TrainingError])
def test_an_error_that_the_others_know_is_not_told(kind):
    error = kind("known")
    error.on_all_ranks = kind is TrainingError

    def function(comm):
        with Ranks(comm).alone():
            raise error

    assert on_threads(2, function) == [error] * 2


def test_a_rank_at_another_step_is_refused():
    rates = (0.1, 1.1)
    results = on_threads(2, lambda comm: Ranks(comm).any(f"learning rate {rates[comm.rank]}", flag=False))
    for error in results:
        assert isinstance(error, DistributedError)
        assert "learning rate 0.1" in str(error)
        assert "learning rate 1.1" in str(error)


SAME = {
    "same": ([{"a": 1, "b": "x"}] * 3, None),
    "another-value": (
        [{"a": 1, "b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": "y"}],
        "ranks 0 and 2 do not match: b is x on rank 0 and y on rank 2; expected the same options on all ranks",
    ),
    "missing": (
        [{"a": 1}, {}, {"a": 1}],
        "ranks 0 and 1 do not match: a is 1 on rank 0 and None on rank 1; expected the same options on all ranks",
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_values_must_be_the_same(case):
    values, expected = SAME[case]
    results = on_threads(3, lambda comm: Ranks(comm).require_same("work", values[comm.rank], "the same options"))
    assert described(results) == [None if expected is None else (DistributedError, expected)] * 3
    assert expected is None or all(error.on_all_ranks for error in results)


def exchange(comm):
    ranks = Ranks(comm)
    rank = 0 if comm is None else comm.rank
    return (
        ranks.texts("texts", str(rank)),
        ranks.arrays("arrays", np.array([rank, 2.0])).tolist(),
        ranks.any("flag", rank == 2),
        ranks.from_first("state", {"w": np.array(float(rank))})["w"].item(),
        ranks.is_first,
    )


def test_exchanges():
    results = on_threads(3, exchange)
    assert [result[-1] for result in results] == [True, False, False]
    for result in results:
        assert result[:-1] == (["0", "1", "2"], [[0, 2], [1, 2], [2, 2]], True, 0)


def test_one_rank_alone():
    assert exchange(None) == (["0"], [[0, 2]], False, 0, True)
    ranks = Ranks()
    ranks.attach()
    ranks.require_same("options", {"a": 1}, "the same options")
    assert ranks.on_first("work", lambda: 5) == 5
    for block in (ranks.together("work"), ranks.alone()):
        with pytest.raises(InputError, match=r"^bad$"), block:
            raise InputError("bad")
