"""Writes the JSON Schema of each document of ``--json`` in docs/reference/json, and docs/reference/json.md.

Both come from the types of the documents: dataclasses, named tuples and typed dictionaries, whose fields have
docstrings.

    .venv/bin/python docs/generate/json_schemas.py
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bngrad.bench.measure import MeasurementDocument
from bngrad.cli import documents
from bngrad.inspection.graph_nodes import GraphNode
from bngrad.inspection.identity import Identity
from bngrad.inspection.inspect import Inspection
from bngrad.passes.imports.decomposed.candidates import Candidate
from bngrad.reports.compare.comparison import Comparison
from bngrad.runtime.environment import Environment
from bngrad.training.options import Layout
from bngrad.training.step_info import AVERAGES, VERSION, DataInput, FlatState, StateTensor, StepInfo
from bngrad.validation.report import Check, Report
from bngrad.validation.statistics import TensorStatistics

FOLDER = Path(__file__).parents[1] / "reference" / "json"
PAGE = FOLDER.with_suffix(".md")

DOCUMENTS = {
    "inspect": Inspection | list[documents.InspectedModel | documents.UnreadableModel],
    "step": documents.StepDocument,
    "train": documents.TrainDocument,
    "finalize": documents.FinalizeDocument,
    "statistics": documents.StatisticsDocument,
    "average": documents.AverageDocument,
    "restore": documents.RestoreDocument,
    "batchnorm": documents.BatchNormDocument,
    "differentiate": documents.DifferentiateDocument,
    "rewrite": documents.RewriteDocument,
    "validate": Report,
    "bench": documents.BenchDocument,
    "compare": Comparison,
    "oracle status": documents.OracleDocument,
    "oracle install": documents.OracleDocument,
    "oracle remove": documents.OracleRemoveDocument,
}
"""The document of each command with ``--json``."""

_PROPERTIES = {
    Check: ("passed",),
    Report: ("providers", "passed", "verdict", "reason", "advice"),
    StepInfo: ("model",),
}
"""Properties that documents have besides the fields."""

_OMITTED = {
    StateTensor: ("new", "weight", "offset", "updates_behind"),
    StepInfo: ("flat", *AVERAGES, "quantization"),
}
"""Fields that are left out where they are None."""

_HIDDEN = {Report: ("nodes",)}
"""Fields that documents do not have."""

_CONSTANTS = {StepInfo: {"version": {"const": VERSION, "description": "The version of the format."}}}
"""Further properties, by their schemas."""

_IMPORTED_FOR_TYPES = {
    record.__name__: record
    for record in (
        *(Candidate, DataInput, Environment, FlatState, GraphNode, Identity, MeasurementDocument),
        StepInfo,
    )
} | {
    "Condition": list[Any],
    "Layout": Layout,
    "Mapping": Mapping,
    "Sequence": Sequence,
    "TensorStatistics": TensorStatistics,
}
"""Types that modules import for type checkers only."""

_SCALARS = {str: "string", int: "integer", bool: "boolean", types.NoneType: "null"}

_NUMBER = {
    "description": "A number, or the text of what JSON does not have.",
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
}

_INTRODUCTION = """\
# JSON output

With `--json`, a command prints one JSON document on stdout. Warnings and errors stay on stderr, and exit codes are
[the same](commands.md#exit-codes). An error prints no document: stdout is empty, and the exit code is 2.

```console
$ bngrad inspect model.onnx --json
$ bngrad validate model.onnx --against numeric --dim N=2 --json > report.json
```

- Each document has a JSON Schema (draft 2020-12), which the tests check real documents against. The schemas allow
  no other properties.
- All properties are present unless a table states otherwise; a value that is unknown or does not apply is `null`.
- `inspect` of several models prints a list: the document of each, with its path as a further property `model`. A
  model that cannot be read has only `model` and `error`, and the exit code is 2.
- Infinities and NaN, which JSON does not have, are the strings `"inf"`, `"-inf"` and `"nan"`.
- Paths are those of the command line, names those of the model. Texts in `notes`, `warnings`, `reason`, `problem`
  and `hazards` are for people; their wording may change.
- Until version 1.0, a release may add properties, and may rename or remove one if the changelog says so. Readers
  should ignore properties that they do not know."""


def schema(document: Any) -> dict[str, Any]:  # noqa: ANN401 - a record, or a union of types
    """Returns the JSON Schema of a document.

    Raises:
        ValueError: A field has no docstring, or a type that has no schema.
    """
    definitions: dict[str, Any] = {}
    if isinstance(document, type):
        content = _object(document, definitions)
    else:
        content = {
            "description": "A record of one model, or the records of several.",
            **_type(document, definitions),
        }
    used = {"$defs": dict(sorted(definitions.items()))} if definitions else {}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **content, **used}


def _object(record: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record: a dataclass, a named tuple or a typed dictionary."""
    texts = _docstrings(record)
    properties = dict(_CONSTANTS.get(record, {}))
    omitted = _OMITTED.get(record, ())
    for name, hint in get_type_hints(record, localns=_IMPORTED_FOR_TYPES).items():
        if name in _HIDDEN.get(record, ()):
            continue
        if name in omitted:
            (hint,) = (argument for argument in get_args(hint) if argument is not types.NoneType)  # noqa: PLW2901
        missing = "absent" if name in omitted else "null"
        text = re.sub(r"\bNone\b", missing, texts[name])
        properties[name] = {"description": text, **_type(hint, definitions)}
    for name in _PROPERTIES.get(record, ()):
        getter = vars(record)[name].fget
        properties[name] = {
            "description": _markdown(getter.__doc__),
            **_type(get_type_hints(getter)["return"], definitions),
        }
    return {
        "description": re.sub(r"\bNone\b", "null", _markdown(record.__doc__)),
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in omitted],
        "additionalProperties": False,
    }


