# SPDX-License-Identifier: GPL-2.0-only
"""The project's own hooks for MkDocs: `hooks` in mkdocs.yml.

docs/ is read in the repository as well as on the site, and it links to other files of the
repository: examples, READMEs, CONTRIBUTING. The site must not depend on the repository, so each
linked file becomes a page below repository/. A link whose text is a file name, which is helpful in
the repository, gets the page's title as its text on the site. The landing page includes the
figures of README, which are written down only there.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
#: The folder on the site for files from outside docs/.
ELSEWHERE = "repository"
#: Files that become pages even if no page links to them.
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")

_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)|`[^`\n]+`", re.M | re.S)
_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_HEADING = re.compile(r"^# (.+)$", re.M)
# Code of one word must not be broken, as "--an-option" would be after each hyphen.
_SHORT_CODE = re.compile(r"<code>([^<\s]{1,30})</code>")
_PICTURE = re.compile(r'<img [^>]*?src="([^"]+)"[^>]*>')
_FIGURES = re.compile(r"<!-- figures: begin.*?-->\n(.*?)<!-- figures: end -->", re.S)
_LANGUAGES = {".py": "python", ".json": "json", ".service": "ini", ".socket": "ini"}


def links(markdown):
    """Return the matches of links to files; ignore links in code."""
    # Replace code by spaces of the same length, so that the positions remain valid.
    prose = _CODE.sub(lambda code: " " * len(code[0]), markdown)
    return [match for match in _LINK.finditer(prose) if not match["target"].startswith("/")]


def place_in_repository(uri):
    """Return the path in the repository of a page of the site."""
    if uri.startswith(f"{ELSEWHERE}/"):
        return uri.removeprefix(f"{ELSEWHERE}/").removesuffix(".page.md")
    return f"docs/{uri}"


def place_on_site(path):
    """Return the inverse: the place on the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    return f"{ELSEWHERE}/{path}" + ("" if path.endswith(".md") else ".page.md")


def target_of(path, match):
    """Return the file of the repository that a link in `path` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), match["target"]))


def title_of(path, files):
    """Return the title of a page of docs/ in the nav, or else its heading; None for other files."""
    if not path.startswith("docs/") or not path.endswith(".md"):
        return None
    file = files.get_file_from_path(place_on_site(path))
    if file is not None and file.page is not None and file.page.title:
        return file.page.title
    found = _HEADING.search((ROOT / path).read_text())
    return found and found[1]


def page_of(path):
    """Return the page's Markdown for a file from outside docs/."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def on_files(files, config):
    """Add a page for each file outside docs/ that a page links to, recursively."""
    known = {file.src_uri for file in files}
    todo = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    todo += [(path, None) for path in ALWAYS]
    while todo:
        path, text = todo.pop()
        uri = place_on_site(path)
        if uri not in known and (ROOT / path).is_file():
            known.add(uri)
            text = page_of(path)
            files.append(File.generated(config, uri, content=text))
        for match in links(text or "") if path.endswith(".md") else ():
            target = target_of(path, match)
            if place_on_site(target) not in known and (ROOT / target).is_file():
                todo.append((target, None))
    return files


def on_page_markdown(markdown, page, config, files):
    """Adapt links to the site, let Markdown inside <details> be read, insert the figures."""
    uri = page.file.src_uri
    if uri.startswith("benchmarks/"):
        page.meta["hide"] = ["toc"]  # space for the tables
    here = place_in_repository(uri)
    pieces, end = [], 0
    for match in links(markdown):
        path = target_of(here, match)
        text = markdown[match.start("text") : match.end("text")]
        if text[1:-1] in (match["target"], posixpath.basename(path)):
            text = f"[{title_of(path, files) or text[1:-1]}]"
        relative = posixpath.relpath(place_on_site(path), posixpath.dirname(uri))
        pieces += [markdown[end : match.start("text")], text, "(", relative]
        end = match.end("target")
    markdown = "".join([*pieces, markdown[end:]])
    if "<!-- figures of README -->" in markdown:
        figures = _FIGURES.search((ROOT / "README.md").read_text())[1].replace("](docs/", "](")
        markdown = markdown.replace("<!-- figures of README -->", figures)
    return markdown.replace("<details><summary>", '<details markdown="1"><summary>')


def on_page_content(html, page, config, files):
    """Mark short code; let a picture link to itself, so that a phone can enlarge it."""
    html = _SHORT_CODE.sub(r'<code class="short">\1</code>', html)
    return _PICTURE.sub(r'<a href="\1">\g<0></a>', html)
