"""Ctrl-C as a request to end, and once more as an interrupt."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from bngrad.cli.interrupts import interrupts

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


def press():
    signal.raise_signal(signal.SIGINT)


def test_pressed_once():
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as pressed:
        assert not pressed()
        press()
        assert pressed()
    assert signal.getsignal(signal.SIGINT) is before


def test_pressed_twice():
    with interrupts() as pressed:
        press()
        with pytest.raises(KeyboardInterrupt):
            press()
        assert pressed()


def test_not_pressed():
    before = signal.getsignal(signal.SIGINT)
    with interrupts() as pressed:
        assert not pressed()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press()


@pytest.mark.parametrize("terminated", [False, True])
def test_sigterm(terminated):
    """Caught on request alone."""
    before = signal.getsignal(signal.SIGTERM)
    with interrupts(terminated=terminated) as pressed:
        assert (signal.getsignal(signal.SIGTERM) is before) != terminated
        if terminated:
            signal.raise_signal(signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is before
        assert pressed() == terminated
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_background_job_ignores_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts() as pressed:
            press()
            assert not pressed()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread():
    answers = []

    def run():
        with interrupts() as pressed:
            answers.append(pressed())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [False]
