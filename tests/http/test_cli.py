# SPDX-License-Identifier: GPL-2.0-only
"""The command `mgloop`: its error messages, how it finds the application, and its logs."""

import json
import logging
import os
import pydoc
import re
import socket
import sys
import types
from pathlib import Path

import certificates
import pytest
import support
from commands import APPLICATION, Command, complaints, environment, fails, get, serve, write_app

import mgloop
from mgloop.http import Config, cli, importing, logs, uvicorn_logging

ROOT = Path(__file__).resolve().parents[2]


def python(code, cwd):
    return support.finished(
        [sys.executable, "-c", code], cwd=cwd, env=environment(), check=True
    ).stdout


def test_importing_mgloop_does_not_import_the_server(tmp_path):
    code = "import sys, mgloop; print([m for m in sys.modules if m.startswith('mgloop.http')])"
    assert python(code, tmp_path) == "[]\n"


def test_serve_is_found_when_it_is_asked_for():
    assert mgloop.serve is mgloop.http.serve
    with pytest.raises(AttributeError, match="no attribute 'surf'"):
        _ = mgloop.surf


def test_help_has_all_that_is_public():
    text = pydoc.plain(pydoc.render_doc(mgloop))
    for name in mgloop.__all__:
        assert re.search(rf"^    (class )?{name}\b", text, re.M), name


def test_the_document_has_the_options_of_the_parser():
    text = (ROOT / "docs" / "serve.md").read_text()
    _, _, rest = text.partition("<!-- options: begin -->\n")
    found, _, _ = rest.partition("<!-- options: end -->")
    assert found.strip() == cli.reference().strip(), (
        "docs/serve.md is not what mgloop.http.cli.reference() gives: put its output there"
    )


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--version"]])
def test_version(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"mgloop {mgloop.__version__}\n"


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    assert all(cli.flag_of(name) in text for name in cli.OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["main:app", "--prot=3"], "unrecognized arguments: --prot=3; did you mean --port?"),
        (["main:app", "--worker", "4"], "did you mean --workers?"),
        (["main:app", "--no-acces-log"], "did you mean --no-access-log?"),
        (["main:app", "--xyzzy"], "unrecognized arguments: --xyzzy (see"),
        (["main:app", "--port"], "argument --port: expected one argument"),
    ],
)
def test_an_unknown_option_is_one_line_and_status_2(monkeypatch, capsys, arguments, says):
    monkeypatch.setattr(os, "environ", environment())
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", *arguments])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mgloop serve: ")
    assert says in line


#: Arguments after `mgloop serve`, and a part of the message.
BAD_VALUES = [
    (["main:app", "--port", "http"], "--port: 'http' is not a valid integer"),
    (["main:app", "--lifespan", "maybe"], "--lifespan: 'maybe' is not one of auto, on, off"),
    (["main:app", "--header", "x"], "--header: 'x' is not a header of the form Name:Value"),
    (["main:app", "--uds", "a", "--fd", "3"], "uds and fd are mutually exclusive"),
    (["main:app", "--bind", "a:b"], "--bind: 'a:b' is not HOST:PORT or unix:PATH"),
    (["main:app", "--log-config", "no.json"], "cannot read the logging configuration no.json"),
    (["main:app", "--config", "none.toml"], "cannot read the configuration file none.toml"),
    (["main:app", "--env-file", "none"], "cannot read the environment file none"),
    ([], "no application given"),
    (
        ["main:app", "--wsgi-threads", "4", "--port", "0"],
        "'main:app' is an ASGI application: remove --wsgi-threads (for WSGI applications only)",
    ),
    (
        ["main:app", "--timeout-request", "4", "--check"],
        "'main:app' is an ASGI application: remove --timeout-request (for WSGI applications",
    ),
]


def test_a_bad_value_is_one_line_and_status_2(folder):
    found = complaints(*(arguments for arguments, _ in BAD_VALUES), cwd=folder)
    for (line, status), (_, says) in zip(found, BAD_VALUES, strict=True):
        assert says in line
        assert status == 2


def test_workers_refuse_an_option_of_the_other_interface(folder):
    options = ("--wsgi-threads", 4, "--workers", 2, "--port", 0)
    lines = fails("serve", "main:app", *options, cwd=folder, status=2)
    says = "'main:app' is an ASGI application: remove --wsgi-threads"
    assert sum(says in line for line in lines) == 1


