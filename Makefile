# What each target does: `make help`. All the work is done by the scripts that are called here.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-down test check format lock images clean

export CLUSTER ?= local
PYTHON := .venv/bin/python
export PYTHONPATH := operator:worker

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Install everything that demo and test need, from a bare Debian 12; a repeat takes seconds
	@.ci/setup.sh

demo:  ## Start Kubernetes here, install the operator, serve a real model, stream an answer
	@if [[ "$$CLUSTER" == current ]]; then .ci/setup.sh python; \
	 elif (( EUID != 0 )); then \
	   echo "make demo: the local cluster needs root: run it as root, use a cluster that you have with" \
	        "\`make demo CLUSTER=current\`, or serve without Kubernetes with \`mizzen serve MODEL\`" >&2; \
	   exit 1; \
	 else .ci/setup.sh uv python model programs base images; fi
	@$(PYTHON) -m tests.devcluster.demo

demo-down:  ## End the demo's cluster; what was built stays for the next one
	@$(PYTHON) -m tests.devcluster down

images:  ## Build the three images of the working tree
	@.ci/setup.sh images

test:  ## Run every test: unit, model, cluster, end to end
	@.ci/setup.sh uv python model programs base images
	@$(PYTHON) -m tests.run_all all

check: .venv  ## Format, lint, import contracts, types, dependencies, dead code, unit tests
	@$(PYTHON) -m tests.run_all check

.venv:
	@.ci/setup.sh python

format:  ## Rewrite the sources as the formatter wants them
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix --quiet .

lock: .venv  ## Write requirements.lock anew from pyproject.toml
	@"$${XDG_CACHE_HOME:-$$HOME/.cache}"/mizzen/boot/bin/uv pip compile --universal --python-version 3.11 --extra dev \
	  --quiet --no-annotate --no-header --generate-hashes --output-file requirements.lock pyproject.toml

clean:  ## End the demo's cluster, remove .venv and every cache that set-up made
	@.ci/clean.sh
