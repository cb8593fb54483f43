"""Fuzzes the commands with mutated files that are no models, and models' metadata, in worker processes.

    python tests/fuzz/file_campaign.py --count 20000 --seed 1      runs a campaign
    python tests/fuzz/file_campaign.py --seed 1 --only 4711        runs one case again, with details

A command must end as `judge` expects, and change no file but its outputs, whatever one of its input files has.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz.campaign import run_cases
from fuzz.draw import Draw
from fuzz.file_seeds import RUN, TRAIN, file_seeds
from fuzz.judge import Finding, _files, _problems, _remove, run_in_process
from fuzz.mutate_files import mutate_file

RESUME = (*TRAIN, "--resume", "run.safetensors", "--epochs", "3", "--checkpoint", "out.safetensors")
REPORTS = ("--html", "out.html", "--sarif", "out.sarif", "--annotations", "out.txt")
NUMERIC = ("--against", "numeric", "--implementation", "function", "--dim", "N=4")
ARRAYS = ("train", "step.onnx", "--data", "x=x.npy", "--data", "labels=labels.npy")
ONE_EPOCH = (*TRAIN, "--learning-rate", "0.05", "--epochs", "1")
COMMANDS = {
    "data.npz": [
        (*ONE_EPOCH, "-o", "out.onnx"),
        (*RESUME,),
        (
            "validate",
            "model.onnx",
            *NUMERIC[:4],
            "--inputs",
            "data.npz",
            "--junit",
            "out.xml",
            "--summary",
            "out.md",
        ),
    ],
    "valid.npz": [
        (*TRAIN, "--learning-rate", "0.05", "--epochs", "1", "--state-out", "out.safetensors"),
        (*RESUME,),
    ],
    "x.npy": [(*ARRAYS, "--learning-rate", "1")],
    "labels.npy": [(*ARRAYS, "--learning-rate", "1")],
    "classes.npy": [
        (
            *("differentiate", "model.onnx", "-o", "out.onnx", "--loss-fn", "cross_entropy"),
            *("--prediction", "logits", "--class-weights", "classes.npy"),
        ),
    ],
    "weights.npz": [("finalize", "model.onnx", "-o", "out.onnx", "--weights", "weights.npz")],
    "step.safetensors": [
        (*ONE_EPOCH, "-o", "out.onnx"),
        ("finalize", "model.onnx", "-o", "out.onnx", "--weights", "step.safetensors"),
    ],
    "run.safetensors": [
        (*RESUME, "--log", "run.jsonl", "--plot", "out.svg"),
        (*RESUME, "--resume-anyway"),
        ("finalize", "model.onnx", "-o", "out.onnx", "--weights", "run.safetensors"),
        ("average", "run.safetensors", "step.safetensors", "-o", "out.safetensors", "--weights", "1,2"),
        ("average", "run.safetensors", "-o", "out.safetensors", "--fedbn", "--own", "run.safetensors"),
    ],
    "run.best.safetensors": [(*RESUME, "-o", "out.onnx")],
    "run.jsonl": [(*RESUME, "--log", "run.jsonl", "--plot", "out.svg"), (*RUN[:-4], "--log", "run.jsonl")],
    "other.jsonl": [
        ("compare", "run.jsonl", "other.jsonl", "--html", "out.html"),
        ("compare", "other.jsonl", "run.jsonl", "--json"),
    ],
    "step.onnx": [
        ("inspect", "step.onnx", *REPORTS),
        (*ONE_EPOCH, "-o", "out.onnx", "--json"),
        (*RESUME,),
        ("rewrite", "step.onnx", "-o", "out.onnx"),
    ],
    "step.eval.onnx": [(*ONE_EPOCH, "-o", "out.onnx")],
    "training.onnx": [
        ("inspect", "training.onnx", *REPORTS),
        ("rewrite", "training.onnx", "-o", "out.onnx"),
        ("validate", "training.onnx", *NUMERIC, "--html", "out.html", "--sarif", "out.sarif"),
    ],
    "default.onnx": [
        ("rewrite", "default.onnx", "-o", "out.onnx", "--target", "training"),
        ("validate", "model.onnx", *NUMERIC, "--rewritten", "default.onnx"),
    ],
    "model.onnx": [
        ("step", "model.onnx", "-o", "out.onnx", "--optimizer", "sgd", "--momentum", "0.9", "--json"),
        ("finalize", "model.onnx", "-o", "out.onnx", "--weights", "weights.npz"),
        ("statistics", "model.onnx", "--data", "valid.npz", "-o", "out.onnx", "--json"),
        ("restore", "model.onnx", "--data", "valid.npz", "-o", "out.onnx", "--layer", "*"),
        ("batchnorm", "model.onnx", "-o", "out.onnx", "--mode", "frozen", "--fold", "--data", "valid.npz"),
        ("batchnorm", "model.onnx", "-o", "out.onnx", "--mode", "training", "--ghost", "4"),
        ("bench", "model.onnx", "--repeats", "1", "--dim", "N=2", "--html", "out.html", "--threads", "1"),
        ("validate", "model.onnx", *NUMERIC, "--annotations", "out.txt"),
    ],
}
"""The commands that read each file. Outputs begin with ``out``; a log is continued."""


class FileCase(NamedTuple):
    """A case."""

    story: str
    name: str
    """The file that is changed."""
    content: bytes
    commands: tuple[tuple[str, ...], ...]


def make(campaign: int, index: int) -> FileCase:
    """Returns the case with this index in the campaign with this seed."""
    draw = Draw("files", campaign, index)
    name = draw.choice(list(COMMANDS))
    content = mutate_file(draw, name, file_seeds()[name])
    return FileCase(name, name, content, (draw.choice(COMMANDS[name]),))


def judge(case: FileCase) -> tuple[list[Finding], Counter[str]]:
    """Runs the commands of a case in the current folder."""
    findings, ends = [], Counter()
    for arguments in case.commands:
        for name, content in {**file_seeds(), case.name: case.content}.items():
            Path(name).write_bytes(content)
        before = _files()
        result = run_in_process(list(arguments))
        # A training run prints notes and failures, too; what is common to all commands is judged as one kind.
        lines = [line for line in result.stderr.splitlines() if not line.startswith(_TOLD)]
        told = result._replace(stderr="".join(f"{line}\n" for line in lines))
        ends[f"{arguments[0]} {result.code}"] += 1
        after = _files()
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        if wrong := sorted(name for name in changed if not name.startswith("out.") and name != "run.jsonl"):
            findings.append(Finding(arguments[0], "files changed or left over", str(wrong)))
        written = result.code == 2 and arguments[0] != "train" and "out.onnx" in changed
        findings += [Finding(arguments[0], *problem) for problem in _problems(told, written, writes=False)]
        for name in set(after) - set(before):
            _remove(name)
    return findings, ends


_TOLD = ("bngrad: note: ", "bngrad: failed: ", "bngrad: warning: ")


@click.command()
@click.option("--count", default=1000, show_default=True, help="Number of cases.")
@click.option("--seed", "campaign", default=1, show_default=True)
@click.option("--start", default=0, show_default=True, help="Number of the first case.")
@click.option("--only", type=int, help="Run only this case and show details.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the files of --only.")
def main(campaign: int, count: int, start: int, only: int | None, keep: Path | None) -> None:
    """Run a campaign; exit with 1 if there are findings."""
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    indices = range(start, start + count) if only is None else range(only, only + 1)
    file_seeds()
    done, total, ends = 0, 0, Counter()
    if only is not None and keep is not None:
        keep.mkdir(exist_ok=True)
        case = make(campaign, only)
        for name, content in {**file_seeds(), case.name: case.content}.items():
            (keep / name).write_bytes(content)
    for index, findings, exits in run_cases(campaign, indices, judge, make):
        done, total = done + 1, total + len(findings)
        ends.update(exits)
        for finding in findings:
            command = " ".join(make(campaign, index).commands[0])
            where = f"--seed {campaign} --only {index} ({make(campaign, index).story}): {command}"
            print(" ".join(f"FINDING {where}: {finding.what}: {finding.detail[:600]}".split()), flush=True)
        if only is not None:
            print(make(campaign, index).commands, dict(exits))
    for end, number in sorted(ends.items()):
        print(f"{number:8} {end}")
    print(f"{done} cases of {len(indices)}, {total} findings")
    sys.exit(1 if total or done != len(indices) else 0)


if __name__ == "__main__":
    main()
