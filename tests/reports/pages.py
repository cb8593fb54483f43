"""Parses a page: its elements, its text, its data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

VOID = {"meta", "wbr", "input", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """A page, parsed; an element that is not closed, or closed twice, is an error."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.elements, self.pieces, self.open = [], [], []
        self.scripts, self.styles, self.data = [], [], []
        self.feed(self.source)
        self.close()
        assert self.open == [], "unclosed elements"
        self.text = " ".join("".join(self.pieces).split())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), f"{tag} has an attribute twice"
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1][0] == tag, f"{tag} closes {self.open[-1][0]}"
        if tag not in ("a", "bdi", "b", "span"):
            self.pieces.append(" ")
        self.open.pop()

    def handle_data(self, data):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "style":
            self.styles.append(data)
        elif tag != "script":
            self.pieces.append(data)
        elif attributes.get("type") == "application/json":
            self.data.append(json.loads(data))
        else:
            self.scripts.append(data)

    def count(self, tag, **attributes):
        return sum(
            tag == name and all(has.get(key.strip("_")) == value for key, value in attributes.items())
            for name, has in self.elements
        )

    @property
    def drawings(self):
        """The names of the pictures of graphs."""
        return [has["aria-label"] for _, has in self.elements if has.get("class") == "scroll graph"]

    @property
    def table(self):
        """The rows of the page's first table, as text by column."""
        data = next(block for block in self.data if "columns" in block)
        columns = {}
        for column, cells in zip(data["columns"], data["cells"], strict=True):
            values = column.get("values")
            columns[column["label"]] = [values[cell] for cell in cells] if values else cells
        return columns

    @property
    def policy(self):
        (policy,) = (
            has["content"]
            for tag, has in self.elements
            if tag == "meta" and has.get("http-equiv") == "Content-Security-Policy"
        )
        return policy

    def check_self_contained(self):
        """Nothing is fetched, and the policy would refuse it: only the two hashed texts are allowed."""
        for tag, has in self.elements:
            assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "audio", "video"}, tag
            assert not {"src", "srcset", "action", "data", "style"} & has.keys(), (tag, has)
            assert not [name for name in has if name.startswith("on")], (tag, has)
            link = has.get("href", "#")
            assert link.startswith("#") or (tag == "a" and link.startswith("https://bngrad.github.io/")), (
                tag,
                has,
            )
        (style,), (script,) = self.styles, self.scripts
        assert not re.search(r"url\(|@import|@font-face", style)
        assert not re.search(r"fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(|WebSocket", script)
        for name, text in (("style", style), ("script", script)):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{name}-src 'sha256-{digest}'" in self.policy
        assert "default-src 'none'" in self.policy
        assert "unsafe" not in self.policy