def _type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401, C901, PLR0911
    """The schema of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint is float:
        definitions["number"] = _NUMBER
        return {"$ref": "#/$defs/number"}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if isinstance(hint, type) and issubclass(hint, str):
        return {"type": "string"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(argument, definitions) for argument in arguments]}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}
    if not isinstance(hint, type) or hint.__module__.partition(".")[0] != "bngrad":
        raise ValueError(f"{hint} has no schema")
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}  # for a type that contains itself
        definitions[hint.__name__] = _object(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _docstrings(record: type) -> dict[str, str]:
    """The docstring of each field of a record."""
    parents = [parent for parent in record.__bases__ if parent.__module__.startswith("bngrad")]
    texts = {name: text for parent in parents for name, text in _docstrings(parent).items()}
    (body,) = (node.body for node in ast.parse(inspect.getsource(record)).body)
    for node, text in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)):
                raise ValueError(f"{record.__name__}.{node.target.id} has no docstring")  # noqa: TRY004
            texts[node.target.id] = _markdown(text.value.value)
    return texts


def _markdown(text: object) -> str:
    return inspect.cleandoc(str(text)).replace("``", "`")


def files() -> dict[Path, str]:
    """Returns the text of each file."""
    texts = {}
    sections = [_INTRODUCTION]
    for name, document in DOCUMENTS.items():
        root = schema(document)
        path = FOLDER / f"{name.replace(' ', '-')}.schema.json"
        title = {"$schema": root.pop("$schema"), "title": f"bngrad {name} --json"}
        texts[path] = json.dumps(title | root, indent=2) + "\n"
        several = (_type_text(choice) for choice in root.get("anyOf", ()))
        shown = _table(root) if "properties" in root else "; for several models, ".join(several) + "."
        sections.append(f"## bngrad {name}\n\nSchema: [{path.name}]({FOLDER.name}/{path.name})\n\n{shown}")
        for part, content in root.get("$defs", {}).items():
            if part != "number":
                sections.append(f"{_sentence(part, content)}\n\n{_table(content)}")
    texts[PAGE] = "\n\n".join(sections) + "\n"
    return texts


def _sentence(name: str, content: dict[str, Any]) -> str:
    return f"`{name}`: {' '.join(content['description'].split())}"


def _table(content: dict[str, Any]) -> str:
    lines = ["| property | type |  |", "| --- | --- | --- |"]
    for name, property_schema in content["properties"].items():
        text = " ".join(property_schema["description"].split()).replace("|", "\\|")
        optional = "" if name in content["required"] else " May be absent."
        lines.append(f"| `{name}` | {_type_text(property_schema)} | {text}{optional} |")
    return "\n".join(lines)


def _type_text(content: dict[str, Any]) -> str:  # noqa: PLR0911
    """The type of a property, in words."""
    if "$ref" in content:
        name = content["$ref"].rpartition("/")[2]
        return name if name == "number" else f"`{name}`"
    if "enum" in content:
        return ", ".join(f"`{json.dumps(value)}`" for value in content["enum"])
    if "const" in content:
        return f"`{json.dumps(content['const'])}`"
    if "anyOf" in content:
        return " or ".join(_type_text(choice) for choice in content["anyOf"])
    if content.get("type") == "array":
        return f"array of {_plural(content['items'])}"
    if content.get("type") == "object":
        return f"object of {_plural(content['additionalProperties'])} by name"
    return str(content.get("type", "any"))


def _plural(content: dict[str, Any]) -> str:
    text = _type_text(content)
    if "anyOf" in content:
        return f"({text})"
    if content.get("type") == "array":
        return f"arrays{text.removeprefix('array')}"
    return text if text.startswith("`") or not content else f"{text}s"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
