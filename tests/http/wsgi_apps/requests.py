# SPDX-License-Identifier: GPL-2.0-only
"""Applications that answer with parts of their environ and of the request's body."""

import json
import os
from wsgiref.util import request_uri

from wsgi_apps.common import NOTES, PLAIN, answer, note, print_at_once, unchecked

# --- the environ ---------------------------------------------------------------------------------


def environ(environ, start_response):
    """Answer with all values that are str."""
    assert type(environ) is dict
    found = {name: value for name, value in environ.items() if type(value) is str}
    assert all(max(value, default=" ") <= "\xff" for value in found.values())
    return answer(start_response, json.dumps(found))


@unchecked  # the validator replaces the streams, and warns of uncommon methods
def typed(environ, start_response):
    assert type(environ) is dict
    found = {
        name: value if isinstance(value, (bool, tuple)) else type(value).__name__
        for name, value in environ.items()
    }
    return answer(start_response, json.dumps(found))


def process(environ, start_response):
    named = {name: environ.get(name) for name in ("PATH", "HOME", "MARK_OF_THE_PROCESS")}
    return answer(start_response, json.dumps(named))


def changed(environ, start_response):
    """Change all that can be changed; answer with the names that the request before left."""
    left = [name for name in environ if name.startswith("left.")]
    environ["left.behind"] = environ["wsgi.url_scheme"] = "gopher"
    environ.pop("SERVER_NAME")
    return answer(start_response, json.dumps(left))


def errors(environ, start_response):
    stream = environ["wsgi.errors"]
    stream.write("written by write()\n")
    stream.writelines(["written by ", "writelines()\n"])
    stream.flush()
    print("written by print(), 20 \u20ac", file=stream)
    return answer(start_response)


def uri(environ, start_response):
    return answer(start_response, request_uri(environ))


def pep_3333(environ, start_response):
    return answer(start_response, pep_3333_url(environ))


def pep_3333_url(environ):
    """The algorithm of PEP 3333, section "URL Reconstruction"."""
    from urllib.parse import quote

    url = environ["wsgi.url_scheme"] + "://"
    if environ.get("HTTP_HOST"):
        url += environ["HTTP_HOST"]
    else:
        url += environ["SERVER_NAME"]
        if environ["wsgi.url_scheme"] == "https":
            if environ["SERVER_PORT"] != "443":
                url += ":" + environ["SERVER_PORT"]
        elif environ["SERVER_PORT"] != "80":
            url += ":" + environ["SERVER_PORT"]
    url += quote(environ.get("SCRIPT_NAME", ""))
    url += quote(environ.get("PATH_INFO", ""))
    if environ.get("QUERY_STRING"):
        url += "?" + environ["QUERY_STRING"]
    return url


# --- the body ------------------------------------------------------------------------------------


def echo(environ, start_response):
    pid = [("X-Pid", str(os.getpid()))]
    return answer(start_response, environ["wsgi.input"].read(-1), headers=pid)


@unchecked  # the validator insists on an argument of read()
def read_all(environ, start_response):
    return answer(start_response, environ["wsgi.input"].read())


def measured(environ, start_response):
    """Answer with the size of the body, and with its announced size."""
    size = len(environ["wsgi.input"].read(-1))
    return answer(start_response, f"{size} {environ.get('CONTENT_LENGTH')}")


def pieces(environ, start_response):
    stream, found = environ["wsgi.input"], []
    size = int(environ["QUERY_STRING"])
    while piece := stream.read(size):
        assert len(piece) <= size
        found.append(piece)
    assert stream.read(size) == b"" == stream.read(1) == stream.readline()
    assert stream.readlines() == [] == list(stream)
    return answer(start_response, b"|".join(found))


def lines(environ, start_response):
    return answer(start_response, b"|".join(environ["wsgi.input"]))


def readlines(environ, start_response):
    return answer(start_response, b"|".join(environ["wsgi.input"].readlines()))


def readline(environ, start_response):
    stream = environ["wsgi.input"]
    sizes = json.loads(f"[{environ['QUERY_STRING']}]")
    return answer(start_response, b"|".join([stream.readline(size) for size in sizes]))


def mixed(environ, start_response):
    stream = environ["wsgi.input"]
    found = [stream.readline(), stream.read(2), stream.readline(2), next(iter(stream))]
    return answer(start_response, b"|".join([*found, *stream.readlines(1), stream.read(100)]))


def nothing(environ, start_response):
    return answer(start_response, "nothing read")


def half(environ, start_response):
    return answer(start_response, environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]) // 2))


def by_write(environ, start_response):
    """Read after the response has begun."""
    write = start_response("200 OK", PLAIN)
    for line in environ["wsgi.input"]:
        write(line)
    return [b"."]


def lazily(environ, start_response):
    start_response("200 OK", PLAIN)
    return (line for line in environ["wsgi.input"])


def begun(environ, start_response):
    """Note that the application runs, and then the size of the body."""
    name = environ["QUERY_STRING"]
    note(name, "begun")
    try:
        size = len(environ["wsgi.input"].read(-1))
    except OSError as exc:
        note(f"{name}-read", type(exc).__name__)
        print_at_once(f"cannot read: {type(exc).__name__}")
        raise
    note(f"{name}-read", size)
    return answer(start_response, str(size))


def first_line(environ, start_response):
    return answer(start_response, environ["wsgi.input"].readline())


def has(environ, start_response):
    return answer(start_response, NOTES.get(environ["QUERY_STRING"], "no such note"))
