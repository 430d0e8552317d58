# SPDX-License-Identifier: GPL-2.0-only
"""The options: how values are parsed, the precedence of their sources, and the error messages."""

import dataclasses
import pickle
import textwrap

import pytest

from mgloop.http import Config, ConfigError, sources


def load(given=None, environ=None, **rest):
    return sources.load({"app": "main:app", **(given or {})}, environ or {}, **rest)


def test_the_defaults_are_uvicorns_where_it_has_the_option():
    config = Config(app="main:app")
    assert (config.host, config.port, config.backlog) == ("127.0.0.1", 8000, 2048)
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (5.0, None)
    assert (config.ws_max_size, config.ws_max_queue) == (16 * 2**20, 32)
    assert config.proxy_headers
    assert config.access_log
    assert config.headers == ()


def test_it_is_frozen_and_goes_to_other_processes():
    config = Config(app="main:app", headers=[("X-A", "1")], bind=["a:1", "unix:/b"])
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.port = 1


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("port", "0", 0),
        ("port", 65535, 65535),
        ("limit_request_body", "10M", 10 << 20),
        ("limit_max_memory", "1GiB", 1 << 30),
        ("body_buffer", "64k", 64 << 10),
        ("uds_mode", "660", 0o660),
        ("uds_mode", 0o600, 0o600),
        ("timeout_head", 3, 3.0),
        ("timeout_head", None, 0),
        ("timeout_request", "30", 30.0),
        ("wsgi_threads", "0", 0),
        ("wsgi_stream_input", "yes", True),
        ("timeout_head", "0.5", 0.5),
        ("limit_request_line", None, 0),
        ("access_log", "no", False),
        ("log_level", 20, 20),
        ("log_level", "INFO", "info"),
        ("log_config", {"version": 1}, {"version": 1}),
        ("forwarded_allow_ips", ["10.0.0.1", "10.1.0.0/16"], "10.0.0.1,10.1.0.0/16"),
        ("access_log", "TRUE", True),
        ("bind", "unix:/run/a.sock", ("unix:/run/a.sock",)),
        ("bind", ["a:1", "b:2"], ("a:1", "b:2")),
        ("headers", "X-Frame-Options: DENY", (("X-Frame-Options", "DENY"),)),
        ("headers", [(b"a", b"b"), ("c", "d:e")], (("a", "b"), ("c", "d:e"))),
    ],
)
def test_values_are_read(name, value, expected):
    assert getattr(Config(app="main:app", **{name: value}), name) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": 65536}, "port: 65536 is greater than the maximum of 65535"),
        ({"port": -1}, "port: -1 is less than the minimum of 0"),
        ({"port": "http"}, "port: 'http' is not a valid integer"),
        ({"port": True}, "port: True is not a valid integer"),
        ({"workers": 0}, "workers: 0 is less than the minimum of 1"),
        ({"timeout_head": "soon"}, "timeout_head: 'soon' is not a valid number"),
        ({"timeout_head": "nan"}, "timeout_head: 'nan' is not a valid number"),
        ({"limit_request_body": "10X"}, "limit_request_body: '10X' is not a valid size"),
        ({"uds_mode": "888"}, "uds_mode: '888' is not a valid octal mode"),
        # A decimal number where an octal one is meant.
        ({"uds_mode": 660}, "uds_mode: 660 is not a valid file mode such as 0o660"),
        ({"backlog": 10**11}, "backlog: 100000000000 is greater than the maximum of 2147483647"),
        (
            {"limit_concurrency": 10**20},
            "limit_concurrency: 100000000000000000000 is greater than the maximum of",
        ),
        ({"limit_request_head": 10**20}, "limit_request_head: 100000000000000000000 is greater"),
        (
            {"body_buffer": "99999999999G"},
            "body_buffer: '99999999999G' is greater than the maximum of",
        ),
        (
            {"ssl_version": 10**20},
            "ssl_version: 100000000000000000000 is greater than the maximum of",
        ),
        ({"root_path": "/\udcff"}, "root_path: '/\\udcff' is not valid UTF-8"),
        (
            {"access_log": "perhaps"},
            "access_log: 'perhaps' is not a valid boolean: expected true or false",
        ),
        ({"interface": "rsgi"}, "interface: 'rsgi' is not one of auto, asgi3, asgi2, wsgi"),
        ({"host": None}, "host: a value is required"),
        ({"host": 7}, "host: 7 is not a valid string"),
        ({"headers": ["no colon"]}, "is not a header of the form Name:Value"),
        ({"headers": ["a b: c"]}, "is not a header with a valid name"),
        ({"headers": [("a", "b\r\nc: d")]}, "is not a header with a valid value"),
        ({"headers": [("a", "\u20ac")]}, "is not a header with a valid value"),
        ({"headers": [3]}, "is not a header"),
        ({"headers": ["Content-Length: 5"]}, "is a framing header"),
        ({"headers": ["transfer-encoding: chunked"]}, "is a framing header"),
        ({"headers": ["Connection: close"]}, "is a framing header"),
        ({"uds": "/a", "fd": 3}, "uds and fd are mutually exclusive"),
        ({"uds": "/a", "bind": "b:1"}, "bind and uds are mutually exclusive"),
        ({"workers": 2, "reload": True}, "reload and several workers are mutually exclusive"),
        ({"ssl_keyfile": "a.key"}, "ssl_keyfile requires ssl_certfile"),
        ({"ssl_certfile": "a", "ssl_cert_reqs": 2}, "ssl_cert_reqs requires ssl_ca_certs"),
        # A server that requires client certificates must not serve without TLS.
        ({"ssl_ca_certs": "a", "ssl_cert_reqs": 2}, "ssl_cert_reqs requires ssl_certfile"),
        ({"loop": "uvloop"}, "loop: 'uvloop' is not one of auto, mgloop, asyncio or pkg.mod:"),
        ({"app": None}, "no application given"),
        ({"wsgi_threads": -1}, "wsgi_threads: -1 is less than the minimum of 0"),
        ({"wsgi_threads": 4097}, "wsgi_threads: 4097 is greater than the maximum of 4096"),
        (
            {"wsgi_threads": 0, "wsgi_stream_input": True},
            "wsgi_stream_input and wsgi_threads=0 are mutually exclusive",
        ),
        (
            {"wsgi_threads": 0, "timeout_request": 5},
            "mutually exclusive: set timeout_worker_healthcheck",
        ),
        (
            {"interface": "asgi3", "wsgi_threads": 4, "timeout_request": 5},
            "'main:app' is an ASGI application: remove --wsgi-threads and --timeout-request (for",
        ),
        ({"app": print, "workers": 2}, "as an import string such as 'pkg.mod:app'"),
        ({"app": print, "reload": True}, "as an import string such as 'pkg.mod:app'"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(options, says):
    with pytest.raises(ConfigError) as caught:
        Config(**{"app": "main:app", **options})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_line_counts_most_and_the_file_least(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "a"\nlog-level = "debug"\n')
    config = load({"port": "3"}, {"MGLOOP_SERVE_PORT": "2", "MGLOOP_SERVE_HOST": "b"}, file=file)
    assert (config.port, config.host, config.log_level) == (3, "b", "debug")


def test_the_environment_names_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('app = "other:app"\nbind = ["a:1", "b:2"]\n[not_an_option]\n')
    with pytest.raises(ConfigError, match="unknown option 'not_an_option'"):
        sources.load({}, {"MGLOOP_SERVE_CONFIG": str(file)})
    file.write_text('app = "other:app"\nbind = ["a:1", "b:2"]\nheaders = [["X", "1"], "Y: 2"]\n')
    config = sources.load({}, {"MGLOOP_SERVE_CONFIG": str(file)})
    assert config.app == "other:app"
    assert config.bind == ("a:1", "b:2")
    assert config.headers == (("X", "1"), ("Y", "2"))


def test_a_pyproject_has_a_table_of_its_own(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "x"\n[tool.mgloop.serve]\nport = 7\n')
    assert load(file=str(file)).port == 7
    file.write_text("[tool.mgloop]\nserve = 3\n")
    with pytest.raises(ConfigError, match="serve is not a table"):
        load(file=str(file))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = ", "is not valid TOML"),
        ("prot = 1", "unknown option 'prot'; did you mean 'port'?"),
        ('port = "x"', "port in {file}: 'x' is not a valid integer"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, says):
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file=str(file))
    assert says.format(file=file) in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        load(file=str(tmp_path / "none.toml"))


def test_variables_of_many_values():
    config = load(
        environ={
            "MGLOOP_SERVE_BIND": "a:1, unix:/b",
            "MGLOOP_SERVE_HEADERS": "Accept: a, b\nX: 1",
            "MGLOOP_SERVE_RELOAD": "true",
        }
    )
    assert config.bind == ("a:1", "unix:/b")
    assert config.headers == (("Accept", "a, b"), ("X", "1"))
    assert config.reload


def test_common_variables_count_less_than_our_own():
    environ = {"WEB_CONCURRENCY": "3", "FORWARDED_ALLOW_IPS": "10.0.0.1"}
    config = load(environ=environ)
    assert (config.workers, config.forwarded_allow_ips) == (3, "10.0.0.1")
    assert load(environ=environ | {"MGLOOP_SERVE_WORKERS": "2"}).workers == 2
    # Empty variables are ignored, except that an empty list of proxies trusts no proxy.
    config = load(environ={"WEB_CONCURRENCY": "", "FORWARDED_ALLOW_IPS": ""})
    assert (config.workers, config.forwarded_allow_ips) == (1, "")


def test_a_platforms_number_of_workers_is_no_obstacle_to_reload():
    environ = {"WEB_CONCURRENCY": "3"}
    assert load({"reload": True}, environ).workers == 1
    assert load({}, environ | {"MGLOOP_SERVE_RELOAD": "1"}).workers == 1
    with pytest.raises(ConfigError, match="reload and several workers are mutually exclusive"):
        load({"reload": True, "workers": "2"}, environ)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"MGLOOP_SERVE_PORTS": "1"}, "MGLOOP_SERVE_PORTS: unknown option 'ports'"),
        ({"MGLOOP_SERVE_PORT": "x"}, "MGLOOP_SERVE_PORT: 'x' is not a valid integer"),
        ({"WEB_CONCURRENCY": "many"}, "WEB_CONCURRENCY: 'many' is not a valid integer"),
    ],
)
def test_mistakes_in_the_environment_are_named(environ, says):
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert says in str(caught.value)


