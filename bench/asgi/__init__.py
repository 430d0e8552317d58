# SPDX-License-Identifier: GPL-2.0-only
"""Comparison of ASGI servers: `mgloop serve`, uvicorn, Granian, Hypercorn.

``servers`` lists the servers and finds the installed ones, ``serve`` starts one of them by its own
command line, and ``apps`` is the application that all of them serve. FastAPI's and BlackSheep's
applications are those of the seeds. The workloads are in :mod:`bench.registry`.
"""
