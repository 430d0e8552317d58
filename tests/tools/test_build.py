# SPDX-License-Identifier: GPL-2.0-only
"""The build: how Mongoose is obtained, what a failure says, and what the distributions hold.

fetch.py is run as meson runs it, as a program, from a copy in a temporary folder. Nothing here
needs a network: pip is pointed at source distributions that the tests make, and told to use nothing
else.
"""

import hashlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MONGOOSE = ROOT / "thirdparty" / "mongoose"
NAMES = ("mongoose.c", "mongoose.h")

# A build back-end that lies in the distribution itself: pip asks every source distribution for its
# metadata, and anything else would have to come from a package index.
BACKEND = """
import pathlib
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "cymongoose-0.2.5.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: cymongoose\\nVersion: 0.2.5\\n")
    return info.name
def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise AssertionError("nothing of it is to be built")
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def environment(**changes):
    """This process's environment without what would steer pip or fetch.py, and with `changes`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "MGLOOP_", "MESON", "PYTHON"))
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"} | changes


def run(*command, cwd=None, **changes):
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def git(*arguments, cwd=ROOT):
    result = run("git", *arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


def paragraph(result):
    """The one paragraph on standard error of a fetch.py that failed, which it must have."""
    assert result.returncode == 1, result
    assert result.stdout == ""
    text = result.stderr
    assert text.startswith("mgloop: ")
    assert text.count("\n") == 1, text
    return text


@pytest.fixture(scope="session")
def genuine():
    """The folder with the Mongoose files that mgloop is built from."""
    result = subprocess.run(
        [sys.executable, MONGOOSE / "fetch.py"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip())


@pytest.fixture
def repository():
    """The repository, for questions to git; a source distribution has none."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    return ROOT


@pytest.fixture
def copy(tmp_path):
    """A copy of thirdparty/mongoose with nothing fetched."""
    folder = tmp_path / "mongoose"
    folder.mkdir()
    for name in ("fetch.py", "requirements.txt"):
        shutil.copy(MONGOOSE / name, folder)
    return folder


def make_distribution(folder, files, *, pinned_in=None):
    """Make `folder`/cymongoose-0.2.5.tar.gz with `files` as Mongoose's; pin its hash on request."""
    folder.mkdir()
    archive = folder / "cymongoose-0.2.5.tar.gz"
    contents = {
        "PKG-INFO": b"Metadata-Version: 2.1\nName: cymongoose\nVersion: 0.2.5\n",
        "backend.py": BACKEND.encode(),
        "pyproject.toml": PROJECT.encode(),
    }
    contents |= {f"thirdparty/mongoose/{name}": data for name, data in files.items()}
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(f"cymongoose-0.2.5/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    if pinned_in is not None:
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        requirement = f"cymongoose==0.2.5 --hash=sha256:{digest}\n"
        (pinned_in / "requirements.txt").write_text(requirement)
    return archive


def genuine_files(genuine):
    return {name: (genuine / name).read_bytes() for name in NAMES}


def test_fetches_once_and_verifies_ever_after(copy, genuine, tmp_path):
    index = tmp_path / "index"
    make_distribution(index, genuine_files(genuine), pinned_in=copy)
    first = run(sys.executable, copy / "fetch.py", PIP_FIND_LINKS=str(index))
    assert first.returncode == 0, first.stderr
    fetched = copy / "fetched"
    assert first.stdout == f"{fetched}\n"
    assert sorted(path.name for path in fetched.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert (fetched / name).read_bytes() == (genuine / name).read_bytes()

    shutil.rmtree(index)
    second = run(sys.executable, copy / "fetch.py")
    assert (second.returncode, second.stdout) == (0, first.stdout)


def test_hash_checking_asked_for_by_variable_does_not_reach_build_tools(copy, genuine, tmp_path):
    make_distribution(tmp_path / "index", genuine_files(genuine), pinned_in=copy)
    result = run(
        sys.executable,
        copy / "fetch.py",
        PIP_FIND_LINKS=str(tmp_path / "index"),
        PIP_REQUIRE_HASHES="1",
    )
    assert result.returncode == 0, result.stderr


def test_distribution_with_another_hash_is_refused(copy, genuine, tmp_path):
    make_distribution(tmp_path / "index", genuine_files(genuine))
    text = paragraph(run(sys.executable, copy / "fetch.py", PIP_FIND_LINKS=str(tmp_path / "index")))
    assert "SHA-256 is not the one pinned" in text
    assert "MGLOOP_MONGOOSE_DIR" in text
    assert not (copy / "fetched").exists()


def test_altered_file_in_the_right_distribution_is_refused(copy, genuine, tmp_path):
    files = genuine_files(genuine)
    files["mongoose.h"] += b"\n"
    make_distribution(tmp_path / "index", files, pinned_in=copy)
    text = paragraph(run(sys.executable, copy / "fetch.py", PIP_FIND_LINKS=str(tmp_path / "index")))
    assert hashlib.sha256(files["mongoose.h"]).hexdigest() in text
    assert "Nothing of cymongoose-0.2.5.tar.gz was used" in text
    assert sorted(path.name for path in copy.iterdir()) == ["fetch.py", "requirements.txt"]


def test_distribution_without_the_file_is_refused(copy, genuine, tmp_path):
    files = {"mongoose.c": (genuine / "mongoose.c").read_bytes()}
    make_distribution(tmp_path / "index", files, pinned_in=copy)
    text = paragraph(run(sys.executable, copy / "fetch.py", PIP_FIND_LINKS=str(tmp_path / "index")))
    assert "carries no mongoose.h" in text


def test_unreachable_index_is_explained(copy):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        text = paragraph(
            run(
                sys.executable,
                copy / "fetch.py",
                PIP_NO_INDEX="0",
                PIP_INDEX_URL=index,
                PIP_NO_CACHE_DIR="1",
            )
        )
    assert "pip could not download" in text
    assert "Check that the network and the package index" in text
    assert "MGLOOP_MONGOOSE_DIR" in text


def test_index_without_the_requirement_is_explained(copy):
    text = paragraph(run(sys.executable, copy / "fetch.py"))
    assert "No matching distribution found for cymongoose==0.2.5" in text


def test_interpreter_without_pip_is_told_to_get_it(copy, tmp_path):
    created = run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    assert created.returncode == 0, created.stderr
    text = paragraph(run(tmp_path / "bare" / "bin" / "python", copy / "fetch.py"))
    assert "needs pip" in text


def test_fetched_file_that_changed_is_refused(copy, genuine):
    fetched = copy / "fetched"
    fetched.mkdir()
    for name in NAMES:
        shutil.copy(genuine / name, fetched)
    with (fetched / "mongoose.c").open("ab") as file:
        file.write(b"/* patched */\n")
    text = paragraph(run(sys.executable, copy / "fetch.py"))
    assert f"the SHA-256 of {fetched / 'mongoose.c'} is" in text
    assert f"Delete {fetched} and build again" in text


def test_folder_that_the_variable_names_is_used_as_it_is(copy, genuine, tmp_path):
    local = tmp_path / "local"
    shutil.copytree(genuine, local)
    result = run(sys.executable, copy / "fetch.py", MGLOOP_MONGOOSE_DIR=str(local))
    assert (result.returncode, result.stdout) == (0, f"{local}\n"), result.stderr
    assert not (copy / "fetched").exists()


@pytest.mark.parametrize("missing", NAMES)
def test_folder_that_lacks_a_file_is_an_error(copy, genuine, tmp_path, missing):
    local = tmp_path / "local"
    shutil.copytree(genuine, local)
    (local / missing).unlink()
    text = paragraph(run(sys.executable, copy / "fetch.py", MGLOOP_MONGOOSE_DIR=str(local)))
    assert f"cannot read Mongoose's {missing} in {local} (No such file or directory)" in text
    assert "MGLOOP_MONGOOSE_DIR must name a folder" in text


@pytest.mark.parametrize("altered", NAMES)
def test_folder_with_another_mongoose_is_an_error(copy, genuine, tmp_path, altered):
    local = tmp_path / "local"
    shutil.copytree(genuine, local)
    (local / altered).write_text("#define MG_VERSION 7.24\n")
    text = paragraph(run(sys.executable, copy / "fetch.py", MGLOOP_MONGOOSE_DIR=str(local)))
    assert f"the SHA-256 of {local / altered} is" in text
    assert "Mongoose 7.23" in text


def test_nothing_of_mongoose_is_tracked(repository):
    tracked = git("ls-files", cwd=repository).splitlines()
    assert [path for path in tracked if Path(path).name in NAMES] == []
    ignored = [f"thirdparty/mongoose/fetched/{name}" for name in NAMES]
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
    globs = ("*.py", "*.pyi", "py.typed")
    pure = {path.relative_to(package) for glob in globs for path in package.rglob(glob)}
    assert lists["pure"] == sorted(map(str, pure))


def test_versions_agree():
    import mgloop

    declared = re.search(r"^  version: '([^']+)'", (ROOT / "meson.build").read_text(), re.M)[1]
    assert mgloop.__version__ == declared


def configure(tmp_path, **changes):
    """Configure a build of this tree with meson; return its output, which must be a failure's."""
    meson = shutil.which("meson", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if meson is None:
        pytest.skip("needs meson")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = run(meson, "setup", tmp_path / "build", ROOT, **{"PATH": path} | changes)
    assert result.returncode != 0, result.stdout
    return result.stdout


def test_build_without_a_compiler_says_what_to_install(tmp_path):
    output = configure(tmp_path, CC="no-such-compiler")
    assert "found no working C compiler. Install one (on Debian or Ubuntu: `apt install" in output


def test_build_shows_what_the_fetching_says(tmp_path):
    output = configure(tmp_path, MGLOOP_MONGOOSE_DIR=str(tmp_path / "nothing"))
    assert "MGLOOP_MONGOOSE_DIR must name a folder with the unmodified mongoose.c" in output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_source_distribution_builds_without_a_network(repository, genuine, tmp_path):
    pytest.importorskip("mesonpy", reason="needs meson-python")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    # meson packs what is committed: a throw-away repository with the files as they are now.
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
    packed = run(sys.executable, "-c", code, cwd=tree, PATH=path, MGLOOP_MONGOOSE_DIR=str(genuine))
    assert packed.returncode == 0, packed.stdout + packed.stderr
    (sdist,) = tmp_path.glob("mgloop-*.tar.gz")
    with tarfile.open(sdist) as tar:
        members = {name.partition("/")[2] for name in tar.getnames()}
    assert {f"thirdparty/mongoose/fetched/{name}" for name in NAMES} <= members

    # Neither an index nor a local copy: the distribution has to have all that it needs.
    options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", tmp_path)
    built = run(sys.executable, "-m", "pip", "wheel", *options, sdist, PATH=path)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("mgloop-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    suffixes = {"".join(Path(name).suffixes) for name in names if name.startswith("mgloop/")}
    assert suffixes <= {".py", ".pyi", ".typed", "", *{s for s in suffixes if s.endswith(".so")}}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)

    # -S keeps the environment's own, perhaps editable, mgloop out of the way.
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r}); "
        "import asyncio, mgloop; mgloop.run(asyncio.sleep(0.01)); print(mgloop.__file__)"
    )
    ran = run(sys.executable, "-S", "-c", program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(tmp_path)
