# SPDX-License-Identifier: GPL-2.0-only
"""ASGI servers against each other: `mgloop serve`, uvicorn, Granian, Hypercorn.

``servers`` says which there are and which are installed, ``serve`` starts one of them by its own
command line, ``apps`` is the application that they all serve; FastAPI's and BlackSheep's are those
of the seeds. The workloads are in :mod:`bench.registry` with the others.
"""
