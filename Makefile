# The commands of this repository. `make demo` and `make test` set up all they need.
VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
SAM_VENV := build/sam-venv
RUNTIME_VENV := build/runtime-venv
EMULATOR_VENV := build/localemu-venv
RELEASE_VENV := build/release-venv
# What `make build` builds, and where `sam deploy` looks for it. Images of Python set PYTHON_VERSION: only an argument counts.
ARCH ?= arm64
PYTHON_VERSION := 3.13
BUILD := .aws-sam/build
TRANSLATED := build/translated.json
ARGS ?=
# Tests wait more than they work: for servers, processes and time.
TEST_PROCESSES ?= 6
PYTEST = PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal
FUZZ_SEC ?= 900
# Offline, and as nobody: neither validating nor building is anything that AWS has to hear of.
SAM = env -u AWS_PROFILE -u MAKEFLAGS -u MAKELEVEL SAM_CLI_TELEMETRY=0 __SAM_CLI_APP_DIR="$(CURDIR)/build/sam" \
	AWS_DEFAULT_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null \
	ARCH="$(ARCH)" LAMBDA_PYTHON="$(PYTHON_VERSION)" PYTHON="$(abspath $(SAM_VENV)/bin/python)" $(SAM_VENV)/bin/sam
# This machine's processor, as Lambda calls it.
MACHINE = $(if $(filter aarch64 arm64,$(shell uname -m)),arm64,x86_64)

.PHONY: help setup demo serve openapi schemas project twins graph cost test test-all e2e deployed golden guards bench figures chaos survival fuzz build check format release lock clean
help:
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 20

# What the demo needs takes a fourth of the time that all takes.
DEMO := $(VENV)/.demo
$(DEMO): requirements/venv.sh requirements/demo.txt
	@sh requirements/venv.sh $(VENV) requirements/demo.txt
	@touch $@
setup: $(READY) ## make the virtual environment (the other targets do it too)
$(READY): requirements/venv.sh requirements/dev.txt layers/core/pyproject.toml
	@sh requirements/venv.sh $(VENV) requirements/dev.txt
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e layers/core
	@touch $@
$(SAM_VENV)/.ready: requirements/venv.sh requirements/sam.txt
	@sh requirements/venv.sh $(SAM_VENV) requirements/sam.txt
	@touch $@
$(RUNTIME_VENV)/.ready: requirements/venv.sh requirements/runtime.txt
	@sh requirements/venv.sh $(RUNTIME_VENV) requirements/runtime.txt
	@touch $@
$(RELEASE_VENV)/.ready: requirements/venv.sh requirements/release.txt
	@sh requirements/venv.sh $(RELEASE_VENV) requirements/release.txt
	@touch $@
$(EMULATOR_VENV)/.ready: requirements/venv.sh requirements/python.sh requirements/deployed.txt requirements/deployed-source.txt
	@sh requirements/venv.sh $(EMULATOR_VENV) requirements/deployed.txt 3.13 requirements/deployed-source.txt
	@touch $@

demo: $(DEMO) ## 200 webhooks through MongoDB, with crashes, in a minute (ARGS=--json)
	@PYTHONPATH=layers/core exec $(PYTHON) -m demo $(ARGS)

serve: $(READY) ## `tidemill dev` with the tasks of this repository (PORT=8001, BIND=0.0.0.0, ARGS=--fresh)
	@cd layers/tasks && exec $(abspath $(PYTHON)) -m tidemill dev $(if $(PORT),--port "$(PORT)") $(if $(BIND),--bind "$(BIND)") $(ARGS)

openapi: $(READY) ## write the OpenAPI document of the HTTP API to build/openapi.json
	@PYTHONPATH=layers/tasks $(PYTHON) -m tools.openapi

schemas: $(READY) ## write the JSON Schemas of all events to events/schemas
	@$(PYTHON) -m tools.schemas

project: $(READY) ## write what `tidemill init` takes from the repository: template, events, pins
	@$(PYTHON) -m tools.project

twins: $(READY) ## write the async twins of the client from their sync sources
	@$(PYTHON) -m tools.async_twins

graph: $(READY) ## draw what the template deploys, into docs/operate/resources.md
	@$(PYTHON) -m tools.graph --write

cost: $(READY) ## write what a deployment costs into docs/operate/capacity.md, by tools/cost.py
	@$(PYTHON) -m tools.cost

# What `make test` runs: nothing that waits long, nothing of the tools, handlers and pages.
QUICK := tests/unit tests/database tests/features tests/golden
test: $(READY) ## run the tests that find most faults in three minutes (ARGS="-k claim", ARGS=tests/unit)
	@$(PYTEST) $(if $(filter tests/% tools/%,$(ARGS)),,-m "not slow" $(QUICK)) $(ARGS)

