# SPDX-License-Identifier: GPL-2.0-only
"""A real Prometheus that scrapes a test's program each second, and the example's dashboard."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

available = shutil.which("prometheus") is not None

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "mgloop.json"

CONFIGURATION = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: example
    static_configs:
      - targets: [{target}]
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@contextlib.contextmanager
def prometheus(target, folder):
    """Run a Prometheus that scrapes `target` (host:port); yield its Api."""
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(target=target))
    port = free_port()
    with subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml",
         f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield Api(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


class Api:
    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        """Return the response's `data`; ValueError if the request failed."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            answer = json.load(response)
        if answer["status"] != "success":
            raise ValueError(answer)
        return answer["data"]

    def query(self, expression):
        """Return (labels, current value) of each series."""
        result = self.get("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def wait_for(self, expression, patience):
        """Wait until the query has a result; return it."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if result := self.query(expression):
                    return result
            time.sleep(0.2)
        raise TimeoutError(f"{expression} has no result after {patience} s")


def panels(interval="5s"):
    """Yield (title, unit, [(expression, legend)]) of the dashboard, with variables filled in."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        targets = [
            (_filled_in(target["expr"], interval), target["legendFormat"])
            for target in panel["targets"]
        ]
        yield panel["title"], panel["fieldConfig"]["defaults"]["unit"], targets


def _filled_in(expression, interval):
    every = re.sub(r"\$(job|instance)\b", ".*", expression)
    return every.replace("$__rate_interval", interval)