def test_mistakes_on_the_command_line_are_named():
    with pytest.raises(ConfigError, match="--header: 'x' is not a header"):
        load({"headers": ["x"]})


def test_an_env_file_adds_to_the_environment_and_replaces_nothing(tmp_path):
    file = tmp_path / ".env"
    file.write_text(
        textwrap.dedent("""
            # a comment
            PLAIN=some words # and a comment
            export QUOTED="a # b"
            SINGLE = 'c'
            LINES="a\\nb \\"c\\" \\\\d" # and a comment
            APOSTROPHE='it\\'s \\n'
            EMPTY=
            KEY="-----BEGIN
            a=b # c
            END" # and a comment
            KEPT=new
            MGLOOP_SERVE_PORT=99
        """),
        encoding="utf-8-sig",  # some editors write this encoding
    )
    added = {}
    config = load({"env_file": str(file)}, {"KEPT": "old"}, update_environ=added.update)
    assert config.port == 99
    assert added == {
        "PLAIN": "some words",
        "QUOTED": "a # b",
        "SINGLE": "c",
        "LINES": 'a\nb "c" \\d',
        "APOSTROPHE": "it's \\n",
        "EMPTY": "",
        "KEY": "-----BEGIN\na=b # c\nEND",
        "MGLOOP_SERVE_PORT": "99",
    }


def test_a_bad_env_file_is_one_line(tmp_path):
    file = tmp_path / ".env"
    for line in ("what is secret", 'B= "secret', "B='secret' secret"):
        file.write_text(f"A='1\n2'\n{line}\nC=1\n")
        with pytest.raises(ConfigError, match=r"line 3: expected NAME=value$"):
            load({"env_file": str(file)})
    with pytest.raises(ConfigError, match="cannot read the environment file"):
        load({"env_file": str(tmp_path / "none")})
