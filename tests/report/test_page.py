"""The page as a file: it holds all it needs and lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

from grn.report.page import SCRIPTS, render

WORDS = ["</script><img src=x onerror=alert(1)>", "@SCRIPT@ @DATA@", "<!--"]


class _Parts(HTMLParser):
    """Notes the elements, and the text in styles and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"style": [], "script": []}
        self._open = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.inside:
            self.inside[self._open].append(data)


def _parts(*, live: bool = False) -> _Parts:
    parts = _Parts()
    parts.feed(render({"words": WORDS}, title="<b>box</b>", live=live).decode())
    return parts


def test_nothing_is_loaded_from_anywhere() -> None:
    """No element and no style names another file."""
    parts = _parts()
    for tag, attributes in parts.elements:
        assert not {"src", "srcset", "action", "poster"} & set(attributes), tag
        assert attributes.get("href", "data:,") == "data:,"
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert "url(" not in "".join(parts.inside["style"])
    assert "@import" not in "".join(parts.inside["style"])


def test_policy_allows_the_page_own_script_alone() -> None:
    """The policy in the page has the hashes of its style and script; only a live page connects."""
    for live in (False, True):
        parts = _parts(live=live)
        policy = next(a["content"] for t, a in parts.elements if a.get("http-equiv"))
        assert policy is not None
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert ("connect-src 'self'" in policy) == live
        _, script = parts.inside["script"]
        for text in (parts.inside["style"][0], script):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy


def test_data_stay_in_their_element() -> None:
    """Hostile words neither end the element of the data, nor stand for another part of the page."""
    parts = _parts()
    data, script = parts.inside["script"]
    assert data.count("@SCRIPT@") == 1
    assert script.startswith("(() => {")
    assert not [tag for tag, _ in parts.elements if tag in ("img", "b")]


def test_scripts_never_make_markup_of_text() -> None:
    """No script has a way by which text becomes elements or code."""
    script = _parts().inside["script"][1]
    for way in (r"\.innerHTML", "outerHTML", "insertAdjacentHTML", r"document\.write", r"\beval\(",
                r"new Function", "srcdoc", "DOMParser", "createContextualFragment"):  # fmt: skip
        assert not re.search(way, script), way
    assert len(SCRIPTS) == len(set(SCRIPTS))
