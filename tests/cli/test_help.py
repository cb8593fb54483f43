"""Help texts: complete, within 80 columns, with examples that run; and the page that is generated from them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bngrad.cli import cli, run
from bngrad.cli.help import OPTIONS, Command, Option, list_items, option_groups, paragraphs, plain, short_help
from bngrad.reports.rules import project_url
from cli.example_files import write_example_files

ROOT = Path(__file__).parents[2]


def commands(group=cli, path=()):
    """Every command and group, by its path."""
    yield path, group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = {" ".join(path): command for path, command in commands()}
LEAVES = {name: command for name, command in COMMANDS.items() if not isinstance(command, click.Group)}


@pytest.mark.parametrize("columns", [80, 60, 200])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    examples = lines.index("Examples:") if "Examples:" in lines else len(lines)
    assert max(map(len, lines[:examples])) <= columns
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("group", [[], ["oracle"]])
def test_a_group_without_a_command_prints_its_help(group, capsys):
    assert run([*group, "--help"]) == 0
    expected = capsys.readouterr()
    assert run(group) == 0
    assert capsys.readouterr() == expected


def test_the_help_has_the_address_of_the_documentation(capsys):
    assert run(["--help"]) == 0
    assert f" {project_url('Documentation')}." in capsys.readouterr().out


DOCUMENTED = [name for name, command in COMMANDS.items() if "Documentation: " in (command.help or "")]


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_help_of_a_command_has_the_addresses_of_its_pages(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*name.split(), "--help"]) == 0
    base = project_url("Documentation")
    addresses = [word for word in capsys.readouterr().out.split() if word.startswith(base)]
    links = re.findall(r"\[([^]]*)\]\(\.\./([^)]*)\)", COMMANDS[name].help.partition("Documentation: ")[2])
    assert addresses == [base + page.replace(".md", ".html") for _, page in links]
    assert all((ROOT / "docs" / page.partition("#")[0]).exists() for _, page in links)


def test_commands_are_listed_in_order_of_use_with_one_line_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(cli.commands)
    assert list(cli.commands)[:4] == ["inspect", "step", "train", "finalize"]


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_is_described(name):
    command = LEAVES[name]
    assert isinstance(command, Command)
    assert command.examples
    assert all(re.fullmatch(rf"\$ .*bngrad {name}\b.*|    .*", line) for line in command.examples.splitlines())
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert isinstance(parameter, Option), parameter.name
            assert re.search(r"\.(  \[default: .+\])?$", parameter.help or ""), parameter.name


@pytest.mark.parametrize("name", LEAVES)
def test_defaults_are_shown(name):
    """Except of flags that are off, and of what has no default."""
    for parameter in LEAVES[name].params:
        if isinstance(parameter, Option) and not (parameter.is_flag and not parameter.secondary_opts):
            has_default = parameter.default is not None and not parameter.multiple
            unset = repr(parameter.default) == "Sentinel.UNSET"
            if has_default and not unset:
                assert parameter.show_default or "[default: " in parameter.help, parameter.name


# ---- the examples run ----


def examples():
    for name, command in LEAVES.items():
        lines = command.examples.replace("\\\n", "").splitlines()
        yield pytest.param(name, [line.removeprefix("$ ").partition("  #")[0] for line in lines], id=name)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    write_example_files(folder)
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize(("name", "lines"), list(examples()))
@pytest.mark.usefixtures("folder")
def test_examples_run(name, lines, tmp_path, monkeypatch):
    if name == "oracle remove":  # the user's is left alone
        monkeypatch.setenv("BNGRAD_ORACLE_DIR", str(tmp_path / "oracle"))
    for line in lines:
        if name == "bench":
            line += " --repeats 1"  # noqa: PLW2901
        if re.search(r"[|>$]", line):
            _run_in_bash(line, tmp_path)
        else:
            assert run(shlex.split(line)[1:]) == 0, line


def _run_in_bash(line, home):
    """With a home folder of its own, in which the folders of the shells exist."""
    (home / ".config" / "fish" / "completions").mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "HOME": str(home), "PATH": path, "fpath": str(home)}
    done = subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), line


# ---- how texts are written ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a [link](page.md#anchor) and `code`", "a link and code"),
        ("[a](b) [c](d)", "a c"),
        ("not (a) [link] (b)", "not (a) [link] (b)"),
        ("x  [default: 1/3]", "x  [default: 1/3]"),
    ],
    ids=["link-and-code", "two-links", "no-link", "default"],
)
def test_plain(text, expected):
    assert plain(text) == expected


def test_paragraphs_and_lists():
    @click.command("c", cls=Command)
    def command():
        """First line
        goes on.

        - one
          goes on
        - two
        """

    first, listed = paragraphs(command)
    assert short_help(command) == "First line goes on"
    assert (list_items(first), list_items(listed)) == ([], ["one goes on", "two"])


def test_an_option_of_click_is_in_the_first_group():
    command = Command("c", params=[click.Option(["--plain"]), Option(["--mine"], group="Mine")])
    groups = option_groups(command, click.Context(command))
    assert [option.name for option in groups[OPTIONS]] == ["plain"]
    assert [option.name for option in groups["Mine"]] == ["mine"]


# ---- the page ----


def generator(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "generate" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_generator_writes():
    module = generator("commands")
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), (
        "run .venv/bin/python docs/generate/commands.py"
    )
