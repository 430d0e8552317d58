# SPDX-License-Identifier: GPL-2.0-only
"""The build: obtaining Mongoose and llhttp, error messages, and the contents of distributions.

The tests run fetch.py as meson does, as a program, from a copy in a temporary folder. They need no
network: pip uses only source distributions that the tests make.
"""

import hashlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parents[2]
THIRDPARTY = ROOT / "thirdparty"
FETCH = THIRDPARTY / "fetch.py"


@dataclass(frozen=True)
class Library:
    """A library under test; the paths are those in its source distribution."""

    key: str
    name: str
    paths: tuple[str, ...]
    distribution: str
    back_end: str

    @property
    def names(self):
        return tuple(Path(path).name for path in self.paths)

    @property
    def variable(self):
        return f"MGLOOP_{self.key.upper()}_DIR"

    @property
    def archive(self):
        return f"{self.distribution}.tar.gz"


MONGOOSE = Library(
    "mongoose",
    "Mongoose 7.23",
    ("thirdparty/mongoose/mongoose.c", "thirdparty/mongoose/mongoose.h"),
    "cymongoose-0.2.5",
    "scikit_build_core.build",
)
LLHTTP = Library(
    "llhttp",
    "llhttp 9.4.3",
    (
        "vendor/llhttp/src/api.c",
        "vendor/llhttp/src/http.c",
        "vendor/llhttp/src/llhttp.c",
        "vendor/llhttp/include/llhttp.h",
        "vendor/llhttp/LICENSE-MIT",
    ),
    "httptools-0.9.0",
    "setuptools.build_meta",
)
LIBRARIES = (MONGOOSE, LLHTTP)


def environment(**changes):
    """Return this environment without the variables for pip or fetch.py, and with `changes`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "MGLOOP_", "MESON", "PYTHON"))
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"} | changes


def run(*command, cwd=None, **changes):
    return support.finished(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        timeout=500,  # for a build
    )


def git(*arguments, cwd=ROOT):
    result = run("git", *arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def paragraph(result):
    """Check that fetch.py failed; return the one paragraph of its standard error."""
    assert result.returncode == 1, result
    assert result.stdout == ""
    text = result.stderr
    assert text.startswith("mgloop: ")
    assert text.count("\n") == 1, text
    return text


def fetch_genuine(library):
    result = support.finished([sys.executable, FETCH, library.key])
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip())


# fetch.py treats the libraries alike, except that their distributions have different back-ends.
each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.key)


@pytest.fixture
def library():
    """Return the library under test; `each_library` parametrizes it."""
    return LLHTTP


@pytest.fixture
def genuine(library):
    """Return the folder with the files of the library that mgloop is built from."""
    return fetch_genuine(library)


@pytest.fixture
def repository():
    """Return the repository for git commands; skip the test in a source distribution."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    return ROOT


@pytest.fixture
def copy(tmp_path, library):
    """Copy the library's part of thirdparty, and fetch.py, without any fetched files."""
    folder = tmp_path / "thirdparty" / library.key
    folder.mkdir(parents=True)
    shutil.copy(FETCH, folder.parent)
    shutil.copy(THIRDPARTY / library.key / "requirements.txt", folder)
    return folder


def fetch(folder, *, python=sys.executable, **changes):
    """Run the copied fetch.py."""
    return run(python, folder.parent / "fetch.py", folder.name, **changes)


