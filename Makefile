# The commands of this repository. `make demo` and `make test` set up all they need.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
ARGS ?=
# Tests wait more than they work: for servers, processes and time.
TEST_PROCESSES ?= 6
FUZZ_SEC ?= 900

.PHONY: help setup demo serve openapi test bench fuzz check format lock clean
help:
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

setup: $(READY) ## make the virtual environment (the other targets do it too)
$(READY): requirements/venv.sh requirements/dev.txt layers/core/pyproject.toml
	@sh requirements/venv.sh $(VENV)
	@touch $@

demo: $(READY) ## 200 webhooks through MongoDB, with crashes, in a minute (ARGS=--json)
	@$(PYTHON) -m demo $(ARGS)

serve: $(READY) ## the HTTP API on this machine, with its documentation (PORT=8000, BIND=0.0.0.0, ARGS="--tick 10")
	@PORT="$(PORT)" BIND="$(BIND)" exec $(PYTHON) -m demo.serve $(ARGS)

openapi: $(READY) ## write the OpenAPI document of the HTTP API to build/openapi.json
	@$(PYTHON) -m demo.openapi

test: $(READY) ## run every test (ARGS="-k claim", TEST_PROCESSES=0 for one after the other)
	@PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal $(ARGS)

bench: $(READY) ## measure what taking tasks in and archiving them costs, in a minute or two
	@PYTHONPATH=layers/tasks $(PYTHON) -m tests.bench.enqueue
	@AWS_DEFAULT_REGION=us-east-1 $(PYTHON) -m tests.bench.archive

fuzz: $(READY) ## send the HTTP API all kinds of requests, for FUZZ_SEC=900 seconds
	@FUZZ_SEC="$(FUZZ_SEC)" $(PYTHON) -m pytest -rP --show-capture=stdout tests/fuzz $(ARGS)

check: $(READY) ## lint, format, types, import rules
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

format: $(READY) ## rewrite the code as the gate wants it
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

lock: $(READY) ## pin every dependency again, with hashes
	@sh requirements/lock.sh $(VENV)

clean: ## remove what these targets made
	@rm -rf $(VENV) build .aws-sam .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