test-all: test test-rest ## run all tests but those from end to end (TEST_PROCESSES=0 for one after the other)
.PHONY: test-rest
test-rest: $(READY)
	@$(PYTEST) $(addprefix --ignore=,$(QUICK)) $(ARGS)
	@$(PYTEST) -m slow $(QUICK) $(ARGS)

e2e: $(READY) built ## run what people run (demo, commands, built functions in Lambda's runtime) and what is large
	@$(PYTHON) -m pytest --numprocesses $(TEST_PROCESSES) tests/end_to_end/test_demo.py $(ARGS)
	@$(PYTHON) -m pytest --numprocesses $(TEST_PROCESSES) tests/end_to_end --ignore=tests/end_to_end/deployed \
		--ignore=tests/end_to_end/test_demo.py $(ARGS)
	@$(PYTHON) -m pytest --numprocesses 2 --dist loadfile tests/end_to_end/deployed $(ARGS)
.PHONY: built
built: $(RUNTIME_VENV)/.ready
	@$(MAKE) --no-print-directory build BUILD=build/e2e TRANSLATED=build/e2e.json ARCH=$(MACHINE) \
		PYTHON_VERSION=$$($(RUNTIME_VENV)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

deployed: $(READY) $(EMULATOR_VENV)/.ready built ## deploy to an emulator of AWS, use the stack, update and delete it
	@$(PYTHON) -m tools.deployed $(ARGS)

golden: $(READY) ## write anew what is seen from outside, in a commit that changes nothing else (ARGS="-k execute")
	@WRITE_GOLDEN=1 $(PYTHON) -m pytest --numprocesses $(TEST_PROCESSES) tests/golden $(ARGS)

guards: $(READY) ## break each guard of the store once, and see a test fail (45 minutes; ARGS="--only settles")
	@$(PYTHON) -m tools.guards $(ARGS)

# Only one section measures what was built.
BENCHED = $(if $(findstring --only,$(ARGS)),$(findstring startup,$(ARGS)),startup)
bench: $(READY) $(BENCHED:startup=built) ## measure it all in ten minutes (ARGS=--quick in 90 s, ARGS="--only growth")
	@PYTHONPATH=layers/tasks $(PYTHON) -m tools.bench $(ARGS)

compare: $(READY) ## measure this tree beside an older one, nine times in turn (ARGS="REVISION --only floor --pairs 3")
	@$(PYTHON) -m tools.compare $(ARGS)

figures: $(READY) ## write what the last whole `make bench` found, and its plots, into docs/measured
	@$(PYTHON) -m tools.bench.publishing

chaos: $(READY) ## attack it for a quarter of an hour: crashes, fail-overs, faults (ARGS=--quick, ARGS="--only model --seed 7")
	@PYTHONPATH=layers/tasks $(PYTHON) -m tools.chaos $(ARGS)

survival: $(READY) ## write what the last whole `make chaos` survived into docs/measured
	@$(PYTHON) -m tools.chaos.publishing

fuzz: $(READY) ## send the HTTP API all kinds of requests, for FUZZ_SEC=900 seconds
	@FUZZ_SEC="$(FUZZ_SEC)" $(PYTHON) -m pytest -rP --show-capture=stdout tools/fuzz $(ARGS)

build: known-arch $(SAM_VENV)/.ready ## build what `sam deploy` deploys, on any machine (ARCH=arm64 or x86_64)
	@$(SAM_VENV)/bin/python layers/build_folder.py before "$(BUILD)"
	@$(SAM) validate --lint
	@$(SAM) build --build-dir "$(BUILD)" --parameter-overrides "Architecture=$(ARCH)"
	@$(SAM_VENV)/bin/python layers/build_folder.py after "$(BUILD)" "$(ARCH)"
	@$(SAM_VENV)/bin/python layers/check_build.py "$(BUILD)" "$(ARCH)" "$(PYTHON_VERSION)"
	@$(SAM_VENV)/bin/python layers/translate.py "$(BUILD)" "$(TRANSLATED)"
.PHONY: known-arch
known-arch:
	@$(if $(filter arm64 x86_64,$(ARCH)),,$(error ARCH is arm64 or x86_64, not $(ARCH)))

check: $(READY) ## lint, format, types, import rules, house rules
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(PYTHON) -m tools.house

format: $(READY) ## rewrite the code as the gate wants it
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

release: $(READY) $(RELEASE_VENV)/.ready ## build and check the distribution in build/release; it publishes nothing
	@$(PYTHON) -m tools.release $(RELEASE_VENV)/bin/python $(ARGS)

lock: $(READY) ## pin every dependency again, with hashes
	@sh requirements/lock.sh $(VENV)

clean: ## remove what these targets made
	@rm -rf $(VENV) build .aws-sam .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
