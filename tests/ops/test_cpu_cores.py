"""The number of threads for num_threads = 0: the CPUs that a process may use, and no more than its quota."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups and affinity are Linux's")

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 32 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 master:3 - cgroup cgroup rw,cpu,cpuacct\n"
V1_MEMORY = "34 32 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory\n"
ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
CPU = "sys/fs/cgroup/cpu,cpuacct"

QUOTAS = {
    # Version 2: "max" or a quota, and a period.
    "v2 two CPUs": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
    "v2 rounded up": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "150001 100000\n"}, 2),
    "v2 part of a CPU": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "1000 100000\n"}, 1),
    "v2 other period": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "30000 10000\n"}, 3),
    "v2 max": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 0),
    "v2 own group": (V2, "0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 4),
    "v2 group above": (
        V2,
        "0::/a/b\n",
        {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"},
        3,
    ),
    "v2 least of all above": (
        V2,
        "0::/a/b/c\n",
        {"sys/fs/cgroup/a/b/c/cpu.max": "500000 100000\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"},
        2,
    ),
    "v2 not of a group beside": (V2, "0::/a\n", {"sys/fs/cgroup/b/cpu.max": "100000 100000\n"}, 0),
    "v2 group with a colon": (V2, "0::/a:b\n", {"sys/fs/cgroup/a:b/cpu.max": "100000 100000\n"}, 1),
    "v2 a part is mounted": (
        "30 23 0:26 /box /cg rw - cgroup2 cgroup2 rw\n",
        "0::/box/inner\n",
        {"cg/cpu.max": "600000 100000\n", "cg/inner/cpu.max": "max 100000\n"},
        6,
    ),
    "v2 another part is mounted": (
        "30 23 0:26 /box /cg rw - cgroup2 cgroup2 rw\n",
        "0::/boxes/inner\n",
        {"cg/cpu.max": "600000 100000\n", "cg/es/inner/cpu.max": "100000 100000\n"},
        6,
    ),
    "v2 outside the namespace": (
        V2,
        "0::/../other\n",
        {"sys/fs/other/cpu.max": "100000 100000\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
        2,
    ),
    "v2 folder with a space": (
        "30 23 0:26 / /my\\040groups\\134x rw - cgroup2 none rw\n",
        "0::/\n",
        {"my groups\\x/cpu.max": "200000 100000\n"},
        2,
    ),
    # Version 1: two files, and -1 for no quota.
    "v1 two CPUs": (
        ROOT + V1_MEMORY + V1,
        "9:memory:/\n4:cpu,cpuacct:/\n",
        {f"{CPU}/cpu.cfs_quota_us": "200000\n", f"{CPU}/cpu.cfs_period_us": "100000\n"},
        2,
    ),
    "v1 none": (
        V1,
        "4:cpu,cpuacct:/\n",
        {f"{CPU}/cpu.cfs_quota_us": "-1\n", f"{CPU}/cpu.cfs_period_us": "100000\n"},
        0,
    ),
    "v1 above": (
        V1,
        "4:cpu,cpuacct:/docker/1f\n",
        {f"{CPU}/docker/cpu.cfs_quota_us": "250000\n", f"{CPU}/docker/cpu.cfs_period_us": "100000\n"},
        3,
    ),
    "v1 in a container": (
        V1.replace(" / ", " /docker/1f "),
        "4:cpu,cpuacct:/docker/1f\n",
        {f"{CPU}/cpu.cfs_quota_us": "50000\n", f"{CPU}/cpu.cfs_period_us": "50000\n"},
        1,
    ),
    "v1 in a container that does not see its groups": (
        V1.replace(" / ", " /docker/1f "),
        "4:cpu,cpuacct:/\n",
        {f"{CPU}/cpu.cfs_quota_us": "200000\n", f"{CPU}/cpu.cfs_period_us": "100000\n"},
        2,
    ),
    "v1 other controllers": (
        V1_MEMORY + V1.replace("cpu,cpuacct", "cpuset,cpuacct"),
        "4:cpuset,cpuacct:/\n",
        {"sys/fs/cgroup/cpuset,cpuacct/cpu.cfs_quota_us": "1\n"},
        0,
    ),
    # Both: version 2 has no controller then, or some of them.
    "v1 beside v2": (
        V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified") + V1,
        "4:cpu,cpuacct:/a\n0::/b\n",
        {f"{CPU}/a/cpu.cfs_quota_us": "300000\n", f"{CPU}/a/cpu.cfs_period_us": "100000\n"},
        3,
    ),
    "v2 beside v1": (
        V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        "4:cpu,cpuacct:/a\n0::/b\n",
        {
            f"{CPU}/a/cpu.cfs_quota_us": "300000\n",
            f"{CPU}/a/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/b/cpu.max": "100000 100000\n",
        },
        1,
    ),
    # What cannot be read limits nothing.
    "nothing mounted": (ROOT, "0::/\n", {"sys/fs/cgroup/cpu.max": "100000 100000\n"}, 0),
    "no files": (V2 + V1, "0::/\n4:cpu,cpuacct:/\n", {}, 0),
    "empty files": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": ""}, 0),
    "no period": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "100000\n"}, 0),
    "zero period": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "100000 0\n"}, 0),
    "negative quota": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "-5 100000\n"}, 0),
    "no numbers": (V2, "0::/\n", {"sys/fs/cgroup/cpu.max": "many CPUs\n"}, 0),
    "no group": (V2, "", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
    "broken lines": (
        "\n - \nrubbish\n1 2 3 - cgroup2 x y\n30 23 0:26 / /cg\\4 rw - cgroup2\n" + V2,
        "::\n:\n0\nrubbish\n",
        {"sys/fs/cgroup/cpu.max": "200000 100000\n"},
        2,
    ),
}


def quota(build, root):
    done = subprocess.run([build / "tests" / "cpu_quota_test", root], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("case", QUOTAS)
def test_quota(build, tmp_path, case):
    mounts, groups, files, expected = QUOTAS[case]
    for name, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups, **files}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert quota(build, tmp_path) == expected


def test_no_files_at_all(build, tmp_path):
    assert quota(build, tmp_path) == 0
    assert quota(build, tmp_path / "none") == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_files_that_may_not_be_read(build, tmp_path):
    file = tmp_path / "proc/self/mountinfo"
    file.parent.mkdir(parents=True)
    file.write_text(V2)
    file.chmod(0)
    assert quota(build, tmp_path) == 0


COUNT = """
import os, sys
import numpy as np
from bngrad.runtime import native

os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[1].split(",")})
before = len(os.listdir("/proc/self/task"))
X = np.ones((64, 8, 1000), np.float32)
C = np.ones(8, np.float32)
native.batch_normalization_grad(X, X, C, C, C, (0, 2), 1, num_threads=0)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize("most", [1, 2])
def test_threads_by_affinity(build, most):
    """A process that may use few CPUs starts few threads, whatever the machine has."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU")
    chosen = ",".join(map(str, cpus[:most]))
    done = subprocess.run([sys.executable, "-c", COUNT, chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == min(most, quota(build, "") or math.inf) - 1


@pytest.mark.skipif(not Path("/proc/self/cgroup").is_file(), reason="this system has no control groups")
def test_quota_of_this_process(build):
    """Whatever it is: no failure, and no number that cannot be."""
    assert 0 <= quota(build, "") < 1 << 20
