"""JSON documents as dataclasses: members of each type, and one fault at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - of annotations that are evaluated
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from bngrad.io.documents import from_json


@dataclass(frozen=True)
class Part:
    size: int
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True)
class Document:
    name: str
    kind: Literal["a", "b"]
    rate: float
    flag: bool
    parts: Mapping[str, Part]
    lists: tuple[list[Any], ...] = ()
    anything: Mapping[str, Any] | None = None
    part: Part | None = None


RIGHT = {"name": "n", "kind": "a", "rate": 1, "flag": True, "parts": {"x": {"size": 2, "shape": ["N", None, 3]}}}


def test_a_document_becomes_its_dataclass():
    document = RIGHT | {"lists": [["==", 1]], "anything": {"a": [1]}, "part": {"size": 1}, "other": 0}
    assert from_json(Document, json.loads(json.dumps(document))) == Document(
        "n", "a", 1, True, {"x": Part(2, ("N", None, 3))}, (["==", 1],), {"a": [1]}, Part(1)
    )
    assert from_json(Document, RIGHT).part is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "it.name is 1; expected a string"),
        ({"name": None}, "it.name is None; expected a string"),
        ({"kind": "c"}, "it.kind is 'c'; expected one of a, b"),
        ({"kind": 1}, "it.kind is 1; expected one of a, b"),
        ({"rate": "1"}, "it.rate is '1'; expected a number"),
        ({"rate": True}, "it.rate is True; expected a number"),
        ({"flag": 1}, "it.flag is 1; expected true or false"),
        ({"parts": []}, "it.parts is []; expected an object"),
        ({"parts": {"x": 1}}, "it.parts['x'] is 1; expected an object"),
        ({"parts": {"x": {}}}, "it.parts['x'] has no 'size'"),
        ({"parts": {"x": {"size": 1.0}}}, "it.parts['x'].size is 1.0; expected an integer"),
        ({"parts": {"x": {"size": True}}}, "it.parts['x'].size is True; expected an integer"),
        ({"parts": {"x": {"size": 1, "shape": [[]]}}}, "shape[0] is []; expected an integer or a string"),
        ({"parts": {"x": {"size": 1, "shape": "N"}}}, "shape is 'N'; expected an array"),
        ({"lists": [1]}, "it.lists[0] is 1; expected an array"),
        ({"lists": {}}, "it.lists is {}; expected an array"),
        ({"anything": 1}, "it.anything is 1; expected an object"),
        ({"part": 1}, "it.part is 1; expected an object"),
    ],
)
def test_a_fault_is_named(change, message):
    with pytest.raises(ValueError, match=r"expected|has no") as error:
        from_json(Document, RIGHT | change)
    assert message in str(error.value)


@pytest.mark.parametrize("document", [None, [], 1, "text"])
def test_another_document_is_refused(document):
    with pytest.raises(ValueError, match="expected an object"):
        from_json(Document, document)
