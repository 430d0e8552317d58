# SPDX-License-Identifier: GPL-2.0-only
"""Links between the repository's Markdown files lead somewhere. (`make docs` checks the site's.)

Links to other machines are not checked.
"""

import re

import pytest
from markdown_pages import ROOT, anchors, pages, prose

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.M)


def links(page):
    """Return (path, anchor) of each link to a file of the repository."""
    text = re.sub(r"`[^`\n]+`", "", prose(page))
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{path} leads out of the repository"
        assert target.exists(), f"there is no {path}"
        if anchor:
            assert anchor in anchors(target), f"{path or page.name} has no heading #{anchor}"
