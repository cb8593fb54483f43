"""JSON documents as dataclasses: the annotations of the fields are what a document has to have."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def from_json(kind: type[T], document: object, name: str = "it") -> T:
    """Returns a value of JSON as a dataclass; members that it has no field for are left out.

    Args:
        kind: The dataclass. Its fields are of JSON's types, `Literal`, tuples of one type, mappings with strings
            as keys, unions of these, and dataclasses of such fields. A field with a default may be missing.
        document: The value.
        name: The name of the value in messages.

    Raises:
        ValueError: A member is missing or has another type; the message names it.
    """
    if not isinstance(document, dict):
        raise ValueError(f"{name} is {document!r:.60}; expected an object")  # noqa: TRY004 - one kind of fault
    hints, values = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # a dataclass
        if field.name in document:
            values[field.name] = _checked(hints[field.name], document[field.name], f"{name}.{field.name}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} has no {field.name!r}")
    return kind(**values)


def _checked(kind: Any, value: Any, name: str) -> Any:  # noqa: ANN401 - types, and anything that JSON has
    """Returns a value as an annotation has it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _of_union(arguments, value, name)
    if dataclasses.is_dataclass(kind):
        return from_json(kind, value, name)  # type: ignore[arg-type]  # not an instance
    if origin is tuple and isinstance(value, list):
        return tuple(_checked(arguments[0], element, f"{name}[{index}]") for index, element in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _checked(arguments[1], element, f"{name}[{key!r}]") for key, element in value.items()}
    if not _has_type(origin or kind, arguments, value):
        raise ValueError(f"{name} is {value!r:.60}; expected {_text(kind)}")
    return value


def _of_union(kinds: tuple[Any, ...], value: Any, name: str) -> Any:  # noqa: ANN401
    if value is None and types.NoneType in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    if len(kinds) == 1:
        return _checked(kinds[0], value, name)
    for kind in kinds:
        if _has_type(get_origin(kind) or kind, get_args(kind), value):
            return value
    raise ValueError(f"{name} is {value!r:.60}; expected {' or '.join(map(_text, kinds))}")


def _has_type(kind: Any, choices: tuple[Any, ...], value: Any) -> bool:  # noqa: ANN401
    if kind is Literal:
        return isinstance(value, str) and value in choices
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _text(kind: Any) -> str:  # noqa: ANN401
    origin = get_origin(kind) or kind
    if origin is Literal:
        return "one of " + ", ".join(get_args(kind))
    if origin in (list, tuple):
        return "an array"
    return {str: "a string", int: "an integer", float: "a number", bool: "true or false"}.get(origin, "an object")
