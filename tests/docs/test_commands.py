# SPDX-License-Identifier: GPL-2.0-only
"""The commands that the documentation names exist: make's targets, mgloop's commands and options,
the modules, scripts and options of the repository's tools. Nothing is run."""

import re
import shlex
import subprocess

import pytest
from markdown_pages import ROOT, blocks, pages, prose

from mgloop.http import cli
from mgloop.http.sources import load

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]

#: Languages of fenced blocks; without one a block is neither highlighted nor checked.
LANGUAGES = {
    "python", "sh", "text", "toml", "ini", "nginx", "caddyfile", "haproxy", "dockerfile", "json",
    "cython",
}  # fmt: skip

MAKEFILE = (ROOT / "Makefile").read_text()
#: The commands of `mgloop`.
COMMANDS = ("run", "serve", "top")

TARGETS = set(" ".join(re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE, re.M)).split()) - {"\\"}
VARIABLES = set(re.findall(r"\$\((\w+)\)", MAKEFILE))

#: Other projects' programs that pages name; their arguments are not checked.
OTHERS = {
    "apt", "apt-get", "cd", "cp", "curl", "cython", "export", "git", "gunicorn", "openssl", "pip",
    "podman", "py-spy", "pytest", "sha256sum", "systemctl", "twine", "useradd", "uv", "uvicorn",
    "wrk",
}  # fmt: skip


def commands(text):
    """Yield the commands of a shell block, each a list of words without leading assignments."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        piece = []
        for word in [*words, "&&"]:
            if word in ("&&", "|", ";", "&"):
                while piece and re.fullmatch(r"[A-Z_]+=.*", piece[0], re.S):
                    piece.pop(0)
                if piece:
                    yield piece
                piece = []
            else:
                piece.append(word)


def check_make(arguments):
    for word in arguments:
        name, equals, _ = word.partition("=")
        if equals:
            assert name in VARIABLES or name == "PYTHON", f"the Makefile knows no {name}"
        elif not word.startswith((".", "build/")):
            assert name in TARGETS, f"make has no target {name}"


def check_mgloop(arguments):
    """Check the arguments with the parser itself, which also refuses invalid values."""
    if not arguments or arguments[0] in ("--help", "--version"):
        return
    assert arguments[0] in COMMANDS, f"mgloop has no command {arguments[0]}"
    if arguments[0] == "serve" and "--help" not in arguments:
        try:
            given = vars(cli.parser().parse_args(arguments))
        except SystemExit:
            pytest.fail(f"mgloop {shlex.join(arguments)} is refused")
        beside = ("command", "config", "check", "env_file")
        load({k: v for k, v in given.items() if k not in beside}, {})


def check_options(arguments, sources):
    """Check that each option is written out in the sources of the tool."""
    for word in arguments:
        if word.startswith("--") and word != "--":
            option = word.partition("=")[0]
            assert f'"{option}"' in sources, f"there is no {option}"


def sources_of(module):
    place = ROOT / module.replace(".", "/")
    if place.is_dir():
        return "".join(path.read_text() for path in sorted(place.glob("*.py")))
    assert place.with_suffix(".py").exists(), f"there is no module {module}"
    return place.with_suffix(".py").read_text()


def check_python(arguments):
    while arguments and arguments[0] in ("-X", "-W"):
        arguments = arguments[2:]
    if not arguments or arguments[0] == "-c":
        return
    if arguments[0] == "-m":
        module, rest = arguments[1], arguments[2:]
        if module == "mgloop":
            check_mgloop(rest)
        elif module.partition(".")[0] in ("mgloop", "bench", "tests"):
            check_options(rest, sources_of(module))
        return
    path = ROOT / arguments[0]
    if "/" in arguments[0]:
        check_options(arguments[1:], path.read_text())


def check(words):
    program = words[0].rpartition("bin/")[2]
    if program == "make":
        check_make(words[1:])
    elif program == "mgloop":
        check_mgloop(words[1:])
    elif re.fullmatch(r"python[\d.t]*", program):
        check_python(words[1:])
    elif program == ".ci/run":
        assert (ROOT / program).exists()
    else:
        assert program in OTHERS, f"{program}: a typing error, or one more for OTHERS"


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block}: {block.language!r} is no language we use"
        if block.language == "sh":
            for words in commands(block.text):
                try:
                    check(words)
                except AssertionError as wrong:
                    raise AssertionError(f"{block}: {shlex.join(words)}: {wrong}") from None


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page):
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        name, _, rest = code.partition(" ")
        if name == "make" and (target := re.match(r"[a-z][a-z-]*", rest)):
            assert target[0] in TARGETS, f"{page.name}: `{code}`: no such target"
        elif name == "mgloop" and (command := re.match(r"[a-z][a-z-]*", rest)):
            assert command[0] in COMMANDS, f"{page.name}: `{code}`: no such command"


def test_the_reference_has_every_variable_of_the_environment():
    sources = [*ROOT.glob("mgloop/**/*.py"), *ROOT.glob("mgloop/**/*.pyx")]
    text = "".join(path.read_text() for path in sources)
    read = set(re.findall(r"""["'](MGLOOP_[A-Z_]+)["']""", text))
    assert read, "the sources name them otherwise"
    page = (ROOT / "docs" / "reference" / "command.md").read_text()
    assert {name for name in read if name not in page} == set()


@pytest.mark.parametrize("page", PAGES)
def test_code_stands_in_fences(page):
    """An indented block lacks a language: it is neither highlighted nor checked."""
    lines = prose(page).splitlines()
    in_list = False
    for number, line in enumerate(lines, 1):
        if line.strip():
            before = lines[number - 2].strip() if number > 1 else ""
            if line.startswith("    ") and not before and not in_list:
                pytest.fail(f"{page.relative_to(ROOT)}:{number}: {line.strip()}")
            if not line.startswith(" "):
                in_list = re.match(r"([-*]|\d+\.|===|!!!) ?", line) is not None


def test_the_tests_that_ci_selects_exist():
    script = (ROOT / ".ci/run").read_text()
    lines = re.findall(r"^(?:loop|some)_tests=.*$", script, re.MULTILINE)
    command = ["bash", "-c", "\n".join([*lines, 'echo "$some_tests"'])]
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
