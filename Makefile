# `make report` measures this machine and writes results/report.html; `make test` runs the tests.
# Everything is installed in .venv, by hash, except torch: its wheel depends on the GPU (see TORCH_INDEX).

# PYTHON=python3.13 names the Python that .venv is made from; once made, .venv stays with it.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell test -x .venv/bin/python && echo .venv/bin/python || echo python3)
endif
# Flags for making .venv, for example --system-site-packages with TORCH=0 to use a PyTorch container's torch.
VENV_FLAGS ?=
# TORCH=0 installs no torch: for a host that measures inside a container image only.
TORCH ?= 1
TORCH_VERSION ?= 2.13.0
# Where torch comes from. Empty means pip's own index, whose wheel is a CUDA build of gigabytes; without an
# NVIDIA device PyTorch's CPU index is the better default.
TORCH_INDEX ?= $(if $(wildcard /dev/nvidia0)$(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
SNAKEMAKE_FLAGS ?=
# The profile of `make slurm`: a copy of profiles/slurm that knows your cluster, if you made one.
PROFILE ?= profiles/slurm
PYTEST_FLAGS ?=
SOAK_FLAGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The stamps name what they were made for, so that a moved folder or another Python installs again: which
# one it is, not how PYTHON spells it, and of a virtual environment the one that it was made from.
INTERPRETER := $(shell '$(PYTHON)' -I -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null)
KEY := $(shell printf '%s' "$$PWD $(subst ",,$(INTERPRETER))" | cksum | cut -d ' ' -f 1)
BASE := .venv/.installed-$(KEY)
DEV := .venv/.installed-dev-$(KEY)
WITH_SLURM := .venv/.installed-slurm-$(KEY)
WITH_TORCH := $(if $(filter 0,$(TORCH)),,.venv/.installed-torch-$(TORCH_VERSION))

# What .venv holds and nothing else: no module of the caller's.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP
export PYTHONNOUSERSITE := 1
# `python -m` would put the working folder, whatever lies there, first on the module path.
APEXBENCH := $(BIN)/python -P -m apexbench
# Snakemake needs a cache of its own and cannot start where HOME is read-only.
SNAKEMAKE := PYTHONSAFEPATH=1 XDG_CACHE_HOME="$$PWD/.snakemake/cache" $(BIN)/python -m snakemake
# Snakemake runs Python that a file of --configfile may hold; ours reads it first, and refuses that.
CHECK_FLAGS = $(if $(strip $(SNAKEMAKE_FLAGS)),$(APEXBENCH) given -- $(SNAKEMAKE_FLAGS) && )

.DELETE_ON_ERROR:
.PHONY: help report slurm test soak install apex image reference paper doctor lint lock clean

help:
	@echo 'make report     measure this machine and write results/report.html'
	@echo 'make slurm      the same on a Slurm cluster, from its login node (docs/slurm.md)'
	@echo 'make test       run the tests'
	@echo 'make doctor     say what this machine has and what each missing part would bring'
	@echo 'make paper      rebuild the reports of results/reference/ (needs no GPU and no torch)'
	@echo 'make reference  copy the last run into results/reference/<machine>/ (FORCE=1: replace another run)'
	@echo 'make image      build the image with Apex now (make report does it where an engine is chosen)'
	@echo 'make apex       without an engine: compile the pinned Apex into .venv (needs nvcc, g++, git)'
	@echo 'make install    only install into .venv'
	@echo 'make lint       check style and types'
	@echo 'make soak       faults, kills and Slurm for an hour (SLURM=0: no Slurm), and what grew'
	@echo 'make lock       resolve the locked requirements again (needs uv)'
	@echo 'make clean      remove .venv and caches; results/ stays'

install: $(BASE) $(WITH_TORCH)

report: install
	@$(CHECK_FLAGS)PATH="$$PWD/$(BIN):$$PATH" $(SNAKEMAKE) --cores 1 $(SNAKEMAKE_FLAGS)
	@printf 'report: %s\n' "$$PWD/results/report.html"

# The login node has no GPU, the nodes have: torch's CUDA build, from pip's own index.
slurm: TORCH_INDEX :=
slurm: install $(WITH_SLURM)
	@$(CHECK_FLAGS)PATH="$$PWD/$(BIN):$$PATH" $(SNAKEMAKE) --workflow-profile '$(PROFILE)' $(SNAKEMAKE_FLAGS)
	@printf 'report: %s\n' "$$PWD/results/report.html"

# Without PYTEST_FLAGS in two halves at once: what measures, in order, and beside it what only reads.
test: $(BASE) $(WITH_TORCH) $(DEV)
ifneq ($(strip $(PYTEST_FLAGS)),)
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_FLAGS)
else
	@export PATH="$$PWD/$(BIN):$$PATH"; reading=$$(mktemp); trap 'rm -f "$$reading"' EXIT; \
	$(BIN)/python -m pytest -m 'reads and not soak' >"$$reading" 2>&1 & half=$$!; \
	$(BIN)/python -m pytest -m 'not reads and not soak'; measures=$$?; \
	wait $$half; reads=$$?; cat "$$reading"; exit $$((measures | reads))
endif

# Hours, outside CI: faults, kills and repeated runs, then the whole preset quick through a real Slurm
# (SLURM=0 leaves that out), which this installs (as root) where it is missing.
SLURM ?= 1
soak: $(BASE) $(WITH_TORCH) $(DEV)
	@PATH="$$PWD/$(BIN):$$PATH" $(BIN)/python tests/soak.py $(SOAK_FLAGS)
ifneq ($(SLURM),0)
	@PATH="$$PWD/$(BIN):$$PATH" APEXBENCH_SLURM=1 $(BIN)/python -m pytest -m soak tests/slurm $(PYTEST_FLAGS)
endif

doctor: install
	@PATH="$$PWD/$(BIN):$$PATH" $(APEXBENCH) doctor

image: $(BASE)
	@PATH="$$PWD/$(BIN):$$PATH" $(APEXBENCH) image build

# Apex builds without isolation: what its build needs comes from the image's lock, by hash.
apex: install
	@$(PIP) install --quiet --require-hashes --only-binary=:all: -r docker/requirements.lock
	@PATH="$$PWD/$(BIN):$$PATH" $(APEXBENCH) image native

reference: install
	@$(APEXBENCH) reference $(if $(FORCE),--force)

paper: $(BASE)
	@set -e; for records in results/reference/*/; do \
		if [ ! -d "$$records" ]; then echo 'results/reference/ holds no run: make one with `make reference`.' >&2; exit 2; fi; \
		machine=$$(basename "$$records"); \
		$(APEXBENCH) report --records "results/reference/$$machine" --out "results/report/$$machine"; \
		printf 'report: %s\n' "$$PWD/results/report/$$machine/report.html" "$$PWD/results/report/$$machine/report.pdf"; \
	done

lint: $(DEV)
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/snakefmt --check Snakefile workflow/rules
	@$(BIN)/hadolint docker/Dockerfile docker/legacy-amp.Dockerfile
	@$(BIN)/python -m mypy

# What must be true of $(PYTHON) before .venv is made from it.
define CHECK_PYTHON
command -v '$(PYTHON)' >/dev/null || { \
	echo 'apexbench needs Python 3.11 or newer, and "$(PYTHON)" is not a command here: install it, or name another with PYTHON=.' >&2; exit 2; }; \
'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "apexbench needs Python 3.11 or newer, and $(PYTHON) is $$('$(PYTHON)' -V 2>&1): install a newer one and name it, as in \`make report PYTHON=python3.12\`." >&2; exit 2; }; \
'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { \
	echo '$(PYTHON) cannot make a virtual environment, because its venv module is missing: sudo apt-get install $(notdir $(PYTHON))-venv' >&2; exit 2; }
endef

# The blocks of a lock (requirements.lock, if none is named) for some packages, with their hashes.
locked = awk '/^[a-z]/ { keep = /^($(1))==/ } keep' $(or $(2),requirements.lock) >.venv/step.lock

# An existing .venv is kept (it may hold a compiled Apex) unless it does not run or has another Python.
# Three steps, so that nothing unhashed is fetched and no compiler is needed: first the build tools; then
# immutables, which has no wheel for Python 3.14 but runs without its C module (CC=true leaves that out);
# then everything.
$(BASE): requirements.lock pyproject.toml workflow/apexbench/__init__.py Makefile
	@version='import sys; print(sys.version_info[:2])'; \
	if [ "$$($(BIN)/python -c "$$version" 2>/dev/null)" != "$$('$(PYTHON)' -c "$$version" 2>/dev/null || echo none)" ]; then \
		$(CHECK_PYTHON); \
		echo 'making .venv'; '$(PYTHON)' -m venv --clear $(VENV_FLAGS) .venv; \
	fi
	@echo 'installing the locked requirements into .venv'
	@$(call locked,packaging|setuptools|wheel)
	@$(PIP) install --quiet --require-hashes -r .venv/step.lock
	@$(call locked,immutables)
	@CC=true LDSHARED=true $(PIP) install --quiet --require-hashes --no-build-isolation -r .venv/step.lock
	@$(PIP) install --quiet --require-hashes --no-build-isolation -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@rm -f .venv/step.lock
	@touch $@

$(DEV): requirements-dev.lock | $(BASE)
	@echo 'installing the locked development requirements into .venv'
	@$(PIP) install --quiet --require-hashes --no-build-isolation -r requirements-dev.lock
	@touch $@

# What the executor plugin itself needs stands in requirements.lock.
$(WITH_SLURM): requirements-dev.lock | $(BASE)
	@echo 'installing the locked Slurm executor plugin into .venv'
	@$(call locked,snakemake-executor-plugin-slurm|snakemake-executor-plugin-slurm-jobstep,requirements-dev.lock)
	@$(PIP) install --quiet --require-hashes -r .venv/step.lock
	@rm -f .venv/step.lock
	@touch $@

.venv/.installed-torch-$(TORCH_VERSION): | $(BASE)
	@echo 'installing torch $(TORCH_VERSION) from $(or $(TORCH_INDEX),the default package index) into .venv'
	@$(PIP) install 'torch==$(TORCH_VERSION)' $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') || { \
		echo 'torch $(TORCH_VERSION) was not installed: try another index with TORCH_INDEX=<address> (empty: the default one), or TORCH=0 to measure in a container only.' >&2; exit 2; }
	@rm -f .venv/.installed-torch-*
	@touch $@

# One resolution holds for Python 3.11 to 3.14 on x86-64 and 64-bit Arm. UV_FLAGS=--upgrade takes newer releases.
UV_FLAGS ?=
LOCK := uv pip compile --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-annotate --no-header --quiet $(UV_FLAGS)
lock:
	@$(LOCK) --extra build pyproject.toml -o requirements.lock
	@$(LOCK) --extra build --extra dev --extra slurm -c requirements.lock pyproject.toml -o requirements-dev.lock
	@$(LOCK) -c requirements.lock docker/requirements.in -o docker/requirements.lock

clean:
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist workflow/apexbench.egg-info
	@find workflow tests -name __pycache__ -type d -prune -exec rm -rf {} +
