-- SPDX-License-Identifier: GPL-2.0-only
-- Makes wrk end with one line of JSON; `--latency` alone knows neither p95 nor p99.9.
-- An argument after `--` is a JSON body to POST, or `@` and the name of a file that holds it.

function init(args)
  if args[1] then
    wrk.method = "POST"
    wrk.body = args[1]
    if args[1]:sub(1, 1) == "@" then
      local file = assert(io.open(args[1]:sub(2), "rb"))
      wrk.body = file:read("*a")
      file:close()
    end
    wrk.headers["Content-Type"] = "application/json"
  end
end

function done(summary, latency, requests)
  local at = {0.1, 1, 5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 95, 98, 99, 99.5, 99.9, 99.99}
  local parts = {}
  for i, p in ipairs(at) do
    parts[i] = string.format('"%g": %.1f', p, latency:percentile(p))
  end
  local e = summary.errors
  io.write(string.format(
    '\nBENCH {"ops": %d, "seconds": %.6f, "bytes": %d, "errors": {"connect": %d, "read": %d, '
    .. '"write": %d, "status": %d, "timeout": %d}, "latency_mean_us": %.1f, "latency_min_us": %.1f, '
    .. '"latency_max_us": %.1f, "latency_us": {%s}}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, e.connect, e.read, e.write, e.status,
    e.timeout, latency.mean, latency.min, latency.max, table.concat(parts, ", ")))
end
