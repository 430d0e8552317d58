# SPDX-License-Identifier: GPL-2.0-only
"""Run README's two commands on a fresh machine (`make fresh`).

    python3 tools/fresh.py                     as an ordinary user
    python3 tools/fresh.py --as root           as root; --as both: one after the other
    python3 tools/fresh.py --pytest '-m "not slow"'

debootstrap makes a tree of the machine's own Debian release, which contains only the base system
and the packages that README lists. The tree is kept in the user's cache folder. It is mounted
read-only, with empty home and temporary folders, in a separate mount and process namespace, so that
no mount and no process remains. A copy of the working tree, without the files that git ignores, is
placed there. `make serve` must answer a request and end on Ctrl-C, and `make test` must pass.

The tree uses the machine's network and pip's configuration. If the machine lacks a requirement, one
sentence says why, and the exit status is 0.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mgloop-fresh"
SCRIPTS = Path("/usr/share/debootstrap/scripts")
ORDINARY = "fresh"
HOMES = {ORDINARY: f"home/{ORDINARY}", "root": "root"}
#: Configuration of the machine rather than of its packages: name resolution, pip, certificates.
CONFIGURATION = (
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/xdg/pip/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
)
PASSED_ON = re.compile(r"PIP_\w+|https?_proxy|no_proxy|SSL_CERT_FILE", re.IGNORECASE)
#: Time limits in seconds: for a server to end, and for everything before it listens.
TO_END, TO_LISTEN = 30, 900


class SkippedError(Exception):
    """The reason why this machine cannot provide a fresh one, as the end of a sentence."""


def packages():
    """Return the packages that README lists."""
    return re.search(r"^apt install (.+)$", (ROOT / "README.md").read_text(), re.M)[1].split()


def output(*command):
    """Return the output of `command`; empty if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout


def release():
    """Return (code name, mirror, components) of this machine's Debian from apt's configuration.

    Raises SkippedError if no tree can be made.
    """
    if os.geteuid() != 0:
        raise SkippedError("root is required")
    for program in ("debootstrap", "unshare", "chroot", "apt-get", "git"):
        if shutil.which(program) is None:
            raise SkippedError(f"{program} is not installed")
    if not (ROOT / ".git").exists():
        raise SkippedError("this is not a git checkout")
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        raise SkippedError("mount and process namespaces cannot be created here")
    system = Path("/etc/os-release").read_text()
    if not (found := re.search(r'^VERSION_CODENAME="?(\w+)', system, re.M)):
        raise SkippedError("this is not a Debian release")
    form = "$(CODENAME) $(RELEASE) $(REPO_URI) $(COMPONENT)"
    targets = output("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    ours = [line.split() for line in targets.splitlines() if found[1] in line.split()[:2]]
    if not ours:
        raise SkippedError(f"apt is not configured for {found[1]}, its own release")
    mirror = ours[0][-2]
    return found[1], mirror, sorted({line[-1] for line in ours if line[-2] == mirror})


NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def make_tree(codename, mirror, components, wanted, name, *options):
    """Return the folder `name` with a Debian tree that has the packages `wanted`. Make it if it
    does not exist. The options are debootstrap's."""
    tree = CACHE / name
    stamp = tree / "etc" / "mgloop-fresh"
    if stamp.exists() and stamp.read_text().split() == wanted:
        return tree
    began = time.monotonic()
    print(f"making a tree of Debian {codename}: its base and {' '.join(wanted)}", flush=True)
    # A release that is newer than debootstrap is made with the script of sid.
    script = [] if (SCRIPTS / codename).exists() else [SCRIPTS / "sid"]
    CACHE.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.rmtree(tree, ignore_errors=True)
    log = CACHE / f"{name}.log"
    with log.open("wb") as file:
        status = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={','.join(wanted)}",
             f"--components={','.join(components)}", *options, codename, tree, mirror, *script],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    if status:
        lines = log.read_text(errors="replace").splitlines()
        shutil.rmtree(tree, ignore_errors=True)
        if any(reason in line for line in lines for reason in ("Failed getting release", "nodev")):
            raise SkippedError(f"debootstrap says: {lines[-1]}")
        raise SystemExit("\n".join([*lines[-10:], "debootstrap failed"]))
    subprocess.run(["chroot", tree, "useradd", "--create-home", ORDINARY], check=True)
    stamp.write_text(" ".join(wanted))
    print(f"made in {time.monotonic() - began:.0f} s", flush=True)
    return tree


def configure(tree):
    """Copy the machine's configuration to the tree; return the environment that belongs to it."""
    passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    # Include the files and folders that the variables name: a certificate, a folder of wheels.
    named = [part for value in passed.values() for part in value.split() if part.startswith("/")]
    for name in {*CONFIGURATION, *named}:
        source, target = Path(name), tree / name[1:]
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy(source, target)
        elif source.name == "pip.conf":
            target.unlink(missing_ok=True)
    return passed


