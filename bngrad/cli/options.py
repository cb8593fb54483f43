"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

model_argument = click.argument("model", type=click.Path(path_type=Path))

# `cli.run` looks for --debug itself, since an error may come before any option is parsed.
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback on errors.")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
