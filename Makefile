# hyperpod: README's two commands are `make demo` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(VENV)/bin/pytest
APT := podman runc mmdebstrap iptables netavark aardvark-dns libmunge2 munge libslurm-dev gcc make shellcheck python3-venv
STAMP := $(VENV)/.installed

export AWS_EC2_METADATA_DISABLED := true

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## install what is missing: Debian packages (as root) and the Python environment in .venv

$(STAMP): pyproject.toml tools/install_packages.sh
	bash tools/install_packages.sh $(APT)
	test -x $(PY) || python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --editable '.[dev]'
	touch $(STAMP)

fmt: setup ## format the Python code
	$(VENV)/bin/ruff format hyperpod tests
	$(VENV)/bin/ruff check --fix hyperpod tests

lint: setup ## ruff, mypy --strict, import layers, shellcheck
	$(VENV)/bin/ruff check hyperpod tests configs
	$(VENV)/bin/ruff format --check hyperpod tests
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	shellcheck -x -P lifecycle_scripts $$(git ls-files --cached --others --exclude-standard '*.sh')

test: setup plugin plugin-test ## everything: fast suite, plugin, then end to end on real nodes
	$(PYTEST) -q -m 'not e2e'
	$(PYTEST) -q -m e2e

test-fast: setup ## the suite without nodes and without moto, about a minute
	$(PYTEST) -q -m 'not e2e and not aws'

test-e2e: setup ## real nodes, real Slurm, real kills
	$(PYTEST) -q -m e2e

demo: setup ## a cluster on this machine: kill a node under a training job and watch it train on (KEEP=1 keeps it)
	$(PY) -m tools.demo $(if $(KEEP),--keep)

demo-aws: setup ## the same on EC2, without an account: a simulated one whose instances are nodes on this machine
	$(PY) -m tools.demo_aws

bench: setup ## measure recovery and overheads; raw data in bench-results/
	$(PY) -m tools.bench

bench-health: setup ## measure how fast faults are known and what the watching costs, on 16 nodes (40 minutes)
	$(PY) -m tools.bench.health

plugin: ## build the SPANK plugin for the Slurm headers of this machine
	$(MAKE) -C spank_plugin

plugin-test: ## unit tests of the plugin under ASan and UBSan
	$(MAKE) -C spank_plugin test

docs: setup ## regenerate the reference pages; fails when they differ from what is committed
	$(PY) -m tools.reference
	git diff --exit-code -- docs/reference docs/states.md

cov: setup ## coverage of the fast suite: at least 90 %, core 100 % of branches
	$(PYTEST) -q -m 'not e2e' --cov=hyperpod --cov-report=term-missing:skip-covered

deflake: setup ## the fast suite 20 times in random order
	for i in $$(seq 20); do $(PYTEST) -q -m 'not e2e and not aws' -p randomly || exit 1; done

clean: ## remove build products (clusters are removed with hyperpod delete-cluster)
	$(MAKE) -C spank_plugin clean
	rm -rf .mypy_cache .ruff_cache .pytest_cache build *.egg-info

.PHONY: help setup fmt lint test test-fast test-e2e demo demo-aws bench bench-health plugin plugin-test docs cov deflake clean
