"""docs/examples/federated/flower.py: clients of Flower, and its own average as the reference."""

from __future__ import annotations

import os
import re
import sys

import pytest

from digits_training import EXAMPLES
from environments import cached_environment, run

REQUIREMENTS = ("flwr[simulation]==1.42.0",)
SHARE = EXAMPLES.parents[1] / "tests" / "from_torch" / "share_packages.py"


@pytest.fixture(scope="module")
def flower(request):
    """An interpreter that has Flower beside our packages: that of BNGRAD_FLOWER_PYTHON, or a new one."""
    python = os.environ.get("BNGRAD_FLOWER_PYTHON") or cached_environment(
        request.config.cache.mkdir("flower"), REQUIREMENTS
    )
    run(python, SHARE, sys.executable)
    return python


@pytest.mark.long
@pytest.mark.timeout(900)
def test_flower(flower, tmp_path):
    pytest.importorskip("sklearn")
    table = run(flower, EXAMPLES / "federated" / "flower.py", "--rounds", "3", cwd=tmp_path)
    rows = re.findall(r"^\| (\d) \| ([\d.]+) \| (\S+) \| ([\d.]+) \|$", table, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == [1, 2, 3]
    # Flower adds in float32, bngrad in double; the union of clients with other classes varies more.
    assert all(float(difference) < 1e-5 for _, _, difference, _ in rows)
    assert all(float(ratio) > 1.01 for *_, ratio in rows)
    assert float(rows[-1][1]) > 25
