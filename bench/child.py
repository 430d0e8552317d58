# SPDX-License-Identifier: GPL-2.0-only
"""The process in which a loop is measured: ``child.py JSON``.

The parent runs this file as a script under ``python -P`` and *appends* the folder that holds
``bench`` to the path. ``import mgloop`` therefore finds the installed package (or an editable one,
whose finder comes first) and never the unbuilt one in the source tree. The child reports to its
parent with lines of JSON on stdout.
"""

import contextlib
import importlib
import importlib.metadata
import json
import sys
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))


def tell(**fields):
    """Send one line of JSON to the parent."""
    print(json.dumps(fields), flush=True)


def resolve(spec):
    """Return the callable of ``module:factory`` or ``module:wrapper(module:factory)``."""
    outer, wraps, inner = spec.partition("(")
    module, _, factory = outer.partition(":")
    found = importlib.import_module(module)
    for part in factory.split("."):
        found = getattr(found, part)
    return found(resolve(inner.removesuffix(")"))) if wraps else found


def version_of(spec):
    """Return the version of the package that *spec* names, and of the package that it wraps."""
    outer, wraps, inner = spec.partition("(")
    module = outer.partition(":")[0].partition(".")[0]
    version = getattr(sys.modules[module], "__version__", None)
    if version is None:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(module)
    if module == "asyncio":
        version = sys.version.split()[0]
    version = str(version or "unknown")
    if not wraps:
        return version
    inner = inner.removesuffix(")")
    return f"{version} over {inner.partition(':')[0]} {version_of(inner)}"


def probe(config):
    """Report the loop's version, or the reason why the loop cannot be used."""
    try:
        loop = resolve(config["loop"])()
        loop.run_until_complete(_nothing())
        loop.close()
    except BaseException as exc:
        tell(error=f"{type(exc).__name__}: {exc}")
        return
    tell(version=version_of(config["loop"]))


async def _nothing():
    return None


def main():
    config = json.loads(sys.argv[1])
    role = config["role"]
    if role == "probe":
        probe(config)
        return
    factory = resolve(config["loop"]) if config.get("loop") else None
    module = importlib.import_module(f"bench.{role}")
    try:
        module.main(config, factory, tell)
    except NotImplementedError as exc:
        traceback.print_exc()
        tell(unsupported=f"not implemented by this loop{f': {exc}' if str(exc) else ''}")
    except ImportError as exc:
        tell(unsupported=f"not installed: {exc.name or exc}")
    except OSError as exc:
        tell(error=f"{type(exc).__name__}: {exc}")
        sys.exit(1)


if __name__ == "__main__":
    main()