#: The name of an application, and a part of the message.
UNKNOWN = {
    "string": "no attribute application or app found in",
    ":app": "import string ':app' must be in format",
    "main:": "must be in format",
    "mian:app": "could not import module 'mian' (from 'mian:app'); is --app-dir set correctly?",
    "main.api:app": "could not import module 'main.api'",
    "main:application": "attribute 'application' not found in",
    "main:GATE": "'main:GATE' is not callable",
    ".main:app": "must not start with a dot",
}


def test_an_unknown_application_is_one_line_and_status_1(folder):
    found = complaints(*([name, "--port", "0"] for name in UNKNOWN), cwd=folder)
    for (line, status), says in zip(found, UNKNOWN.values(), strict=True):
        assert says in line
        assert status == 1


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed'"),
        ("app = 1 / 0", "ZeroDivisionError: division by zero"),
        ("app = (", "SyntaxError"),
    ],
)
def test_an_error_of_the_application_has_its_traceback(tmp_path, source, error):
    write_app(tmp_path, source)
    lines = fails("serve", "main:app", "--port", 0, cwd=tmp_path, status=1)
    text = "\n".join(lines)
    assert error in text
    assert "main.py" in text
    assert source in text
    assert "importlib" not in text
    assert "mgloop/http" not in text
    assert "could not import module 'main': " in lines[-1]


def test_a_port_in_use_is_one_line_and_status_1(folder):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        (line,) = fails("serve", "main:app", "--port", port, cwd=folder, status=1)
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in line


@pytest.mark.parametrize("content", [None, "nothing of PEM"])
def test_a_bad_certificate_is_one_line_and_status_1(folder, content):
    if content:
        (folder / "cert.pem").write_text(content)
    (line,) = fails(
        "serve", "main:app", "--port", 0, "--ssl-certfile", "cert.pem", cwd=folder, status=1
    )
    assert "cannot load the certificate from cert.pem" in line


def test_check_imports_the_application_and_serves_nothing(folder):
    with Command("serve", "main:app", "--check", "--port", "1", cwd=folder) as command:
        assert command.end() == 0
        assert command.lines == ["main:app can be served with port=1."]
    (line,) = fails("serve", "main:ap", "--check", cwd=folder, status=1)
    assert "attribute 'ap' not found in" in line


@pytest.mark.parametrize("where", [["--bind", "a:b"], ["--bind", "unix:"], ["--uds", ""]])
def test_check_looks_at_the_addresses(folder, where):
    (line,) = fails("serve", "main:app", "--check", *where, cwd=folder, status=2)
    assert "is not HOST:PORT" in line or "requires a path" in line


def test_check_looks_at_what_else_has_to_be_there(folder):
    (folder / "prometheus_client.py").write_text("raise ImportError('not installed')")
    for options, says in [
        (["--metrics-port", "0"], "metrics_port requires prometheus_client"),
        (["--reload", "--reload-dir", "none"], "cannot watch"),
    ]:
        (line,) = fails("serve", "main:app", "--check", *options, cwd=folder, status=1)
        assert says in line


