# SPDX-License-Identifier: GPL-2.0-only
#
# make serve        build mgloop and run examples/aiohttp_hello.py on http://127.0.0.1:8080/
# make serve-asgi   build mgloop and serve examples/asgi_hello.py on the same address with `mgloop serve`
# make test         build mgloop and run its tests             (PYTEST_ARGS="-k timers" is passed on)
# make check        run lint, types and the most important tests, while you work on a change
# make lint types   check the style; check static types and stubs   (make format fixes the style)
# make asan         run the tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make tsan         run the tests of several loops under ThreadSanitizer   (PYTHON: built for it, without the GIL)
# make debug        run the tests under the interpreter's memory checks and development mode
# make fuzz         run the tests that use random data 2,000 times each, instead of 30 to 100 times
# make fresh        run `make serve` and `make test` on a minimal Debian   (root; ARGS="--as both" is passed on)
# make conformance  run CPython's own asyncio suites over mgloop   (ARGS=... is passed on)
# make ecosystem    run other projects' suites and programs over mgloop
# make threads      make a million calls from 8 threads into 8 loops, and count them
# make serve-soak   run `mgloop serve` under attacks and load for half an hour
# make tls          run the tests of TLS, and CPython's, over the engine that uses the ssl module
# make faults       run programs whose system calls fail, over asyncio's loop and over mgloop
# make nomem        run programs whose allocations fail, over asyncio's loop and over mgloop
# make bench        compare mgloop with the other loops that are installed
# make bench-compare BASE=<revision>   check whether a core workload became slower since that revision
# make sdist        build the source distribution in dist/
# make wheels       build it, and wheels for each Python here, glibc and musl, x86_64 and aarch64
# make try-wheel WHEEL=dist/...   try a wheel on a Debian without a compiler   (root; ARGS="--release forky")
# make pictures     draw the pictures of docs/observing.md from real runs   (needs prometheus and wrk)
# make docs         build the documentation as a site, build/site/index.html
# make clean        delete everything that these targets made
# make help         print this list
#
# Each target creates a virtual environment, .venv, and installs the packages that it needs there.
# PYTHON chooses the interpreter. An interpreter other than python3 gets an environment of its own.

PYTHON ?= python3
VENV ?= .venv$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
PYTEST_ARGS ?=
ARGS ?=

# Without cached bytecode, each process that the tests start would compile every module that it imports, and each pytest
# process would rewrite the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
BUILD := build/$(notdir $(VENV))
MESON_ARGS ?=
# The tools of the environment come first: meson, ninja and cython for the build, pycodestyle for cython-lint.
RUN = PATH="$(abspath $(BIN)):$$PATH"
# By default pip tries five times per file, which takes half a minute without output if there is no network.
PIP = PIP_RETRIES=$${PIP_RETRIES:-1} $(RUN) $(BIN)/python -m pip --disable-pip-version-check
# The message that follows pip's error if there is no network, or if the index lacks a package.
NO_INDEX = { echo "Cannot install packages into $(VENV): see the error of pip above. Without a network," \
	"download the packages of pyproject.toml elsewhere (pip download --dest FOLDER pip --group build --group serve" \
	"--group test), select that folder (PIP_NO_INDEX=1 PIP_FIND_LINKS=/the/FOLDER make serve), and provide the" \
	"files of Mongoose and llhttp as thirdparty/README.md describes." >&2; exit 1; }

SOURCES = $(shell find mgloop thirdparty \( -name fetched -o -name __pycache__ \) -prune -o -type f \
	! -name '*.py' ! -name '*.md' -print) thirdparty/fetch.py meson.build pyproject.toml

.PHONY: all serve serve-asgi test check checked-tests help lint format types asan tsan debug fuzz threads fresh \
	conformance ecosystem tls faults nomem serve-soak bench bench-compare sdist wheels try-wheel pictures docs clean build
.DELETE_ON_ERROR:

all: build

serve: build $(VENV)/.group-serve
	@$(BIN)/python examples/aiohttp_hello.py $(ARGS)

serve-asgi: build
	@$(BIN)/mgloop serve asgi_hello:app --app-dir examples --port 8080 $(ARGS)

test: build $(VENV)/.group-test
	$(BIN)/pytest $(PARALLEL) $(PYTEST_ARGS)

# The tests that a change is most likely to break, over mgloop only.
CHECKED = $(addprefix tests/,descriptors loop sockets transports tls http/test_http_server.py http/test_asgi.py)
# ruff, mypy and stubtest use one core each, so they run beside the tests. The requirements are installed before, because
# two pip processes must not change an environment at the same time.
check: build $(addprefix $(VENV)/.group-,lint types test)
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint types checked-tests

# Four processes, because these tests wait for more than half of their time.
checked-tests: build $(VENV)/.group-test
	$(BIN)/pytest $(PARALLEL) -n 4 --loops=mgloop -m "not slow" $(CHECKED) $(PYTEST_ARGS)

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

