"""The opset imports of a model: one name for the default domain, no unused domains, and that of bngrad's ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset.functions import DOMAIN, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

    Scope = ir.Model | ir.Function

_DEFAULT = "ai.onnx"
"""ONNX's alias for the default domain ""."""


def tidy_domains(model: ir.Model) -> ir.Model:
    """Renames the default domain to "" and removes imports of unused domains, also in functions.

    ONNX Runtime writes imports of all domains that it knows, including those of custom-op libraries registered in
    the process, with versions that other releases reject. If a model imports "" and "ai.onnx" in different
    versions, both are kept, because it is ambiguous which one a node uses.

    Args:
        model: The model. It is not modified.

    Returns:
        The model itself if there is nothing to do, else a copy that shares its tensors.
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


def import_bngrad(model: ir.Model) -> bool:
    """Imports the domain ``bngrad`` in a model with its ops and in the functions with them, as inference requires.

    Returns:
        Whether an import was added.
    """
    users = [scope for scope, used in _scopes(model) if DOMAIN in used]
    missing = [scope.opset_imports for scope in users if DOMAIN not in scope.opset_imports]
    # The passes that add these ops add nodes of the default domain too.
    default = {"": model.opset_imports[""]} if "" in model.opset_imports else {}
    for imports in missing:
        imports.update({DOMAIN: VERSION} | default | imports)
    return bool(missing)


def _renamed(model: ir.Model) -> bool:
    """Tests whether an import or a function calls the default domain "ai.onnx"; onnx-ir renames that of nodes."""
    scopes: list[Scope] = [model, *model.functions.values()]
    return any(_DEFAULT in scope.opset_imports for scope in scopes) or any(
        key[0] == _DEFAULT for key in model.functions
    )


def _scopes(model: ir.Model) -> Iterator[tuple[Scope, set[str]]]:
    """Yields the model and its functions, each with the domains it uses; a model's include its functions'."""
    function_domains = {
        key: {node.domain for node in function.all_nodes()} for key, function in model.functions.items()
    }
    yield model, {node.domain for node in model.graph.all_nodes()}.union(*function_domains.values())
    for key, function in model.functions.items():
        yield function, function_domains[key]


def _unused(scope: Scope, used: set[str]) -> list[str]:
    return [domain for domain in scope.opset_imports if domain not in used and domain not in ("", _DEFAULT)]
