"""Shell completion in real shells: what Bash and Zsh complete as it is typed, and what Bash and Fish offer."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from bngrad.cli import cli, run
from bngrad.cli.shell_completion import SHELLS, complete_files, script
from bngrad.training.loss_functions import LOSS_FUNCTIONS

FILES = ["model.onnx", "my model.onnx", "notes.txt", "data.npz", "state.safetensors", "models/deep.onnx"]
OTHER_SHELLS = pytest.mark.long  # `make test` completes in Bash alone

INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set enable-bracketed-paste off'; "),
    "zsh": (["zsh", "-f", "-i"], "bindkey -e; autoload -Uz compinit; compinit -u -d .zcompdump; "),
}
HOME_KEY, END_KEY = "\x01", "\x05"


def require(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def files_in(folder):
    """Writes the files into a folder, and returns the environment of a shell there."""
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "HOME": str(folder), "TERM": "xterm", "LC_ALL": "C.UTF-8", "PS1": "$ "}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return files_in(tmp_path)


# ---- typed in an interactive shell: a line that ends with Tab, and the words that the shell makes of it ----

TYPED = {
    "command": ("bngrad insp\t", ["inspect"]),
    "group": ("bngrad oracle st\t", ["oracle", "status"]),
    "option": ("bngrad validate model.onnx --ag\t", ["validate", "model.onnx", "--against"]),
    "choice": ("bngrad validate model.onnx --against to\t", ["validate", "model.onnx", "--against", "torch"]),
    "choice-or-number": ("bngrad step model.onnx --memory le\t", ["step", "model.onnx", "--memory", "lean"]),
    "choice-after-equals": (
        "bngrad validate model.onnx --against=to\t",
        ["validate", "model.onnx", "--against=torch"],
    ),
    "model": ("bngrad inspect model.\t", ["inspect", "model.onnx"]),
    "model-with-a-space": ("bngrad inspect my\t", ["inspect", "my model.onnx"]),
    "model-in-a-folder": ("bngrad inspect models/\t", ["inspect", "models/deep.onnx"]),
    "another-file-if-no-model-fits": ("bngrad inspect n\t", ["inspect", "notes.txt"]),
    "data": ("bngrad train step.onnx --data da\t", ["train", "step.onnx", "--data", "data.npz"]),
    "weights": (
        "bngrad finalize model.onnx --weights s\t",
        ["finalize", "model.onnx", "--weights", "state.safetensors"],
    ),
    "loss": ("bngrad step model.onnx --loss-fn cr\t", ["step", "model.onnx", "--loss-fn", "cross_entropy"]),
    "nothing-fits": ("bngrad zzz\t", ["zzz"]),
}


@pytest.fixture(scope="module", params=["bash", pytest.param("zsh", marks=OTHER_SHELLS)])
def typed_into(request, tmp_path_factory):
    """A function that types into an interactive shell with the script, and returns what the shell prints."""
    require(request.param)
    command, setup = INTERACTIVE[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    environment = files_in(folder)
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.execvpe(command[0], command, environment)  # noqa: S606 - a shell of its own
    os.write(terminal, f"{setup}eval \"$(bngrad completion {request.param})\"; echo '<'ready'>'\n".encode())
    read_until(terminal, "<ready>")

    def type_keys(keys):
        os.write(terminal, keys.encode())
        return read_until(terminal, "<end>")

    yield type_keys
    os.write(terminal, b"\x03\nexit\n")
    os.close(terminal)
    os.waitpid(child, 0)


@pytest.mark.parametrize("case", TYPED)
def test_typed(typed_into, case):
    """The line becomes the arguments of printf, so that the shell itself tells its words."""
    keys, words = TYPED[case]
    printed = typed_into(f"{keys}{HOME_KEY}printf '<%s>' {END_KEY}; echo '<'end'>'\n")
    assert re.search(r"<bngrad>((?:<[^<>]*>)*)<end>", printed).group(1) == "".join(f"<{word}>" for word in words)


def read_until(terminal, text, seconds=20):
    printed, end = "", time.monotonic() + seconds
    while text not in printed:
        assert select.select([terminal], [], [], max(0, end - time.monotonic()))[0], printed
        printed += os.read(terminal, 4096).decode(errors="replace")
    return printed


# ---- what is offered ----

OFFERED = {
    "commands": ("bngrad ", set(cli.commands)),
    "models-and-folders": ("bngrad inspect ", {"model.onnx", "my model.onnx", "models/"}),
    "data": ("bngrad validate model.onnx --inputs ", {"data.npz", "models/"}),
    "weights": ("bngrad finalize model.onnx --weights ", {"data.npz", "state.safetensors", "models/"}),
    "choices": ("bngrad rewrite --target ", {"stock", "training"}),
    "shells": ("bngrad completion ", {"bash", "zsh", "fish"}),
    "losses": ("bngrad step model.onnx --loss-fn ", set(LOSS_FUNCTIONS)),
    "ops": ("bngrad bench --op ", {"grad", "relu-grad", "training", "grad-grad", "statistics"}),
    "nothing": ("bngrad library-path ", set()),
}


def fish_offers(line, environment):
    require("fish")
    program = f"bngrad completion fish | source; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "-N", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [offered.split("\t")[0] for offered in done.stdout.splitlines()]


@OTHER_SHELLS
@pytest.mark.parametrize("case", OFFERED)
def test_fish_offers(case, environment):
    line, expected = OFFERED[case]
    assert set(fish_offers(line, environment)) == expected


@OTHER_SHELLS
@pytest.mark.parametrize("value", ["--against=torch", "--inputs=data.npz"])
def test_fish_completes_after_equals(value, environment):
    begin = value[: value.index("=") + 2]
    assert fish_offers(f"bngrad validate model.onnx {begin}", environment) == [value]


def test_bash_offers(environment):
    """All in one shell."""
    require("bash")
    program = 'eval "$(bngrad completion bash)"; compopt() { :; }; '
    for line, _ in OFFERED.values():
        words = " ".join(f"'{word}'" for word in line.split(" "))
        program += f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _bngrad_completion bngrad; "
        program += "printf '%s\\n' \"${COMPREPLY[@]}\" '<end>'; "
    done = subprocess.run(["bash", "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *offers, last = done.stdout.split("<end>\n")
    assert last == ""
    offered = [set(offer.split("\n")) - {""} for offer in offers]
    assert offered == [{word.removesuffix("/") for word in expected} for _, expected in OFFERED.values()]


# ---- the command, and the protocol ----


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell, capsys):
    assert run(["completion", shell]) == 0
    assert capsys.readouterr().out == script(shell, cli)
    assert "_BNGRAD_COMPLETE" in script(shell, cli)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tcsh"], "Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        ([], "Missing argument '{bash|zsh|fish}'"),
    ],
    ids=["another-shell", "no-shell"],
)
def test_another_shell_is_refused(arguments, message, capsys):
    assert run(["completion", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_each_option_that_reads_a_file_completes_files():
    """Outputs are named by the user; the others are read."""
    outputs = {"output", "state_file", "state_out", "checkpoint", "log", "plot", "junit", "html", "sarif"}
    outputs |= {"annotations", "summary", "tensorboard", "write_cases"}
    for name, command in cli.commands.items():
        for parameter in command.params:
            if isinstance(parameter.type, click.Path) and parameter.name not in outputs:
                offered = parameter.shell_complete(click.Context(command), "")
                assert [item.type for item in offered] == ["file"], (name, parameter.name)
                assert offered[0].value, (name, parameter.name)


def test_suffixes_are_one_value():
    (item,) = complete_files(".npz", ".npy")(None, None, "")
    assert (item.type, item.value) == ("file", ".npz .npy")


def test_completion_imports_nothing_slow(environment):
    """A Tab takes the time to start Python and click."""
    program = "import sys; from bngrad.cli import run; run([]); print(*sys.modules)"
    environment |= {"_BNGRAD_COMPLETE": "bash_complete", "COMP_WORDS": "bngrad validate m", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "file\t.onnx" in done.stdout
    environment["_BNGRAD_COMPLETE"] = ""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert not {"numpy", "onnx", "onnxruntime", "onnx_ir", "rich"} & set(done.stdout.split())
