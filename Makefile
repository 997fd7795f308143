# `make` shows the targets. Each sets up what it needs first, and does nothing twice.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
export PYTHONDONTWRITEBYTECODE := # without compiled files each process that needs torch starts 2 s later
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
HERE := not gpu and not e2e# tiers that any machine can run
JOBS := $(if $(EEM_TEST_KUBECONFIG),0,2)# processes that share the tests, each with a control plane of its own
SHARED := -n $(JOBS) --dist loadfile --no-loadscope-reorder
CLUSTER := PYTHONPATH=tools/cluster $(BIN)/python -m apparate_cluster
IMAGES := PYTHONPATH=tools/images:tools/cluster $(BIN)/python -m apparate_images --links .cache/images
TOOLS := .cache/cluster/bin# links to the built Kubernetes tools

.PHONY: help setup demo docs release test test-unit test-drift test-integration test-conformance fuzz test-cluster test-e2e test-gpu cluster-tools test-tools lint-tools control-plane cluster-up cluster-load cluster-status cluster-down images lint format generate verify check lock bench bench-batching bench-compact bench-operator bench-delivery bench-models bench-serving dashboards clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  \033[1m%-18s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with what requirements.lock pins (the other targets do it by themselves)
	@tools/dev/setup.sh

demo: setup ## Serve a real model plain and with early exits on the same traffic, and compare (ARGS="--model text")
	@$(BIN)/apparate demo $(ARGS)

test: lint test-tools ## Lint, then all tests; those with real pods where they can run (ARGS="-k redis")
	@tools/dev/test_e2e.sh $(ARGS)
	$(PYTEST) $(SHARED) -m "$(HERE)" $(addprefix tests/,integration cluster conformance unit drift golden) $(ARGS)

test-unit: setup ## Unit tests only: no process, no network
	$(PYTEST) tests/unit $(ARGS)

test-drift: setup ## Whether generated files, lock file and docs still say what the code says
	$(PYTEST) tests/drift $(ARGS)

test-integration: setup ## Tests against real Redis, gRPC and HTTP servers on loopback
	EEM_TEST_REQUIRE=redis $(PYTEST) -m "$(HERE)" tests/integration $(ARGS)

test-conformance: setup ## Clients of others against the worker: tritonclient, curl, schemathesis; fuzzers
	EEM_TEST_REQUIRE=conformance,fuzz $(PYTEST) tests/conformance $(ARGS)

fuzz: setup ## The same with 10,000 cases and fuzzers that run for minutes (EEM_FUZZ_SECONDS=600 EEM_CONFORMANCE_SEED=7)
	EEM_TEST_REQUIRE=conformance,fuzz tools/dev/fuzz.sh $(ARGS)

test-cluster: test-tools ## Tests against a real Kubernetes API on loopback
	EEM_TEST_REQUIRE=cluster $(PYTEST) $(SHARED) -m "$(HERE)" tests/cluster $(ARGS)

test-e2e: test-tools ## Tests with real pods: install, traffic, faults, scaling, upgrades (ARGS="-k redis")
	@$(IMAGES) --engine buildah # ARGS are for pytest; another engine writes no archives that a node could load
	EEM_TEST_REQUIRE=e2e $(PYTEST) tests/e2e $(ARGS)

test-gpu: setup ## Parity and latency on a CUDA device
	EEM_TEST_REQUIRE=gpu $(PYTEST) tests/gpu $(ARGS)

cluster-tools: setup ## Build Kubernetes, etcd, helm and kwok from pinned Go modules, once per machine
	@$(CLUSTER).build --links $(TOOLS)
	@echo 'built; to have them first on your PATH: export PATH="$(CURDIR)/$(TOOLS):$$PATH"'

test-tools: setup ## The part of them that tests need
	@$(CLUSTER).build --tests --links $(TOOLS)
	@$(CLUSTER).prometheus # and Prometheus, for tests of alerts

control-plane: test-tools ## Run a Kubernetes API on loopback until Ctrl-C
	@$(CLUSTER)

cluster-up: setup ## Start a whole one-node Kubernetes with real pods, as root, and say how to use it (ARGS="--gpus 4")
	@$(CLUSTER).node up $(ARGS)

cluster-status: setup ## Say which of its processes run
	@$(CLUSTER).node status $(ARGS)

cluster-load: setup ## Load the images of `make images` into it (ARGS="image.tar" for others)
	@$(CLUSTER).node load $(or $(ARGS),$(sort $(wildcard .cache/images/*.tar)))

cluster-down: setup ## End it; its images stay (ARGS=--all removes them too)
	@$(CLUSTER).node down $(ARGS)

images: setup ## Make the images of operator, controller, worker and what trials need (ARGS=apparate-operator for one)
	@$(IMAGES) $(ARGS)

lint-tools: setup ## The part of them that linting needs
	@$(CLUSTER).build --links $(TOOLS) helm

lint: lint-tools ## ruff, mypy --strict, the import law, helm lint
	@tools/dev/lint.sh

format: setup ## Format the code and fix what can be fixed
	$(BIN)/ruff format && $(BIN)/ruff check --fix

generate: setup ## Write every generated file: wire code and docs/reference
	$(BIN)/python tools/dev/generate.py

verify: setup ## Whether every generated file is what `make generate` would write
	$(BIN)/python tools/dev/generate.py --check

check: verify test ## Everything CI runs

lock: setup ## Rewrite requirements.lock from pyproject.toml (UPGRADE=1 for the newest versions)
	@tools/dev/lock.sh

release: test-tools ## Wheel, chart, images, bills of materials and checksums of a version, into out/release; uploads nothing
	@tools/dev/release.sh

docs: setup ## Build the documentation's site into out/site; every link is checked
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet && echo "docs: out/site/index.html"

bench: setup ## Speed of the method on this machine
	$(BIN)/python tools/bench/method.py $(ARGS)

bench-serving: setup ## The worker as a server beside MLServer, KServe, LitServe and Mosec (ARGS="--only noop")
	PYTHONPATH=tools/cluster $(BIN)/python tools/bench/serving $(ARGS)

bench-compact: setup ## What the mode compact saves at saturation (ARGS="--data FOLDER" with the demo's CIFAR files)
	$(BIN)/python tools/bench/compact.py $(ARGS)

bench-models: setup ## Three models on one device, overloaded: requests that miss their objective, by scheduling rule
	PYTHONPATH=tests:tools/cluster $(BIN)/python tools/bench/several_models.py $(ARGS)

bench-operator: test-tools ## The operator with 1,000 models on a real API server (ARGS="--models 100")
	PYTHONPATH=tools/cluster $(BIN)/python tools/bench/operator_scale.py $(ARGS)

dashboards: test-tools ## Look at the dashboards without a Grafana: a real run, drawn page by page (ARGS="--prometheus URL")
	PYTHONPATH=tools/dashboards:tools/cluster:tests $(BIN)/python -m apparate_dashboards $(ARGS)

bench-batching: setup ## Batching policies under bursts, on a virtual clock (ARGS="--seconds 60")
	PYTHONPATH=tests $(BIN)/python tools/bench/batching.py $(ARGS)

bench-delivery: test-tools ## From a decision to the plan in force at workers, through a real API server
	PYTHONPATH=tests:tools/cluster $(BIN)/python tools/bench/plan_delivery.py $(ARGS)

clean: ## Remove .venv, caches and prepared models
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist out prepared *.egg-info
	find charts operator proto services tests tools -name __pycache__ -prune -exec rm -rf {} +
