"""The elements of a page."""

from __future__ import annotations

from html.parser import HTMLParser


class Elements(HTMLParser):
    """Collects elements with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
