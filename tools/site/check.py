# SPDX-License-Identifier: GPL-2.0-only
"""Check that a site needs no other site: `python tools/site/check.py build/site`.

The command lists the resources that the site's pages, styles and pictures would fetch from
elsewhere, and fails if it finds any. It ignores links that a reader follows.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

#: The resources that a browser fetches to show a page: (tag, attribute).
_FETCHED = {
    ("script", "src"), ("link", "href"), ("img", "src"), ("img", "srcset"), ("source", "src"),
    ("source", "srcset"), ("iframe", "src"), ("video", "src"), ("video", "poster"),
    ("audio", "src"), ("track", "src"), ("embed", "src"), ("object", "data"), ("input", "src"),
    ("image", "href"), ("image", "xlink:href"), ("use", "href"), ("use", "xlink:href"),
}  # fmt: skip
#: Links for machines, which a browser does not fetch to show the page.
_NOT_FETCHED = {"canonical", "next", "prev", "alternate", "license", "author"}
_ELSEWHERE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s;]+)""", re.IGNORECASE)


class _Page(HTMLParser):
    """Collects the addresses that a page fetches, and elements for which the theme fetches more."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        fetched = not set((given.get("rel") or "").split()) & _NOT_FETCHED
        for name, value in attrs:
            if (tag, name) in _FETCHED and fetched and _ELSEWHERE.match(value or ""):
                self.found.append(value)
            if name == "style":
                self.found += _STYLE.findall(value or "")
        # The theme fetches a program for the first, and a repository's figures for the second.
        if "mermaid" in (given.get("class") or "").split():
            self.found.append("mermaid, by the theme's script")
        if given.get("data-md-component") == "source":
            self.found.append("facts about the repository, by the theme's script")


def external(folder):
    """Return the pairs (file, address that it would fetch) of all files in `folder`."""
    found = []
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix in (".html", ".svg"):
            text = path.read_text()
            page = _Page()
            page.feed(text)
            styles = "".join(re.findall(r"<style.*?</style>", text, re.S | re.I))
            found += [(path, what) for what in page.found + _STYLE.findall(styles)]
        elif path.suffix == ".css":
            found += [(path, what) for what in _STYLE.findall(path.read_text())]
    return found


def main():
    """Run the command line; return the exit status."""
    folder = Path(sys.argv[1])
    found = external(folder)
    for path, what in found:
        print(f"{path.relative_to(folder)} fetches {what}", file=sys.stderr)
    pages = sum(1 for _ in folder.rglob("*.html"))
    if not found:
        print(f"{pages} pages that fetch nothing from elsewhere: {folder / 'index.html'}")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
