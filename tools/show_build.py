# SPDX-License-Identifier: GPL-2.0-only
"""Run a build and show only ninja's progress.

    python tools/show_build.py pip install --verbose ...

While pip builds a package, it prints either nothing or everything. This script shows only ninja's
steps: on a terminal they replace each other on one line, elsewhere each step is a line. If the
build fails, the script prints all of its output. The exit status is the command's.
"""

import re
import subprocess
import sys

STEP = re.compile(r"\s*(\[\d+/\d+\]) (.*)")
WIDTH = 78


def main(command):
    """Run `command`, show its steps, and return its exit status."""
    terminal = sys.stdout.isatty()
    output = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout:
            output.append(line)
            if step := STEP.match(line):
                text = f"  {step[1]} {step[2]}"[:WIDTH]
                print(f"\r{text:{WIDTH}}" if terminal else text, end="" if terminal else "\n")
                sys.stdout.flush()
    if terminal:
        print(f"\r{'':{WIDTH}}\r", end="", flush=True)
    if process.returncode:
        sys.stderr.writelines(output)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
