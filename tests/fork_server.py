# SPDX-License-Identifier: GPL-2.0-only
"""Run programs in forks of an interpreter that has already imported asyncio.

    python tests/fork_server.py DESCRIPTOR

support.run_python() starts this once per test process and sends it programs over a UNIX socket. A
fork takes milliseconds, a fresh interpreter with asyncio a tenth of a second. The program of a fork
is the module ``__main__`` and ends with the interpreter, as after ``python -c``. The server imports
only what run_python() promises to programs, and not mgloop.
"""

import asyncio  # noqa: F401
import gc
import os
import socket
import sys

import loops  # noqa: F401


def next_program():
    """Return the source of the next program, in a fork with its working directory and files."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        size, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
        if not size:
            os._exit(0)  # the test process has ended
        message = b""
        while len(message) < int.from_bytes(size, "big"):
            message += connection.recv(1 << 20)
        pid = os.fork()
        if pid == 0:
            connection.close()
            for target, descriptor in enumerate(descriptors):
                os.dup2(descriptor, target)
                os.close(descriptor)
            folder, _, source = message.decode().partition("\0")
            os.chdir(folder)
            sys.argv = ["-c"]
            sys.path[0] = ""
            return source
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(8, "big"))
        _, status = os.waitpid(pid, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))


gc.freeze()  # collections of the programs need not traverse the modules
# Tests that wait for their children must not find this process among them.
if os.fork():
    os._exit(0)
program = compile(next_program(), "<string>", "exec")
del __file__, next_program
exec(program)
