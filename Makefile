# make train    set-up, then the main job: PPO on CartPole-v1 to a registered model; more arguments: make train ARGS="seed=3"
# make test     set-up, then every check and all tests that are not marked heavy: about 12 minutes on two cores;
#               ALL=1, or make test-all: every test; more arguments for pytest: make test ARGS="-k resume"
# make quick    set-up, then format, lint, types and fast unit tests: about 2 minutes on two cores
# make soak     set-up, then hours of it: every environment and mode killed 20 times and resumed; an interrupted soak goes
#               on; writes docs/results/exactness.md; more arguments: make soak ARGS="--only Hopper --kills 5"
# make bench    set-up, then the train stage beside Stable-Baselines3, sb3-contrib and SheepRL, which get an environment of
#               their own; hours; writes docs/results/speed.md; some rows: make bench ARGS="--only a c --repeats 1"
# make bench-sweeps  set-up, then sweeps beside RL Zoo3: minutes; writes docs/results/sweeps.md
# make validate set-up, then every preset on five seeds against what it must reach; hours; what is trained already is not
#               trained again; writes a page an algorithm in docs/results; more arguments: make validate ARGS="--only ppo_cartpole"
# make check    set-up, then format, lint, types, import layers, docstrings, spelling, documentation
# make docs     set-up, then the documentation site, into build/site; a broken link is an error
# make install  set-up alone, into .venv; a second call installs nothing
# make up       set-up, then Prefect and MLflow servers, pools, deployments and workers; what runs already is kept;
#               DB=postgres: on a PostgreSQL of its own, from the system's packages
# make down     end all of that; trainings write a checkpoint first
# make clean    remove what these made; CLEAN_RUNS=1 removes the runs too
#
# Which Python, torch and package index (pip's own variables, such as PIP_INDEX_URL, are obeyed as well):
#   make install PYTHON=python3.12
#   make install TORCH=torch==2.13.0 TORCH_INDEX=https://download.pytorch.org/whl/cu130
# Without TORCH_INDEX a machine without an NVIDIA GPU gets PyTorch's CPU build; TORCH_INDEX=pip takes pip's default.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install train check test test-all tests tests-quick quick soak bench bench-sweeps validate docs up down clean

export PYTHON TORCH TORCH_INDEX

BIN := .venv/bin
ARGS ?=

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install:
	@.ci/install

train: install
	@$(BIN)/shepherd train exp=ppo $(ARGS)

CHECKS := format lint imports docstrings spelling types docs
check-format = ruff format --check --quiet .
check-lint = ruff check --quiet .
check-imports = lint-imports --no-cache
check-docstrings = pydoclint --quiet rlcore flows
check-spelling = codespell
check-types = pyright --warnings
check-docs = NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict
# Four workers for two cores, because tests wait for processes much of their time. Whole files to each: a file's
# servers and databases are started once.
tests = pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(if $(ALL),,-m "not heavy or always") $(ARGS)
QUICK := $(addprefix tests/rlcore/,algorithms functional nn optim data config store system) tests/golden \
    $(addprefix tests/flows/,cli compare report)
tests-quick = pytest --quiet --numprocesses 2 --dist loadfile -m "not slow and not heavy" $(QUICK) $(ARGS)

# All of these run, whatever the others find, two at a time.
PAIRED = $(MAKE) --no-print-directory --keep-going --jobs 2
check: install
	@$(PAIRED) --output-sync=target $(CHECKS:%=check-%) || \
	    { echo "make check: something above wants repair; $(BIN)/ruff format . is a start" >&2; exit 1; }

test: check
	@$(MAKE) --no-print-directory tests

test-all:
	@$(MAKE) --no-print-directory test ALL=1

quick: install
	@$(PAIRED) check-types tests-quick check-lint check-format || { echo "make quick: something above wants repair" >&2; exit 1; }

$(CHECKS:%=check-%) tests tests-quick:
	@begin=$$SECONDS; echo "$@: $($@)"; PATH="$(CURDIR)/$(BIN):$$PATH" $($@); code=$$?; echo "$@: $$((SECONDS - begin)) s"; exit $$code

docs: install
	@$(MAKE) --no-print-directory check-docs && echo "the site is in build/site; open build/site/index.html"

soak: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.kills.soak $(ARGS)

# Environments of their own, for SheepRL and RL Zoo3 want other versions of Gymnasium. Folder, its program, packages.
PEERS := .shepherd/peers
ZOO := .shepherd/zoo
peer = test -x $(1)/bin/$(2) || { python3 -m venv $(1) && $(1)/bin/pip install -q $(if $(TORCH),$(TORCH),torch==2.13.0) && \
    $(1)/bin/pip install -q $(3); }

bench: install
	@$(call peer,$(PEERS),sheeprl,stable-baselines3 sb3-contrib sheeprl==0.8.4 'setuptools<81' 'mujoco<4' 'gymnasium[box2d]' ale-py dm-control)
	$(BIN)/python -m benchmarks.peers --peers $(CURDIR)/$(PEERS)/bin/python $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.games --peers $(CURDIR)/$(PEERS)/bin/python)

bench-sweeps: install
	@$(call peer,$(ZOO),rl_zoo3,rl_zoo3 pandas)
	$(BIN)/python -m benchmarks.sweeps --zoo $(CURDIR)/$(ZOO)/bin/python --out docs/results/sweeps.md $(ARGS)

validate: install
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.validate $(ARGS)

up: install
	@$(BIN)/python -m flows.workers.up up $(DB)

down:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m flows.workers.up down; fi

clean:
	rm -rf .venv .shepherd build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find rlcore $(wildcard flows conf tests benchmarks) -type d -name __pycache__ -prune -exec rm -rf {} +
ifdef CLEAN_RUNS
	rm -rf runs
else
	@if [ -d runs ]; then echo "runs/ is kept; make clean CLEAN_RUNS=1 removes it"; fi
endif
