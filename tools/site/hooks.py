# SPDX-License-Identifier: GPL-2.0-only
"""What MkDocs does beside its own when it makes the site: `hooks` in mkdocs.yml.

docs/ is read in the repository as well as on the site, and its links lead to other files of the
repository: examples, READMEs, CONTRIBUTING. The site has to stand alone, so each file that is
linked to becomes a page of its own below repository/. The figures of README are put into the
landing page, from the only place where they stand.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
#: Where files from outside docs/ are on the site.
ELSEWHERE = "repository"
#: These are pages even if nothing links to them.
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")

_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)|`[^`\n]+`", re.M | re.S)
_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_FIGURES = re.compile(r"<!-- figures: begin.*?-->\n(.*?)<!-- figures: end -->", re.S)
_LANGUAGES = {".py": "python", ".json": "json", ".service": "ini", ".socket": "ini"}


def links(markdown):
    """The matches of links to files; what stands in code is none."""
    # As long as it was, so that places stay true.
    prose = _CODE.sub(lambda code: " " * len(code[0]), markdown)
    return [match for match in _LINK.finditer(prose) if not match["target"].startswith("/")]


def place_in_repository(uri):
    """Of a page of the site."""
    if uri.startswith(f"{ELSEWHERE}/"):
        return uri.removeprefix(f"{ELSEWHERE}/").removesuffix(".page.md")
    return f"docs/{uri}"


def place_on_site(path):
    """The inverse: of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    return f"{ELSEWHERE}/{path}" + ("" if path.endswith(".md") else ".page.md")


def target_of(path, match):
    """The file of the repository that a link in `path` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), match["target"]))


def page_of(path):
    """What a file from outside docs/ is as a page."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def on_files(files, config):
    """Add a page for each file outside docs/ that a page leads to, and theirs."""
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
    """Mend links for the site, have Markdown inside <details> read, put the figures in."""
    uri = page.file.src_uri
    here = place_in_repository(uri)
    pieces, end = [], 0
    for match in links(markdown):
        target = place_on_site(target_of(here, match))
        relative = posixpath.relpath(target, posixpath.dirname(uri))
        pieces += [markdown[end : match.start("target")], relative]
        end = match.end("target")
    markdown = "".join([*pieces, markdown[end:]])
    if "<!-- figures of README -->" in markdown:
        figures = _FIGURES.search((ROOT / "README.md").read_text())[1].replace("](docs/", "](")
        markdown = markdown.replace("<!-- figures of README -->", figures)
    return markdown.replace("<details><summary>", '<details markdown="1"><summary>')
