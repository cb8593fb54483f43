"""The domains that a model imports: each under one name, and only those that something uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

    Scope = ir.Model | ir.Function

_DEFAULT = "ai.onnx"
"""ONNX's second name for the domain ""."""


def tidy_domains(model: ir.Model) -> ir.Model:
    """Calls the default domain "" everywhere and drops imports that no node needs, in functions too.

    ONNX Runtime writes imports of every domain that it knows, in versions that other releases refuse; a process in
    which a custom-op library was ever registered writes the library's too. Both names of the default domain stay
    where a model imports them in two versions: no node says which it means.

    Args:
        model: Any model; it is not changed.

    Returns:
        The model itself where nothing is to be done, else a copy that shares its tensors.
    """
    if not _renamed(model) and not any(_unused(scope, used) for scope, used in _scopes(model)):
        return model
    model = model.clone()
    for key in [key for key in model.functions if key[0] == _DEFAULT]:
        function = model.functions.pop(key)
        function.domain = ""
        model.functions[function.identifier()] = function
    for scope, used in _scopes(model):
        imports = scope.opset_imports
        if _DEFAULT in imports and imports.get("", imports[_DEFAULT]) == imports[_DEFAULT]:
            imports[""] = imports.pop(_DEFAULT)
        for domain in _unused(scope, used):
            del imports[domain]
    return model


def _renamed(model: ir.Model) -> bool:
    """Whether the default domain is called "ai.onnx" anywhere; onnx-ir renames those of nodes itself."""
    scopes: list[Scope] = [model, *model.functions.values()]
    return any(_DEFAULT in scope.opset_imports for scope in scopes) or any(
        key[0] == _DEFAULT for key in model.functions
    )


def _scopes(model: ir.Model) -> Iterator[tuple[Scope, set[str]]]:
    """The model and its functions, each with the domains that it uses; a model imports what its functions use."""
    of_functions = {
        key: {node.domain for node in function.all_nodes()} for key, function in model.functions.items()
    }
    yield model, {node.domain for node in model.graph.all_nodes()}.union(*of_functions.values())
    for key, function in model.functions.items():
        yield function, of_functions[key]


def _unused(scope: Scope, used: set[str]) -> list[str]:
    return [domain for domain in scope.opset_imports if domain not in used and domain not in ("", _DEFAULT)]
