# SPDX-License-Identifier: GPL-2.0-only
"""Functions with which a program that a test runs forks, and checks that its child succeeds."""

import os
import signal
import sys
import traceback
import warnings

#: The exit status of a child that has run its function to the end.
SUCCESS = 42


def fork(function, *args):
    """Call `function` in a forked child, which has 10 seconds; return the child's process ID."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the process may have other threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(10)
            function(*args)
            code = SUCCESS
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def wait_for(pid):
    """Wait until the child has ended, and check that it has succeeded."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == SUCCESS, code


def in_child(function, *args):
    """Call `function` in a forked child, and wait for its success."""
    wait_for(fork(function, *args))
