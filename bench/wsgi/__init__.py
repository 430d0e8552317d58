# SPDX-License-Identifier: GPL-2.0-only
"""Comparison of WSGI servers: `mgloop serve`, gunicorn's gthread worker, Granian and others.

``servers`` lists the servers and finds the installed ones, ``serve`` starts one of them by its own
command line, and ``apps``, ``flask_app`` and ``django_app`` are the applications that all of them
serve. ``crowd`` is the crowd of slow clients beside which the fast ones are measured. The workloads
are in :mod:`bench.registry`.
"""
