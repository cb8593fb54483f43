"""Signatures of functions that take options as keywords, for the site.

griffe reads source and runs none, so that it sees ``**options``. Here a function with the decorator
`bngrad.option_fields.takes_keywords` gets the fields of its dataclass as parameters, with types and defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from griffe import Class, Extension, Function, Module, Parameter, ParameterKind

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECORATOR = "bngrad.option_fields.takes_keywords"


class OptionsExtension(Extension):
    """Gives functions the fields of their dataclass of options as parameters."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:  # noqa: ANN401 - as griffe declares it
        """Changes the functions of a package that is loaded."""
        for function in _functions(pkg):
            for decorator in function.decorators:
                if decorator.callable_path == _DECORATOR:
                    (options,) = decorator.value.arguments
                    _take_fields(function, pkg.modules_collection[options.canonical_path])


def _functions(module: Module) -> Iterator[Function]:
    for member in module.members.values():
        if isinstance(member, Function):
            yield member
        elif isinstance(member, Module):
            yield from _functions(member)


def _take_fields(function: Function, options: Class) -> None:
    del function.parameters["options"]
    fields = {}
    for ancestor in (*reversed(options.mro()), options):
        fields |= {name: field for name, field in ancestor.attributes.items() if "property" not in field.labels}
    for name, field in fields.items():
        if name not in function.parameters:
            value = field.value
            default = value.arguments[0] if str(value).startswith("option(") else value
            kind = ParameterKind.keyword_only
            function.parameters.add(Parameter(name, annotation=field.annotation, kind=kind, default=default))