def copy_working_tree(target, but=()):
    """Copy the working tree with its uncommitted changes, without the folders named in `but`."""
    git = ("git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT))
    for name in output(*git, "ls-files", "-co", "--exclude-standard", "-z").split("\0"):
        if name and (ROOT / name).is_file() and Path(name).parts[0] not in but:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


# Mounts the file systems of a machine, and runs the remaining arguments as a command of `user`.
ENTER = """
set -eu
tree=$1 scratch=$2 user=$3
shift 3
mount --bind "$tree" "$tree"
mount -o remount,bind,ro "$tree"
for folder in home root tmp var/tmp; do mount --bind "$scratch/$folder" "$tree/$folder"; done
for folder in dev sys; do mount --rbind "/$folder" "$tree/$folder"; done
mount -t proc proc "$tree/proc"
chroot --userspec="$user" "$tree" /usr/bin/env -i "$@"
"""


def run(tree, user, passed, fill, *command):
    """Run `command` in `tree` as `user`, in a folder filled by `fill`; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="mgloop-fresh-") as name:
        scratch = Path(name)
        for folder in ("tmp", "var/tmp"):
            (scratch / folder).mkdir(parents=True)
            (scratch / folder).chmod(0o1777)
        for home in HOMES.values():
            (scratch / home).mkdir(parents=True)
        repository = scratch / HOMES[user] / "mgloop"
        fill(repository)
        for home in HOMES.values():
            if (pip := Path.home() / ".config/pip").is_dir():
                shutil.copytree(pip, scratch / home / ".config/pip")
        entry = next(
            line.split(":")
            for line in (tree / "etc/passwd").read_text().splitlines()
            if line.startswith(f"{ORDINARY}:")
        )
        owner = f"{entry[2]}:{entry[3]}"
        subprocess.run(["chown", "--recursive", owner, scratch / HOMES[ORDINARY]], check=True)
        environment = {
            "HOME": f"/{HOMES[user]}",
            "USER": user,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **passed,
        }
        here = f"/{HOMES[user]}/mgloop"
        inside = ["sh", "-c", f'cd {here} && exec "$@"', "sh"]
        return subprocess.run(
            [*NAMESPACE, "sh", "-c", ENTER, "sh", str(tree), name,
             "0:0" if user == "root" else owner,
             *(f"{key}={value}" for key, value in environment.items()),
             *inside, *command],
            stdin=subprocess.DEVNULL, check=False,
        ).returncode  # fmt: skip


def serve():
    """Run `make serve` until it has answered a request, and then send Ctrl-C."""
    began = time.monotonic()
    with subprocess.Popen(
        ["make", "serve", "ARGS=--port 0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a terminal sends Ctrl-C to a whole process group
    ) as process:
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(TO_LISTEN)
        said = []
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line)
            if line.startswith("Listening on "):
                url = line.removeprefix("Listening on ").strip()
            # The last line before the server waits for requests.
            if line.startswith("Event loop: "):
                with urllib.request.urlopen(url, timeout=TO_END) as response:
                    answer = json.load(response)
                print(f"{url} answers {answer} after {time.monotonic() - began:.0f} s", flush=True)
                os.killpg(process.pid, signal.SIGINT)
                signal.alarm(TO_END)
        process.wait()
        signal.alarm(0)
    # make itself ends by the signal too, as at a terminal.
    if "Event loop: mgloop.loop.Loop\n" not in said or "Stopped.\n" not in said:
        raise SystemExit(f"make serve failed (status {process.returncode})")
    if answer != {"message": "Hello, World!"} or any("Traceback" in line for line in said):
        raise SystemExit("make serve gave an unexpected answer or did not end properly")


def inside(pytest_args):
    """Run the commands on the fresh machine; return the exit status."""
    print(f"on a fresh machine, as {os.environ['USER']}:", flush=True)
    serve()
    began = time.monotonic()
    command = ["make", "test"] + ([f"PYTEST_ARGS={pytest_args}"] if pytest_args else [])
    print(shlex.join(command), flush=True)
    status = subprocess.run(command, check=False).returncode
    print(f"make test took {time.monotonic() - began:.0f} s", flush=True)
    return status


def main():
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--as", dest="who", choices=(ORDINARY, "root", "both"), default=ORDINARY)
    parser.add_argument("--pytest", default="", help="arguments for pytest")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options.pytest)
    # A time limit sends this signal: the temporary folder must be removed then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        machine = release()
        tree = make_tree(*machine, packages(), machine[0])
    except SkippedError as reason:
        print(f"make fresh is skipped: {reason}.")
        return 0
    passed = configure(tree)
    users = HOMES if options.who == "both" else [options.who]
    command = ("python3", "tools/fresh.py", "--inside", "--pytest", options.pytest)
    return max(run(tree, user, passed, copy_working_tree, *command) for user in users)


if __name__ == "__main__":
    sys.exit(main())