lint: $(VENV)/.group-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(RUN) cython-lint mgloop
	$(BIN)/python tools/check_except.py mgloop
	$(BIN)/python tools/prose.py

format: $(VENV)/.group-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: build $(VENV)/.group-types
	$(BIN)/mypy
	$(BIN)/stubtest mgloop --allowlist tests/stubtest-allowlist.txt --ignore-unused-allowlist

# There is one process more than there are cores, because tests wait during a third of their time. With more processes
# than that, tests with time limits fail. A process that has no test left takes over half of those of another: with
# loadfile, which is the alternative, the files with the fewest tests come last, and these contain the longest tests.
PARALLEL = -n $(shell expr $$(nproc) + 1) --maxprocesses=4 --dist=worksteal

# Tests in which the memory checks would find nothing: those of the tools, those of Python code that starts other
# processes, and those with other programs (a browser, proxies, curl), which would run under the checks as well.
ABOUT_TOOLS = $(addprefix --ignore=tests/,tools docs conformance faults nomem launch) \
	$(addprefix --ignore=tests/,observe/test_top.py compiled/test_template.py) \
	$(addprefix --ignore=tests/programs/test_,install.py install_too_late.py pytest_plugin.py) \
	$(addprefix --ignore=tests/http/test_,cli.py config.py gunicorn.py reloading.py shutdown.py supervisor.py) \
	$(addprefix --ignore=tests/http/test_,$(OTHER_PROGRAMS))
OTHER_PROGRAMS = browser.py clients.py front_ends.py soaks.py

# Leaks are not reported, because an interpreter frees only a part of its memory when it exits. PYTHONMALLOC selects the
# C library's malloc(), because the sanitizer would otherwise see Python's arenas instead of the objects in them. A
# free-threaded interpreter cannot use it. The libraries are preloaded because the interpreter is not built with them.
ASAN = env LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 $$($(VENV)-asan/bin/python -c 'import sysconfig; \
	print("" if sysconfig.get_config_var("Py_GIL_DISABLED") else "PYTHONMALLOC=malloc")')
asan:
	$(MAKE) build $(VENV)-asan/.group-test VENV=$(VENV)-asan MESON_ARGS="-Csetup-args=-Dbuildtype=debug \
		-Csetup-args=-Doptimization=1 -Csetup-args=-Db_sanitize=address,undefined \
		-Csetup-args=-Dc_args=-fno-omit-frame-pointer"
	$(ASAN) $(VENV)-asan/bin/pytest $(PARALLEL) --loops=mgloop -m "not slow" $(ABOUT_TOOLS) -o timeout=240 $(PYTEST_ARGS)

# An interpreter with ThreadSanitizer also runs Cython and pip, whose reports are suppressed. Reports during a test that
# passes must be shown, but pytest would capture output to descriptor 2: hence --capture=sys.
TSAN = env TSAN_OPTIONS="suppressions=$(CURDIR)/tests/threads/tsan.suppressions history_size=5 exitcode=66"
tsan:
	env TSAN_OPTIONS=report_bugs=0 $(MAKE) build $(VENV)-tsan/.group-test VENV=$(VENV)-tsan MESON_ARGS=" \
		-Csetup-args=-Dbuildtype=debugoptimized -Csetup-args=-Db_sanitize=thread -Csetup-args=-Db_lundef=false"
	$(TSAN) $(VENV)-tsan/bin/pytest --capture=sys --loops=mgloop -o timeout=0 tests/threads $(PYTEST_ARGS)

debug: build $(VENV)/.group-test
	env PYTHONMALLOC=debug PYTHONDEVMODE=1 $(BIN)/pytest $(PARALLEL) --loops=mgloop -m "not slow" $(ABOUT_TOOLS) \
		$(PYTEST_ARGS)

# This target creates a separate Debian tree with an environment of its own, so it needs no environment here.
fresh:
	@$(PYTHON) tools/fresh.py --pytest='$(PYTEST_ARGS)' $(ARGS)

# The same under AddressSanitizer: MGLOOP_FUZZ_EXAMPLES=2000 make asan PYTEST_ARGS="tests/transports/test_fuzz_raising.py -o timeout=0".
FUZZED = $(addprefix tests/,transports/test_fuzz_raising.py transports/test_stream_random.py streams/test_histories.py \
	http/test_fuzz_parsing.py http/test_wsgi_input.py http/test_frames.py)
fuzz: build $(VENV)/.group-test
	env MGLOOP_FUZZ_EXAMPLES=$${MGLOOP_FUZZ_EXAMPLES:-2000} $(BIN)/pytest $(PARALLEL) --loops=mgloop \
		-o timeout=0 $(FUZZED) $(PYTEST_ARGS)