@pytest.mark.parametrize("names", [("app",), ("app", "application")])
def test_a_module_alone_names_its_application(tmp_path, names, monkeypatch):
    source = "".join(f"def {name}(environ, start_response): ...\n" for name in names)
    module = f"alone_{len(names)}"
    write_app(tmp_path, source, name=f"{module}.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert importing.import_from_string(module).__name__ == names[-1]


def test_the_application_is_found_in_app_dir(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    arguments = ["serve", "main:app", "--app-dir", folder, "--check"]
    with Command(*arguments, cwd=elsewhere) as command:
        assert command.end() == 0, command.output


OWN = """
import asyncio
import logging

class Formatter(logging.Formatter):
    def format(self, record):
        return f"own|{record.getMessage()}"

def loop():
    return asyncio.SelectorEventLoop()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_so_are_the_classes_of_the_log_and_the_loop(folder, workers):
    write_app(folder, OWN, "own.py")
    table = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"()": "own.Formatter"}},
        "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
        "root": {"handlers": ["own"], "level": "INFO"},
    }
    (folder / "log.json").write_text(json.dumps(table))
    arguments = ["--loop", "own:loop", "--log-config", "log.json", "--workers", workers]
    # As with the command mgloop, this folder is not on the path by default.
    with serve(folder, *arguments, options=["-P"]) as command:
        command.wait_for(r"^own\|mgloop .*\(loop: own:loop; ")
        get(command.url())
        assert command.stop() == 0


def test_app_dir_comes_before_what_is_on_the_path(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write_app(other, "raise ValueError('the wrong one')")
    env = {"PYTHONPATH": f"{other}:{folder}"}
    with Command("serve", "main:app", "--check", cwd=folder, env=env, options=["-P"]) as command:
        assert command.end() == 0, command.output


def test_the_environment_configures_and_the_env_file_reaches_the_application(folder):
    (folder / ".env").write_text("SECRET='of the file'\nMGLOOP_SERVE_PORT=0\n")
    env = {"MGLOOP_SERVE_APP": "main:app", "MGLOOP_SERVE_ENV_FILE": ".env"}
    with Command("serve", cwd=folder, env=env) as command:
        assert get(command.url(), "/env/SECRET") == "of the file"
        assert command.stop() == 0


@pytest.mark.parametrize("loop", ["mgloop", "asyncio", "asyncio:new_event_loop"])
def test_it_serves_on_the_loop_that_is_asked_for(folder, loop):
    with serve(folder, "--loop", loop) as command:
        command.wait_for(re.escape(f"(loop: {loop}; 1 worker)"))
        assert get(command.url()) == str(command.pid)
        assert command.stop() == 0


# --- the access log ------------------------------------------------------------------------------


def test_the_access_log_has_uvicorns_form(folder):
    with serve(folder) as command:
        url = command.url()
        get(url, "/a%20b?c=d")
        line = command.wait_for("HTTP/1.1")[0] and command.lines[-1]
        assert re.fullmatch(
            r'INFO:     127\.0\.0\.1:\d+ - "GET /a%20b\?c=d HTTP/1\.1" 200 OK', line
        )
        assert command.stop() == 0


def test_the_access_log_in_json(folder):
    with serve(folder, "--access-log-format", "json") as command:
        url = command.url()
        body = get(url, '/"?x')
        command.wait_for("^{")
        entry = json.loads(command.lines[-1])
        assert entry.pop("seconds") >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
        assert entry.pop("client").startswith("127.0.0.1:")
        assert entry == {
            "method": "GET",
            "path": "/%22?x",
            "http_version": "1.1",
            "status": 200,
            "bytes": len(body),
        }
        assert command.stop() == 0


FILTERED = (
    """
import logging

log = logging.getLogger("mgloop.http.access")
log.addFilter(lambda record: record.args[2] != "/health")
"""
    + APPLICATION
)
REFORMED = (
    """
import logging

log = logging.getLogger("mgloop.http.access")
log.handlers[0].setFormatter(logging.Formatter("own|%(name)s|%(message)s"))
"""
    + APPLICATION
)


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (FILTERED, r'INFO:     {} - "GET /x HTTP/1.1" 200 OK'),
        (REFORMED, "own|mgloop.http.access|{}"),
    ],
)
def test_the_application_can_configure_the_access_log(folder, source, form):
    write_app(folder, source)
    with serve(folder) as command:
        url = command.url()
        get(url, "/health")
        get(url, "/x")
        command.wait_for(re.escape(form).replace(re.escape("{}"), r"127\.0\.0\.1:\d+"))
        assert command.stop() == 0
    assert ("GET /health" in command.output) == (source is REFORMED)


@pytest.mark.parametrize(
    ("head", "logged"),
    [
        (b'GET /?a" HTTP/1.0\r\n\r\n', r' - "GET /\?a%22 HTTP/1\.0" 200 OK$'),
        (
            b'GET / HTTP/1.0\r\nX-Forwarded-For: a"b\t\x9b31m\r\n\r\n',
            r'^INFO:     a%22b%09%C2%9B31m:0 - "GET / HTTP/1\.0" 200 OK$',
        ),
    ],
    ids=["a query", "a proxy"],
)
def test_a_quote_ends_nothing_in_the_log(folder, head, logged):
    with serve(folder) as command:
        host, port = command.url().removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(head)
            while sock.recv(65536):
                pass
        command.wait_for(logged)
        assert command.stop() == 0


def test_a_time_in_the_log_is_not_rounded_up(monkeypatch):
    monkeypatch.setattr(logs.time, "time", lambda: 59.9996)
    scope = {"path": "/", "method": "GET"}
    line = json.loads(logs._json_line(scope, 200, 0, 0.0, False))
    assert line["time"] == "1970-01-01T00:00:59.999Z"


def serve_one_request(folder, *options, **settings):
    """Serve on an inherited socket, whose address is not read from the log; return the command."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        arguments = ["serve", "main:app", "--fd", sock.fileno(), *options]
        with Command(*arguments, cwd=folder, pass_fds=[sock.fileno()], **settings) as command:
            host, port = sock.getsockname()
            get(f"http://{host}:{port}")
            assert command.stop() == 0
    return command


@pytest.mark.parametrize("option", ["--no-access-log", "--log-level=warning"])
def test_no_access_log(folder, option):
    assert "HTTP/1.1" not in serve_one_request(folder, option).output


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_standard_stream_is_gone_without(folder, closed):
    closing = {"preexec_fn": lambda: os.close(closed)}
    output = serve_one_request(folder, "--workers", 2, **closing).output
    assert ("200 OK" in output, "Stopped" in output) == (closed != 1, closed != 2)


def test_colours_are_for_terminals_or_those_who_ask(folder):
    with serve(folder) as command:
        command.url()
        command.stop()
    assert "\x1b" not in command.output
    with serve(folder, "--use-colors") as command:
        get(command.url())
        command.stop()
    assert "\x1b[32mINFO\x1b[0m:     Serving" in command.output
    assert "\x1b[32m200 OK\x1b[0m" in command.output


@pytest.mark.parametrize(("value", "colors"), [(None, True), ("", True), ("1", False)])
def test_no_color_counts_if_it_is_not_empty(monkeypatch, value, colors):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    terminal = types.SimpleNamespace(isatty=lambda: True)
    assert logs._wants_colors(Config(app="main:app"), terminal) is colors


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"own": {"format": "own|%(name)s|%(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"handlers": ["own"], "level": "INFO"},
}

LOGGING_INI = """
[loggers]
keys=root
[handlers]
keys=own
[formatters]
keys=own
[logger_root]
level=INFO
handlers=own
[handler_own]
class=StreamHandler
formatter=own
[formatter_own]
format=own|%(name)s|%(message)s
"""

LOGGING_TOML = """
version = 1
disable_existing_loggers = false
formatters.own.format = "own|%(name)s|%(message)s"
handlers.own = {class = "logging.StreamHandler", formatter = "own"}
root = {handlers = ["own"], level = "INFO"}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("log.json", json.dumps(LOGGING)), ("log.ini", LOGGING_INI), ("log.toml", LOGGING_TOML)],
)
def test_logging_can_be_configured(folder, name, text):
    (folder / name).write_text(text)
    with serve(folder, "--log-config", name) as command:
        get(command.url(), "/x")
        command.wait_for(r'^own\|mgloop\.http\.access\|127.*"GET /x HTTP/1.1" 200$')
        assert command.stop() == 0
        assert "own|mgloop.http|Shutting down" in command.lines


UVICORNS = {
    "version": 1,
    "formatters": {
        "default": {
            "()": "uvicorn.logging.DefaultFormatter",
            "fmt": "D|%(levelprefix)s|%(name)s|%(message)s",
            "use_colors": None,
        },
        "access": {
            "()": "uvicorn.logging.AccessFormatter",
            "fmt": "A|%(levelprefix)s|%(name)s|%(client_addr)s|%(request_line)s|%(status_code)s",
        },
    },
    "handlers": {
        "default": {"class": "logging.StreamHandler", "formatter": "default"},
        "access": {"class": "logging.StreamHandler", "formatter": "access"},
    },
    "loggers": {
        "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"level": "INFO"},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
    },
}

UVICORNS_INI = """
[loggers]
keys=root,error,access
[handlers]
keys=default,access
[formatters]
keys=default,access
[logger_root]
handlers=
[logger_error]
qualname=uvicorn.error
level=INFO
handlers=default
propagate=0
[logger_access]
qualname=uvicorn.access
level=INFO
handlers=access
propagate=0
[handler_default]
class=StreamHandler
formatter=default
args=(sys.stderr,)
[handler_access]
class=StreamHandler
formatter=access
args=(sys.stdout,)
[formatter_default]
class=uvicorn.logging.DefaultFormatter
format=D|%(levelprefix)s|%(name)s|%(message)s
[formatter_access]
class=uvicorn.logging.AccessFormatter
format=A|%(levelprefix)s|%(name)s|%(client_addr)s|%(request_line)s|%(status_code)s
"""


@pytest.mark.parametrize(
    ("name", "text"), [("log.json", json.dumps(UVICORNS)), ("log.ini", UVICORNS_INI)]
)
def test_a_logging_configuration_of_uvicorn(folder, name, text):
    """It has the same effect as in uvicorn, which need not be installed."""
    (folder / name).write_text(text)
    with serve(folder, "--log-config", name) as command:
        get(command.url(), "/x?y")
        assert command.stop() == 0
    ours = [line for line in command.lines if line != "the application has shut down"]
    assert all(re.match(r"D\|INFO:    \|uvicorn\.error\||A\|", line) for line in ours), ours
    assert "D|INFO:    |uvicorn.error|Shutting down" in ours
    (access,) = [line for line in ours if line.startswith("A|")]
    pattern = r"A\|INFO:    \|uvicorn\.access\|127\.0\.0\.1:\d+\|GET /x\?y HTTP/1\.1\|200 OK"
    assert re.fullmatch(pattern, access)


@pytest.mark.parametrize("ours", [False, True], ids=["of uvicorn", "of mgloop"])
def test_the_least_that_is_logged_counts_more_than_the_configuration(folder, ours):
    access = {"mgloop.http.access": {"level": "INFO"}}
    configuration = {**LOGGING, "loggers": access} if ours else UVICORNS
    (folder / "log.json").write_text(json.dumps(configuration))
    options = ["--log-config", "log.json", "--log-level", "warning"]
    command = serve_one_request(folder, *options)
    assert command.lines == ["the application has shut down"]


@pytest.mark.parametrize("configured", [True, False])
def test_a_filter_of_uvicorns_access_logger_counts(folder, configured):
    """Applications add a filter to omit the lines of health checks."""
    (folder / "log.json").write_text(json.dumps(UVICORNS))
    write_app(
        folder,
        APPLICATION
        + """
import logging

logging.getLogger("uvicorn.access").addFilter(lambda record: record.args[2] != "/health")
""",
        "filtering.py",
    )
    options = ["--log-config", "log.json"] if configured else []
    with serve(folder, *options, app="filtering:app") as command:
        url = command.url()
        get(url, "/health")
        get(url, "/x")
        assert command.stop() == 0
    (line,) = [line for line in command.lines if " HTTP/1.1" in line or "|GET " in line]
    assert "GET /x " in line


def test_a_level_of_uvicorns_access_logger_counts(folder):
    source = "import logging\nlogging.getLogger('uvicorn.access').setLevel('WARNING')\n"
    write_app(folder, APPLICATION + source, "quiet.py")
    with serve(folder, app="quiet:app") as command:
        get(command.url(), "/x")
        assert command.stop() == 0
    assert "GET /x" not in command.output


def test_a_record_that_is_none_of_the_access_log_with_uvicorns_formatter():
    formatter = uvicorn_logging.AccessFormatter("%(levelprefix)s %(client_addr)s", use_colors=False)
    record = logging.LogRecord("a", logging.WARNING, __file__, 1, "%s it is", ("so",), None)
    assert formatter.format(record) == "WARNING:  so it is"


def test_uvicorns_formatters_have_colours():
    formatter = uvicorn_logging.AccessFormatter(
        "%(levelprefix)s %(request_line)s %(status_code)s", use_colors=True
    )
    args = ("a:1", "GET", "/", "1.1", 404)
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "%s %s %s %s %d", args, None)
    assert formatter.format(record) == (
        "\x1b[32mINFO\x1b[0m:     \x1b[1mGET / HTTP/1.1\x1b[0m \x1b[31m404 Not Found\x1b[0m"
    )
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "on %s", ("x",), None)
    record.color_message = "on [%s]"
    formatter = uvicorn_logging.DefaultFormatter("%(message)s", use_colors=True)
    assert formatter.format(record) == "on [x]"


@pytest.mark.parametrize("workers", [1, 2])
def test_all_lines_are_json(folder, workers):
    """Lines of loggers without a handler, and of other processes, are JSON as well."""
    write_app(
        folder,
        APPLICATION
        + """
import logging

logging.getLogger("asyncio").error("of %s", "asyncio")
logging.getLogger("mgloop.http").error("with a traceback", exc_info=ValueError("bad"))
""",
        "logging_app.py",
    )
    options = ["--log-format", "json", "--workers", workers]
    with serve(folder, *options, app="logging_app:app") as command:
        get(command.url(), "/x")
        assert command.stop() == 0
    lines = [json.loads(line) for line in command.lines if not line.startswith("the application")]
    records = [line for line in lines if "logger" in line]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert "of asyncio" in [r["message"] for r in records if r["logger"] == "asyncio"]
    (failed, *_) = [r for r in records if "exception" in r]
    assert failed["exception"].endswith("ValueError: bad")
    assert [line["path"] for line in lines if "status" in line] == ["/x"]


def test_an_application_that_cannot_be_imported_is_reported_as_json(folder):
    write_app(folder, "1 / 0", "broken.py")
    arguments = ("serve", "broken:app", "--log-format", "json", "--port", 0)
    lines = [json.loads(line) for line in fails(*arguments, cwd=folder, status=1)]
    assert "ZeroDivisionError" in lines[-1]["message"]
    assert "1 / 0" in lines[-1]["exception"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.json", "{"),
        ("log.json", '{"version": 7}'),
        ("log.toml", "version ="),
        ("log.ini", "nonsense"),
        ("log.json", '["version"]'),
    ],
)
def test_a_bad_logging_configuration_is_one_line(folder, name, text):
    (folder / name).write_text(text)
    (line,) = fails("serve", "main:app", "--log-config", name, cwd=folder, status=2)
    assert f"the logging configuration {name} is not valid" in line


# --- what speaks what ----------------------------------------------------------------------------


async def asgi3(scope, receive, send):
    pass


def asgi2(scope):
    async def instance(receive, send):
        scope["log"].append((receive, send))

    return instance


class Asgi2:
    def __init__(self, scope):
        pass

    async def __call__(self, receive, send):
        pass


class Asgi3:
    async def __call__(self, scope, receive, send):
        pass


def wsgi(environ, start_response):
    pass


@pytest.mark.parametrize(
    ("app", "interface"),
    [
        (asgi3, "asgi3"),
        (Asgi3(), "asgi3"),
        (lambda *args: None, "asgi3"),
        (asgi2, "asgi2"),
        (Asgi2, "asgi2"),
        (wsgi, "wsgi"),
    ],
)
def test_the_interface_is_recognised(app, interface):
    assert importing.interface_of(app) == interface


def test_a_callable_with_other_parameters_is_refused():
    with pytest.raises(mgloop.http.StartError, match="neither an ASGI nor a WSGI"):
        importing.interface_of(lambda a, b, c, d: None)


def test_asgi2_is_called_with_the_scope_first(loop, run):
    app = importing.load(Config(app=asgi2))
    log = []
    run(app({"log": log}, "receive", "send"))
    assert log == [("receive", "send")]


def test_a_factory_is_called(loop, run):
    made = importing.load(Config(app=lambda: asgi3, factory=True))
    assert made is asgi3


def test_a_factory_is_recognised(caplog):
    def create_app():
        return asgi3

    assert importing.load(Config(app=create_app)) is asgi3
    assert "ASGI app factory detected" in caplog.text


def test_a_factory_that_raises_is_the_applications_error(tmp_path):
    write_app(tmp_path, "def make():\n    raise KeyError('DATABASE_URL')")
    lines = fails("serve", "main:make", "--factory", cwd=tmp_path, status=1)
    assert "KeyError: 'DATABASE_URL'" in lines
    assert "error loading ASGI app factory 'main:make': KeyError: 'DATABASE_URL'" in lines[-1]


def test_certificates_are_checked_by_check(folder, tmp_path):
    if not certificates.available:
        pytest.skip(certificates.SKIPPED)
    leaf = certificates.authority().issue_cert("localhost")
    other = certificates.authority().issue_cert("localhost")
    (folder / "cert.pem").write_bytes(leaf.cert_chain_pems[0].bytes())
    (folder / "key.pem").write_bytes(other.private_key_pem.bytes())
    arguments = ["--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem", "--check"]
    (line,) = fails("serve", "main:app", *arguments, cwd=folder, status=1)
    assert "mismatched key" in line
