"""The page of a campaign: the counts of outcomes, and of cases of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

HEAD = """# Spellings of batch norm

    python tests/spellings/campaign.py --count {count} --seed {seed} --write    # judges all, writes this page
    python tests/spellings/campaign.py --seed {seed} --only 4711                # one of each again, with its graph

Equivalent spellings are drawn by rewriting the formulas of one batch norm: each case applies up to 35 random sound
rewrites to random nodes, draws ops, layouts, constants, casts, sharing and the order of nodes, and equals the
reference in float64. All have to be recognized, with no reduction left. Near misses have one unsound change among
sound rewrites, and no reading as a batch norm within 1e-3. None may be recognized.
[Testing](../contributing/testing.md#spellings-of-batch-norm) describes both.
"""


def page(tables: Mapping[str, tuple[Counter[str], Counter[str]]], count: int, seed: int) -> str:
    """The page in Markdown."""
    lines = [HEAD.format(count=count, seed=seed)]
    for what, (ends, used) in tables.items():
        lines += [f"## {what.capitalize()}", "", *_table("end", ends), ""]
        lines += [*_table("made of" if what == "spellings" else "unsound change", _shown(what, used)), ""]
    return "\n".join(lines)


def _shown(what: str, used: Counter[str]) -> dict[str, int]:
    if what == "spellings":
        return dict(used)
    prefixes = ("near miss: ", "expected: ")
    return {name.removeprefix(prefixes[0]): number for name, number in used.items() if name.startswith(prefixes)}


def _table(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield f"| cases | {title} |"
    yield "|---:|---|"
    for name, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"| {number:,} | {name} |"
