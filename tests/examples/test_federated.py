"""docs/examples/federated: the tables of docs/measurements/federated.md come from this program."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from digits_training import EXAMPLES

PROGRAM = EXAMPLES / "federated" / "digits.py"


def rows_of(text):
    """The accuracies of each row, by division and method: of all classes and of a client's own."""
    tables = re.split(r"\n(equal|skewed) classes\n", text)
    rows = {}
    for division, table in zip(tables[1::2], tables[2::2], strict=True):
        for line in re.findall(r"^\| ((?!after)\D[^|]*?) \| (\d.*) \|$", table, re.MULTILINE):
            rows[division, line[0]] = [tuple(map(float, cell.split(", "))) for cell in line[1].split(" | ")]
    return rows


@pytest.mark.long
def test_federated_digits():
    pytest.importorskip("sklearn")
    done = subprocess.run([sys.executable, PROGRAM, "--rounds", "5"], check=True, capture_output=True, text=True)
    rows = rows_of(done.stdout)
    assert len(rows) == 8
    union = "FedAvg, statistics of the union"
    assert rows["equal", union][-1][0] > 90
    # Batch norms of their own fit the two or three classes of a client, and not all classes.
    every, own = rows["skewed", "FedBN"][-1]
    assert own > rows["skewed", union][-1][1]
    assert every < rows["skewed", union][-1][0]
    assert rows["skewed", "one process"][-1][0] > 90
