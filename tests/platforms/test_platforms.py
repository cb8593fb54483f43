"""Tests that the page of platforms has every target, and that it is written from the recorded checks."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import platform_page
import run_platforms
from harness import PlatformError, Row, find_wheel
from ops.wheels.targets import TARGETS
from programs import note_training

GOOD, BAD = Row("linux-x86_64", "a.whl"), Row("musl-x86_64", "b.whl", not_run="the rest")
GOOD.add("Debian", "C ABI", "exit code 0", good=True)
BAD.add("musl 1.2", "C ABI | all", "exit code 1", good=False)
ROWS = [asdict(row) | {"compiler": "zig"} for row in (GOOD, BAD)]


@pytest.mark.parametrize("target", TARGETS)
def test_the_page_has_every_target(target):
    page = run_platforms.DOCUMENT.read_text(encoding="utf-8")
    system, _, machine = target.partition("-")
    assert f"| {platform_page.SYSTEMS[system]} | {machine} |" in page


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_tried_or_says_why_not(target):
    assert (target in run_platforms.TRIALS) != (target in run_platforms.NOT_RUN)


def test_what_is_not_as_expected_is_bold():
    text = platform_page.tables(ROWS)
    assert "| Debian | C ABI | exit code 0 |" in text
    assert "| musl 1.2 | C ABI \\| all | **not as expected:** exit code 1 |" in text
    assert "musl 1.2 (**1 not as expected**) | the rest |" in text


def test_writing_keeps_the_rest_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{platform_page.BEGIN}\nold\n{platform_page.END}\nafter\n", encoding="utf-8")
    platform_page.write(page, ROWS)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "exit code 0" in text


@pytest.mark.parametrize("names", [(), ("bngrad-1-py3-none-win_amd64.whl", "bngrad-2-py3-none-win_amd64.whl")])
def test_one_wheel_for_each_target(tmp_path, names):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(PlatformError, match=f"{len(names)} wheels for win_amd64 in .*: run `make wheels` first"):
        find_wheel(tmp_path, "win_amd64")


def test_an_unknown_target(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run_platforms.py", "beos-ppc"])
    with pytest.raises(SystemExit):
        run_platforms.main()
    assert "no target beos-ppc; there are: linux-x86_64, " in capsys.readouterr().err


@pytest.mark.parametrize(("target", "results"), [("musl-x86_64", {}), ("windows-x86_64", {"digest": "avx2 12"})])
def test_nothing_to_compare_with(target, results):
    with pytest.raises(PlatformError, match="nothing to compare with: try linux-x86_64 first"):
        run_platforms._require_reference(Row(target, reference=results))


LOSSES = [3.0, 2.5, 2.0, 1.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("factors", "seen", "good"),
    [
        ([1] * 6, "losses and trained weights have the same bits", True),
        ([1] * 5 + [1.01], "losses of 5 steps within 0e+00 of linux-x86_64's, of all within 1e-02", True),
        ([1, 1.001] + [1] * 4, "losses of 5 steps within 1e-03 of linux-x86_64's, of all within 1e-03", False),
    ],
)
def test_losses_are_compared(factors, seen, good):
    versions = {"python": "3.13", "onnxruntime": "1.32.0", "isa": "neon"}
    losses = [loss * factor for loss, factor in zip(LOSSES, factors, strict=True)]
    row = Row("linux-aarch64", reference={"training": json.dumps({"losses": LOSSES, "weights": "ab"})})
    note_training(row, "QEMU", json.dumps({"losses": losses, "weights": "ab", **versions}))
    assert (row.runs[0].seen, row.runs[0].good) == (seen, good)
