"""Shell completion: click's, with scripts that complete files by suffix.

A shell calls ``bngrad`` with the command line in environment variables, and gets a line for each completion:
``TYPE<tab>VALUE<tab>HELP``. The type is ``plain``; or ``file``, whose value is a list of suffixes: the shell
itself completes file names, which it knows to quote, and folders.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from bngrad.cli.help import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    import click

_BASH = """\
%(complete_func)s() {
    local type value help suffix current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == = ]] && current=
    COMPREPLY=()
    while IFS=$'\\t' read -r type value help; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames ;;
            file)
                compopt -o filenames -o default
                mapfile -t COMPREPLY < <(
                    compgen -d -- "$current"
                    for suffix in $value; do compgen -f -X "!*$suffix" -- "$current"; done
                    [[ $value ]] || compgen -f -- "$current"
                )
                ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1" 2> /dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local line type value help
    local -a described plain patterns
    (( $+commands[%(prog_name)s] )) || return 1
    for line in "${(@f)$(
        export COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1))
        %(complete_var)s=zsh_complete %(prog_name)s 2> /dev/null
    )}"; do
        type=${line%%%%$'\\t'*} value=${${line#*$'\\t'}%%%%$'\\t'*} help=${line##*$'\\t'}
        # A value may follow an option: --option=VALUE.
        [[ $PREFIX == --*=* ]] && compset -P 1 '*='
        case $type in
            plain)
                if [[ -n $help ]]; then described+=("${value//:/\\\\:}:$help"); else plain+=("$value"); fi
                ;;
            dir) _path_files -/ ;;
            file)
                patterns=(${(s: :)value})
                if (( $#patterns )); then _files -g "*(${(j:|:)patterns})"; else _files; fi
                ;;
        esac
    done
    (( $#described )) && _describe -V values described
    (( $#plain )) && compadd -V values -a plain
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l token (commandline -ct)
    # A value may follow an option: --option=VALUE.
    set -l option (string match -r -- '^--[^=]*=' $token)
    set -l current (string replace -r -- '^--[^=]*=' '' $token)
    set -lx COMP_WORDS (commandline -cp)
    set -lx COMP_CWORD $token
    for line in (%(complete_var)s=fish_complete %(prog_name)s 2> /dev/null)
        set -l fields (string split -m 2 \\t -- $line)
        switch $fields[1]
            case plain
                printf '%%s%%s\\t%%s\\n' "$option" $fields[2] "$fields[3]"
            case dir
                __fish_complete_directories $current
            case file
                set -l suffixes (string replace -a . '\\\\.' -- $fields[2] | string split -n ' ' | string join '|')
                for path in (complete -C "'' $current")
                    string match -qr -- "($suffixes)\\$|/\\$" (string split -f 1 \\t -- $path)
                    and printf '%%s%%s\\n' "$option" $path
                end
        end
    end
end
complete --no-files --command %(prog_name)s --arguments '(%(complete_func)s)'
"""


def _format(item: CompletionItem) -> str:
    """Returns the line of a completion, with the first clause of its help text."""
    clause = re.split(r"[.:;](?: |$)|  \[default", plain(item.help or ""), maxsplit=1)[0]
    return f"{item.type}\t{item.value}\t{' '.join(clause.split())}"


class _Bash(BashComplete):
    source_template = _BASH

    def source(self) -> str:
        """Returns the script, on machines without Bash as well."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """Returns the words before the cursor, and the word at it; Bash splits --option=VALUE at the "="."""
        words, current = super().get_completion_args()
        return [word for word in words if word != "="], current.removeprefix("=")

    def format_completion(self, item: CompletionItem) -> str:
        """Returns the line of a completion."""
        return _format(item)


class _Zsh(ZshComplete):
    source_template = _ZSH

    def format_completion(self, item: CompletionItem) -> str:
        """Returns the line of a completion."""
        return _format(item)


class _Fish(FishComplete):
    source_template = _FISH

    def format_completion(self, item: CompletionItem) -> str:
        """Returns the line of a completion."""
        return _format(item)


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}

for _shell in SHELLS.values():
    add_completion_class(_shell)


def script(shell: str, command: click.Command) -> str:
    """Returns the completion script of a shell, one of `SHELLS`, for the program ``bngrad``."""
    return SHELLS[shell](command, {}, "bngrad", "_BNGRAD_COMPLETE").source()


def complete_files(*suffixes: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Returns a function that completes a parameter with the files that have a suffix, and with folders."""

    def complete(_context: click.Context, _parameter: click.Parameter, _incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(" ".join(suffixes), type="file")]

    return complete
