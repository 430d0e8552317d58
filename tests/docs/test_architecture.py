# SPDX-License-Identifier: GPL-2.0-only
"""docs/architecture.md agrees with the sources: its table "Where to find it", and the modules."""

import re

import pytest
from markdown_pages import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text()
SECTION = TEXT.partition("\n## Where to find it\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \| (.+?) \|$", SECTION, re.M)
#: Calls of other libraries, which the table names without defining them in the file.
FOREIGN = {"recv", "SSL_read", "SSL_write"}


@pytest.mark.parametrize(("file", "functions"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_each_function_is_in_its_file(file, functions):
    source = (ROOT / "mgloop" / file).read_text()
    names = set(re.findall(r"`(\w+)\(\)`", functions))
    assert names
    for name in names - FOREIGN:
        definition = rf"^ *(?:async )?(?:cdef|def|static|int)\b[^=\n]*\b{name}\("
        assert re.search(definition, source, re.M), f"{file} does not define {name}()"
    for name in names & FOREIGN:
        assert f"{name}(" in source


def test_each_module_is_on_the_page():
    names = {path.stem for path in (ROOT / "mgloop").rglob("*") if path.suffix in (".py", ".pyx")}
    names -= {"__init__", "sitecustomize"}
    assert not {name for name in names if not re.search(rf"(?<![a-z]){name}\b", TEXT)}
