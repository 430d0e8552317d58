# SPDX-License-Identifier: GPL-2.0-only
"""The sources of the options: a TOML file, the environment and the command line.

Each is read into a dictionary by the names of Config's fields, and a later one overrides an earlier
one. The module is Python because it runs once per process.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .config import OPTIONS, Config, convert, flag_of, guess
from .env_file import read_env_file
from .errors import ConfigError

PREFIX = "MGLOOP_SERVE_"

# Environment variables that hosting platforms set for any server, and the options they set here.
_COMMON_VARIABLES = {"WEB_CONCURRENCY": "workers", "FORWARDED_ALLOW_IPS": "forwarded_allow_ips"}


def load(
    given: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    file: str | None = None,
    update_environ: Callable[[Mapping[str, str]], None] | None = None,
) -> Config:
    """Return the configuration from a TOML file, the environment and the command line.

    Later sources in this order override earlier ones. given: values from the command line, by
    option name. file: the TOML file; None selects the one that MGLOOP_SERVE_CONFIG names.
    update_environ: called with the variables that an env_file adds. Raises ConfigError.
    """
    environ = dict(environ)
    values: dict[str, object] = {}

    file = file or environ.get(f"{PREFIX}CONFIG")
    if file:
        values.update(from_toml(file))
    env_file = given.get("env_file", environ.get(f"{PREFIX}ENV_FILE", values.get("env_file")))
    if env_file is not None:
        added = {
            name: value
            for name, value in read_env_file(str(env_file)).items()
            if name not in environ
        }
        environ.update(added)
        if update_environ is not None:
            update_environ(added)
    platform, chosen = from_platform(environ), from_environ(environ)
    chosen.update({name: convert(name, value, flag_of(name)) for name, value in given.items()})
    if (values | chosen).get("reload"):
        platform.pop("workers", None)  # $WEB_CONCURRENCY is meant for production
    return Config(**values | platform | chosen)  # type: ignore[arg-type]


def from_toml(file: str) -> dict[str, object]:
    """Return the options in a TOML file; in a pyproject.toml, those of [tool.mgloop.serve].

    Raises ConfigError if the file cannot be read or has an unknown or invalid option.
    """
    path = Path(file)
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read the configuration file {file}: {exc.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file} is not valid TOML: {exc}") from None
    if path.name == "pyproject.toml":
        for key in ("tool", "mgloop", "serve"):
            table = table.get(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{file}: {key} is not a table")
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in OPTIONS:
            raise ConfigError(f"{file}: unknown option {key!r}{guess(name)}")
        values[name] = convert(name, value, f"{key} in {file}")
    return values


def from_platform(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options in environment variables that other servers use as well."""
    values = {}
    for variable, name in _COMMON_VARIABLES.items():
        # An empty FORWARDED_ALLOW_IPS is significant: it means that no proxy is trusted.
        if environ.get(variable) or (variable in environ and name == "forwarded_allow_ips"):
            values[name] = convert(name, environ[variable], variable)
    return values


def from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options in environment variables such as MGLOOP_SERVE_PORT."""
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == f"{PREFIX}CONFIG":
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in OPTIONS:
            raise ConfigError(f"{variable}: unknown option {name!r}{guess(name)}")
        option = OPTIONS[name]
        parts: object = text
        if option.many:
            parts = [part.strip() for part in text.split(option.separator) if part.strip()]
        values[name] = convert(name, parts, variable)
    return values
