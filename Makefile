# `make demo` and `make test` need nothing but Python 3.11 or newer: they make the environment themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# More words for pytest: make test ARGS="tests/unit -k plan"
ARGS ?=
SHELL_SCRIPTS := .ci/run .ci/packages

.PHONY: help demo test soak check format bench install clean
help:
	@echo "make demo      install, then train a small network under the console (about a minute)"
	@echo "make test      install, then run the tests"
	@echo "make soak      the tests that take minutes, which make test leaves out"
	@echo "make check     formatting, lint, types, layers, shell scripts"
	@echo "make format    let ruff format and fix what it can"
	@echo "make bench     the benchmarks"
	@echo "make install   only the environment, in $(VENV)"

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# pip 23, as Debian 12 has it, does not know dependency groups.
	$(BIN)/python -m pip install --quiet --upgrade pip

# Stamps, so that a second `make` does nothing unless the dependencies changed.
$(VENV)/.demo: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/pip
	$(BIN)/python -m pip install --quiet -e '.[demo]' --group dev
	@touch $@ $(VENV)/.demo

install: $(VENV)/.dev

demo: $(VENV)/.demo
	@PATH="$(BIN):$$PATH" trainui configs/demo.yml

test: $(VENV)/.dev
	@.ci/packages tmux shellcheck sshd=openssh-server ssh=openssh-client ip=iproute2 fish csh tcsh zsh
	$(BIN)/python -m pytest $(ARGS)

soak: $(VENV)/.dev
	@.ci/packages tmux
	$(BIN)/python -m pytest -m soak $(ARGS)

check: $(VENV)/.dev
	@.ci/packages shellcheck
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	shellcheck $(SHELL_SCRIPTS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py $(ARGS)

clean:
	rm -rf $(VENV) .venv-wheel dist
