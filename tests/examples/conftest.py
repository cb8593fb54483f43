"""Files that the tests of docs/examples share."""

from __future__ import annotations

import os

import pytest
from filelock import FileLock

from digits_training import prepare


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """Returns a function that returns a folder, filled once for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name, fill):
        path = base / name
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                path.mkdir()
                fill(path)
        return path

    return folder


@pytest.fixture(scope="session")
def digits(shared_folder):
    """The folder of the prepared files of the digits."""
    return shared_folder("digits_example", lambda path: prepare(path, "named"))
