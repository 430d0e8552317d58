# SPDX-License-Identifier: GPL-2.0-only
"""Other people's programs and test suites, run over the loop under test.

``python -m tests.ecosystem aiohttp uvicorn`` runs the projects' own suites twice in one
environment, over the standard library's loop and over the loop under test, and compares them test
by test (``upstream``). The other targets are small real programs (``programs/``) over real servers
(``servers``). Everything is installed by version and hash into virtual environments of its own
(``environments``), below ``build/ecosystem`` by default.
"""