def make_distribution(library, folder, files, *, pinned_in=None):
    """Make the library's distribution in `folder` with `files`; pin its hash on request."""
    folder.mkdir()
    archive = folder / library.archive
    name, _, version = library.distribution.partition("-")
    # Like the real ones, it must not be built: the build back-end would come from a package
    # index, and would run the distribution's code.
    back_end = f'requires = ["no-such-package"]\nbuild-backend = "{library.back_end}"\n'
    contents = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        "pyproject.toml": f"[build-system]\n{back_end}".encode(),
        "setup.py": b"raise SystemExit('nothing of it is to be run')\n",
    }
    contents |= {path: files[Path(path).name] for path in library.paths if Path(path).name in files}
    with tarfile.open(archive, "w:gz") as tar:
        for path, data in contents.items():
            member = tarfile.TarInfo(f"{library.distribution}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    if pinned_in is not None:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        requirement = f"{name}=={version} --hash=sha256:{digest}\n"
        (pinned_in / "requirements.txt").write_text(requirement)
    return archive


def genuine_files(library, genuine):
    return {name: (genuine / name).read_bytes() for name in library.names}


@each_library
def test_fetches_once_and_verifies_ever_after(library, copy, genuine, tmp_path):
    index = tmp_path / "index"
    make_distribution(library, index, genuine_files(library, genuine), pinned_in=copy)
    first = fetch(copy, PIP_FIND_LINKS=str(index))
    assert first.returncode == 0, first.stderr
    fetched = copy / "fetched"
    assert first.stdout == f"{fetched}\n"
    assert sorted(path.name for path in fetched.iterdir()) == sorted(library.names)
    for name in library.names:
        assert (fetched / name).read_bytes() == (genuine / name).read_bytes()

    shutil.rmtree(index)
    second = fetch(copy)
    assert (second.returncode, second.stdout) == (0, first.stdout)


@each_library
def test_the_environment_of_the_building_pip_is_ignored(library, copy, genuine, tmp_path):
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("no-such-package<2\n")
    make_distribution(library, tmp_path / "index", genuine_files(library, genuine), pinned_in=copy)
    changes = {
        "PIP_REQUIRE_HASHES": "1",
        "PIP_CHECK_BUILD_DEPENDENCIES": "1",
        "PIP_BUILD_CONSTRAINT": str(constraints),
        # pip passes the back-end's path to its child in a variable that another pip would also use.
        "_PYPROJECT_HOOKS_BACKEND_PATH": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
    }
    result = fetch(copy, PIP_FIND_LINKS=str(tmp_path / "index"), **changes)
    assert result.returncode == 0, result.stderr


def test_two_builds_at_once_both_get_it(library, copy, genuine, tmp_path):
    index = tmp_path / "index"
    make_distribution(library, index, genuine_files(library, genuine), pinned_in=copy)
    command = [sys.executable, copy.parent / "fetch.py", library.key]
    both = [
        subprocess.Popen(
            command,
            env=environment(PIP_FIND_LINKS=str(index)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate()
        assert (process.returncode, out) == (0, f"{copy / 'fetched'}\n"), err
    assert sorted(path.name for path in copy.iterdir()) == ["fetched", "requirements.txt"]


def test_incomplete_files_of_another_build_are_not_used(library, copy, genuine, tmp_path):
    fetched = copy / "fetched"
    fetched.mkdir()
    shutil.copy(genuine / library.names[0], fetched)
    make_distribution(library, tmp_path / "index", genuine_files(library, genuine), pinned_in=copy)
    result = fetch(copy, PIP_FIND_LINKS=str(tmp_path / "index"))
    assert (result.returncode, result.stdout) == (0, f"{fetched}\n"), result.stderr
    assert sorted(path.name for path in fetched.iterdir()) == sorted(library.names)


@each_library
def test_distribution_with_another_hash_is_refused(library, copy, genuine, tmp_path):
    make_distribution(library, tmp_path / "index", genuine_files(library, genuine))
    text = paragraph(fetch(copy, PIP_FIND_LINKS=str(tmp_path / "index")))
    assert "SHA-256 is not the one pinned" in text
    assert library.variable in text
    assert not (copy / "fetched").exists()


def test_altered_file_in_the_right_distribution_is_refused(library, copy, genuine, tmp_path):
    files = genuine_files(library, genuine)
    files[library.names[-1]] += b"\n"
    make_distribution(library, tmp_path / "index", files, pinned_in=copy)
    text = paragraph(fetch(copy, PIP_FIND_LINKS=str(tmp_path / "index")))
    assert hashlib.sha256(files[library.names[-1]]).hexdigest() in text
    assert f"Nothing of {library.archive} was used" in text
    assert sorted(path.name for path in copy.iterdir()) == ["requirements.txt"]


def test_distribution_without_the_file_is_refused(library, copy, genuine, tmp_path):
    files = genuine_files(library, genuine)
    del files[library.names[-1]]
    make_distribution(library, tmp_path / "index", files, pinned_in=copy)
    text = paragraph(fetch(copy, PIP_FIND_LINKS=str(tmp_path / "index")))
    assert f"carries no {library.names[-1]}" in text


def test_unreachable_index_is_explained(library, copy):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        settings = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1"}
        text = paragraph(fetch(copy, **settings))
    assert "pip could not download" in text
    assert "Check that the network and the package index" in text
    assert library.variable in text


def test_index_without_the_requirement_is_explained(library, copy):
    text = paragraph(fetch(copy))
    requirement = library.distribution.replace("-", "==")
    assert f"No matching distribution found for {requirement}" in text


def test_an_interpreter_without_pip_gets_instructions(copy, tmp_path):
    created = run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    assert created.returncode == 0, created.stderr
    assert "needs pip" in paragraph(fetch(copy, python=tmp_path / "bare" / "bin" / "python"))


def test_fetched_file_that_changed_is_refused(library, copy, genuine):
    fetched = copy / "fetched"
    fetched.mkdir()
    for name in library.names:
        shutil.copy(genuine / name, fetched)
    with (fetched / library.names[0]).open("ab") as file:
        file.write(b"/* patched */\n")
    text = paragraph(fetch(copy))
    assert f"the SHA-256 of {fetched / library.names[0]} is" in text
    assert f"Delete {fetched} and build again" in text


def test_folder_that_the_variable_names_is_used_as_it_is(library, copy, genuine, tmp_path):
    local = tmp_path / "local"
    shutil.copytree(genuine, local)
    result = fetch(copy, **{library.variable: str(local)})
    assert (result.returncode, result.stdout) == (0, f"{local}\n"), result.stderr
    assert not (copy / "fetched").exists()


def test_folder_that_lacks_a_file_is_an_error(library, copy, genuine, tmp_path):
    for missing in library.names:
        local = tmp_path / f"without-{missing}"
        shutil.copytree(genuine, local)
        (local / missing).unlink()
        text = paragraph(fetch(copy, **{library.variable: str(local)}))
        name = library.name.split()[0]
        assert f"cannot read {name}'s {missing} in {local} (No such file or directory)" in text
        assert f"{library.variable} must name a folder" in text


def test_folder_with_another_version_is_an_error(library, copy, genuine, tmp_path):
    for altered in library.names:
        local = tmp_path / f"another-{altered}"
        shutil.copytree(genuine, local)
        (local / altered).write_text("#define VERSION another\n")
        text = paragraph(fetch(copy, **{library.variable: str(local)}))
        assert f"the SHA-256 of {local / altered} is" in text
        assert library.name in text


@pytest.fixture
def read_only(copy):
    """Make the copy read-only; skip the test for root, because root may write anyway."""
    if os.geteuid() == 0:
        pytest.skip("root may write to every folder")
    copy.chmod(0o555)
    yield copy
    copy.chmod(0o755)


def test_read_only_source_tree_is_fetched_into_the_build_folder(
    library, read_only, genuine, tmp_path
):
    read_only.chmod(0o755)
    make_distribution(
        library, tmp_path / "index", genuine_files(library, genuine), pinned_in=read_only
    )
    read_only.chmod(0o555)
    build = tmp_path / "build"
    build.mkdir()
    for _ in range(2):
        result = fetch(
            read_only, PIP_FIND_LINKS=str(tmp_path / "index"), MESON_BUILD_ROOT=str(build)
        )
        assert (result.returncode, result.stdout) == (0, f"{build / library.key}\n"), result.stderr


def test_nowhere_to_put_it_is_explained(library, copy, genuine, tmp_path):
    make_distribution(library, tmp_path / "index", genuine_files(library, genuine), pinned_in=copy)
    (copy / "fetched").write_text("a file where the folder would be")
    text = paragraph(fetch(copy, PIP_FIND_LINKS=str(tmp_path / "index")))
    name = library.name.split()[0]
    assert f"cannot write {name}'s files to {copy / 'fetched'} (" in text
    assert "Build from a folder that you may write to" in text


@pytest.mark.parametrize("writable", [True, False], ids=["writable", "read-only"])
def test_back_end_builds_elsewhere_where_the_tree_is_read_only(monkeypatch, tmp_path, writable):
    mesonpy = pytest.importorskip("mesonpy", reason="needs meson-python")
    monkeypatch.syspath_prepend(ROOT / "tools")
    build_backend = importlib.import_module("build_backend")
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    seen = []
    monkeypatch.setattr(mesonpy, "build_wheel", lambda *arguments: seen.append(arguments))
    build_backend.build_wheel("wheels", {"setup-args": "-Dx=y"})
    build_backend.build_wheel("wheels", {"build-dir": "mine"})
    (_, settings, _), (_, named, _) = seen
    assert settings["setup-args"] == "-Dx=y"
    assert ("build-dir" in settings) != writable
    if not writable:
        assert not Path(settings["build-dir"]).is_relative_to(ROOT)
    assert named == {"build-dir": "mine"}


@each_library
def test_nothing_that_is_fetched_is_tracked(library, repository):
    tracked = git("ls-files", cwd=repository).splitlines()
    assert [path for path in tracked if Path(path).name in library.names] == []
    ignored = [f"thirdparty/{library.key}/fetched/{name}" for name in library.names]
    assert git("check-ignore", *ignored, cwd=repository).splitlines() == ignored


def test_every_file_of_the_package_is_in_meson_build():
    text = (ROOT / "mgloop" / "meson.build").read_text()
    lists = {
        name: re.findall(r"'([^']+)'", re.search(rf"^{name} = \[(.*?)\]", text, re.S | re.M)[1])
        for name in ("native", "pure")
    }
    package = ROOT / "mgloop"
    native = {path.relative_to(package).with_suffix("") for path in package.rglob("*.pyx")}
    assert lists["native"] == sorted(map(str, native))
    globs = ("*.py", "*.pyi", "py.typed", "__init__.pxd", "_compiled.pxd", "_handler.pxd")
    pure = {path.relative_to(package) for glob in globs for path in package.rglob(glob)}
    assert lists["pure"] == sorted(map(str, pure))


def test_versions_agree():
    import mgloop

    declared = re.search(r"^  version: '([^']+)'", (ROOT / "meson.build").read_text(), re.M)[1]
    assert mgloop.__version__ == declared


def configure(tmp_path, *options, **changes):
    """Configure a build of this tree with meson, which must fail; return its output."""
    meson = shutil.which("meson", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if meson is None:
        pytest.skip("needs meson")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = run(meson, "setup", tmp_path / "build", ROOT, *options, **{"PATH": path} | changes)
    assert result.returncode != 0, result.stdout
    return result.stdout


def test_build_without_a_compiler_says_what_to_install(tmp_path):
    output = configure(tmp_path, CC="no-such-compiler")
    assert "found no working C compiler. Install one (on Debian or Ubuntu: `apt install" in output


def test_build_for_another_system_says_that_only_linux_will_do(tmp_path):
    cross = tmp_path / "cross.ini"
    cross.write_text(
        "[host_machine]\nsystem = 'darwin'\ncpu_family = 'aarch64'\n"
        "cpu = 'aarch64'\nendian = 'little'\n"
    )
    output = configure(tmp_path, "--cross-file", cross)
    assert "mgloop runs on Linux only: its poll loop is built on epoll." in output
    assert "on other systems, asyncio's own loop does what mgloop does" in output


def test_build_for_another_implementation_says_which(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.implementation.name = 'pypy'\n")
    native = native_file(tmp_path, "")
    output = configure(tmp_path, "--native-file", native)
    assert "mgloop runs on CPython only, and this is pypy" in output
    assert "Install CPython 3.11 or later" in output


def native_file(tmp_path, binaries):
    """Return a file that makes meson build for this Python, with `tmp_path` first in its path."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    native = tmp_path / "native.ini"
    native.write_text(f"[binaries]\npython = '{python}'\n{binaries}")
    return native


def test_build_without_headers_says_so_before_it_looks_at_cython(tmp_path):
    """meson's own check of Cython needs the headers too, but must not be the reported error."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig\n"
        "get_paths = sysconfig.get_paths\n"
        "sysconfig.get_paths = lambda *a, **k: get_paths(*a, **k) | dict.fromkeys(\n"
        f"    ('include', 'platinclude'), {str(tmp_path)!r})\n"
        f"sysconfig.get_config_vars()['INCLUDEPY'] = {str(tmp_path)!r}\n"
    )
    missing = "cython = 'no-such-cython'\npkg-config = 'no-such-pkg-config'\n"
    native = native_file(tmp_path, missing)
    output = configure(tmp_path, "--native-file", native)
    assert "needs the C headers of Python" in output
    assert "`apt install python3-dev`" in output


def test_build_without_cython_says_so(tmp_path):
    native = tmp_path / "native.ini"
    native.write_text("[binaries]\ncython = 'no-such-cython'\n")
    output = configure(tmp_path, "--native-file", native)
    assert "mgloop needs Cython 3.1 or later to build and found none" in output


@each_library
def test_build_shows_what_the_fetching_says(library, tmp_path):
    output = configure(tmp_path, **{library.variable: str(tmp_path / "nothing")})
    expected = f"{library.variable} must name a folder with the unmodified {library.names[0]}"
    assert expected in output


def test_generated_code_is_used_again_until_a_file_changes(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "tools")
    cached_cython = importlib.import_module("cached_cython")
    monkeypatch.setattr(cached_cython, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3")
    runs = []

    def cython(command, check):
        output = Path(command[command.index("-o") + 1])
        output.write_text(f"code {len(runs)}")
        output.with_name(output.name + ".dep").write_text("x.c: \\\n  a/it.pyx \\\n  a/it.pxd\n")
        runs.append(command)
        return subprocess.CompletedProcess(command, 0 if (tree / "it.pxd").exists() else 1)

    def generate(output, *options):
        arguments = ["-M", *options, "-I", str(tree), str(tree / "it.pyx"), "-o", str(output)]
        status = cached_cython.main(arguments)
        return status or (Path(output).read_text(), Path(f"{output}.dep").read_text())

    monkeypatch.setattr(subprocess, "run", cython)
    monkeypatch.chdir(tmp_path)
    tree = tmp_path / "a"
    tree.mkdir()
    for name in ("it.pyx", "it.pxd"):
        (tree / name).write_text("original")
    generate("1.c")
    assert generate("2.c") == ("code 0", "2.c: a/it.pxd a/it.pyx\n")
    assert generate("3.c", "-X", "cdivision=True")[0] == "code 1"
    # Another tree with the same files has the same code, and one that lacks a file has none.
    shutil.copytree(tree, tmp_path / "b")
    tree = tmp_path / "b"
    assert generate("4.c")[0] == "code 0"
    (tree / "it.pxd").unlink()
    assert generate("5.c") == 1
    for number, name in ((3, "it.pyx"), (4, "it.pxd")):
        tree = tmp_path / "a"
        (tree / name).write_text("changed")
        assert generate("6.c")[0] == f"code {number}"


SHOW_BUILD = ROOT / "tools" / "show_build.py"
STEPS = "echo noise; echo '  [1/2] Compiling C object'; echo '  [2/2] Linking target'; exit "


@pytest.mark.parametrize("status", [0, 3])
def test_progress_of_a_build_is_shown_and_the_rest_if_it_fails(status):
    result = run(sys.executable, SHOW_BUILD, "sh", "-c", STEPS + str(status))
    assert result.returncode == status
    assert result.stdout == "  [1/2] Compiling C object\n  [2/2] Linking target\n"
    assert ("noise\n" in result.stderr) == bool(status)


def test_make_without_an_index_says_what_to_do(tmp_path):
    """The message comes soon, not after half a minute of attempts, and not only in pip's words."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        began = time.monotonic()
        settings = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1"}
        variables = (f"PYTHON={sys.executable}", f"VENV={tmp_path / 'venv'}")
        result = run("make", tmp_path / "venv" / ".group-serve", *variables, cwd=ROOT, **settings)
    assert result.returncode == 2
    assert "PIP_NO_INDEX=1 PIP_FIND_LINKS=" in result.stderr
    assert "thirdparty/README.md" in result.stderr
    assert time.monotonic() - began < 60


FRESH = ROOT / "tools" / "fresh.py"


def test_no_fresh_machine_is_one_sentence_and_no_failure(tmp_path):
    result = run(sys.executable, FRESH, PATH=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(r"make fresh is skipped: [^\n]+\.\n", result.stdout)


def test_a_fresh_machine_has_the_packages_that_the_readme_names(monkeypatch):
    monkeypatch.syspath_prepend(FRESH.parent)
    fresh = importlib.import_module("fresh")
    assert fresh.packages() == ["python3-dev", "python3-venv", "gcc", "make"]


def check_bill_of_materials(document):
    """Compare the CycloneDX document of a wheel with the libraries that are compiled in."""
    import mgloop

    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["version"] == mgloop.__version__
    parts = {part["name"]: part for part in document["components"]}
    assert parts.keys() == {library.key for library in LIBRARIES}
    for library in LIBRARIES:
        part = parts[library.key]
        folder = ROOT / "thirdparty" / library.key
        assert f"/{library.key}) {part['version']}," in (folder / "README.md").read_text()
        (source,) = part["externalReferences"]
        distribution = source["url"].removeprefix("pkg:pypi/").replace("@", "==")
        digest = source["hashes"][0]["content"]
        pinned = (folder / "requirements.txt").read_text()
        assert f"{distribution} \\\n    --hash=sha256:{digest}\n" in pinned


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_source_distribution_builds_without_a_network(repository, tmp_path):
    pytest.importorskip("mesonpy", reason="needs meson-python")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    # meson packs committed files, so make a temporary repository with the current files.
    tree = tmp_path / "tree"
    listed = git("ls-files", "-co", "--exclude-standard", "-z", cwd=repository).split("\0")
    for name in listed:
        if name and (repository / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, tree / name)
    git("init", "--quiet", cwd=tree)
    git("add", "--all", cwd=tree)
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    git(*author, "commit", "--quiet", "--message", "snapshot", cwd=tree)
    code = f"import mesonpy; mesonpy.build_sdist({str(tmp_path)!r})"
    local = {library.variable: str(fetch_genuine(library)) for library in LIBRARIES}
    packed = run(sys.executable, "-c", code, cwd=tree, PATH=path, **local)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    (sdist,) = tmp_path.glob("mgloop-*.tar.gz")
    with tarfile.open(sdist) as tar:
        members = {name.partition("/")[2] for name in tar.getnames()}
    for library in LIBRARIES:
        assert {f"thirdparty/{library.key}/fetched/{name}" for name in library.names} <= members

    # Without an index and a local copy, the distribution must contain everything.
    build = tmp_path / "build"
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", tmp_path)
    # The test does not depend on the generated code, and optimisation takes most of the time.
    options += (f"-Cbuild-dir={build}", "-Csetup-args=-Doptimization=0")
    # Cached C code is used only if the distribution contains every file that Cython read for it.
    cython = f"{sys.executable} {ROOT / 'tools' / 'cached_cython.py'}"
    built = run(sys.executable, "-m", "pip", "wheel", *options, sdist, PATH=path, CYTHON=cython)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (build / "mgloop" / "libllhttp.a").exists()
    (wheel,) = tmp_path.glob("mgloop-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    suffixes = {"".join(Path(name).suffixes) for name in names if name.startswith("mgloop/")}
    suffixes = {suffix for suffix in suffixes if not suffix.endswith(".so")}
    assert suffixes == {".pxd", ".py", ".pyi", ".typed", ""}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "mgloop/licenses/llhttp/LICENSE-MIT" in names
    (listed,) = (tmp_path / "installed").glob("mgloop-*.dist-info/sboms/mgloop.cdx.json")
    check_bill_of_materials(json.loads(listed.read_text()))

    # -S excludes the environment's own, possibly editable, mgloop.
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); "
        "import asyncio, mgloop; mgloop.run(asyncio.sleep(0.01)); print(mgloop.__file__)"
    )
    ran = run(sys.executable, "-S", "-c", program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(tmp_path)