threads: build $(VENV)/.group-test
	env MGLOOP_THREADS_CALLS=$${MGLOOP_THREADS_CALLS:-1000000} $(BIN)/pytest --loops=mgloop -o timeout=0 tests/threads \
		$(PYTEST_ARGS)

conformance: build $(VENV)/.group-test
	$(RUN) python -m tests.conformance $(ARGS)
ifeq ($(ARGS),)
	$(RUN) python -m tests.conformance --streams --suite streams subprocess
endif

ecosystem: build $(VENV)/.group-test
	$(RUN) python -m tests.ecosystem $(ARGS)

# All other targets call OpenSSL directly where that is safe. This one selects the other engine, also for the processes
# that the tests start. It leaves out the tests over asyncio's loop, which has only one engine.
TLS_SUITES = ssl sslproto start_tls streams sendfile buffered_proto
tls: export MGLOOP_TLS_ENGINE = ssl
tls: build $(VENV)/.group-test
	$(BIN)/pytest $(PARALLEL) --loops=mgloop -m "not slow" -k "tls or ssl or https or sendfile" $(ABOUT_TOOLS) \
		$(PYTEST_ARGS)
	$(RUN) python -m tests.conformance --no-control --suite $(TLS_SUITES) $(ARGS)

# This takes half an hour. ARGS="slow --quick", for example, runs a shorter version of one part.
serve-soak: build $(VENV)/.group-test
	$(BIN)/python tests/http/soaks $(ARGS)

faults: build $(VENV)/.group-test
	$(RUN) python -m tests.faults $(ARGS)

nomem: build $(VENV)/.group-test
	$(RUN) python -m tests.nomem $(ARGS)

bench: build $(VENV)/.group-bench
	$(RUN) python -m bench run --quick $(ARGS)

bench-compare: build $(VENV)/.group-bench
	@test -n "$(BASE)" || { echo "BASE is required: make bench-compare BASE=main" >&2; exit 2; }
	$(RUN) python -m bench.revisions $(BASE) $(ARGS)

sdist: $(VENV)/.group-wheels
	$(RUN) $(BIN)/python tools/wheels.py --sdist-only $(ARGS)

wheels: $(VENV)/.group-wheels
	$(RUN) $(BIN)/python tools/wheels.py $(ARGS)

# Like fresh, this target needs no environment.
try-wheel:
	@test -n "$(WHEEL)" || { echo "WHEEL is required: make try-wheel WHEEL=dist/mgloop-...whl" >&2; exit 2; }
	@$(PYTHON) tools/trywheel.py $(WHEEL) $(ARGS)

pictures: build $(VENV)/.group-test $(VENV)/.group-bench
	$(RUN) python -m tests.observe.pictures $(ARGS)

# This target needs no build of mgloop. The variable prevents a notice of the theme about MkDocs 2.
docs: $(VENV)/.group-docs
	env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)
	$(BIN)/python tools/site/check.py build/site

clean:
	rm -rf .venv* build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

build: $(VENV)/.built

# The installation is editable, because the targets run in the folder that contains mgloop/, and Python would otherwise
# import it from there, without the compiled modules. Importing mgloop also rebuilds it if a source has changed.
$(VENV)/.built: $(VENV)/.group-build $(SOURCES)
	@echo "building mgloop for $$($(BIN)/python -V)"
	@$(RUN) CYTHON="$(abspath $(BIN))/python $(CURDIR)/tools/cached_cython.py" \
		$(BIN)/python tools/show_build.py python -m pip --disable-pip-version-check --verbose \
		install --no-build-isolation --no-deps -Cbuild-dir=$(BUILD) $(MESON_ARGS) --editable .
	@touch $@

# Install a dependency group of pyproject.toml.
$(VENV)/.group-%: pyproject.toml | $(VENV)/.made
	@echo "installing the $* requirements into $(VENV)"
	@$(PIP) --quiet install --group $*$$($(BIN)/python -c "$(VARIANT)") || $(NO_INDEX)
	@touch $@

# The suffix of a dependency group: without the GIL, `test` is `test-free-threaded`.
VARIANT = import sysconfig; print('-free-threaded' if '$*' == 'test' and sysconfig.get_config_var('Py_GIL_DISABLED') else '')

# Debian and Ubuntu package venv and ensurepip separately. If one is missing, `python -m venv` leaves an incomplete
# environment, so this checks for both first. pip has --group since 25.1, and interpreters come with older versions.
$(VENV)/.made:
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or later, or" \
		"select one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mgloop requires Python 3.11 or later," \
		"but $(PYTHON) is $$($(PYTHON) -V 2>&1): select another one, as in make PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments:" \
		"its venv package is missing. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "creating $(VENV) for $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet install --upgrade 'pip>=25.1' || $(NO_INDEX)
	@touch $@
