# make install  set up .venv; a second call installs nothing. All targets below except `down` and `clean` start with this
# make train    train PPO on CartPole-v1 and register the model; add settings with ARGS: make train ARGS="seed=3"
# make test     run all checks and all tests that are not marked heavy, about 15 minutes on two cores; ALL=1 or
#               `make test-all` also runs the heavy tests, and SOAK=1 make test-all every test; add arguments for pytest
#               with ARGS: make test ARGS="-k resume"
# make quick    run format, lint, types and fast unit tests, about 2 minutes on two cores
# make check    run format, lint, types, import layers, docstrings, spelling, documentation
# make soak     kill and resume runs 20 times in every environment and mode, some hours; an interrupted soak continues;
#               writes docs/results/exactness.md; make soak ARGS="--only Hopper --kills 5"
# make bench    compare the speed of the train stage with Stable-Baselines3, sb3-contrib and SheepRL, some hours; installs
#               them in .shepherd/peers; writes docs/results/speed.md; make bench ARGS="--only a c --repeats 1"
# make bench-batched  compare PPO in batched environments with rl8, which is installed in .shepherd/rl8; writes
#               docs/results/batched.md
# make bench-sweeps  compare sweeps with RL Zoo3, some minutes; writes docs/results/sweeps.md
# make validate train every preset on five seeds and compare the returns with thresholds, some hours; finished runs are
#               reused; writes a page per algorithm in docs/results; make validate ARGS="--only ppo_cartpole"
# make validate-rl8  train rl8's examples with rl8 and with PPO, some minutes; writes docs/results/learning_rl8.md
# make docs     build the documentation site in build/site; a broken link is an error
# make up       start Prefect and MLflow servers, pools, deployments and workers; running ones are kept; DB=postgres uses
#               a PostgreSQL server of the project, from the system's packages
# make down     stop everything that `make up` has started; trainings write a checkpoint first
# make clean    remove .venv, caches and build files; CLEAN_RUNS=1 also removes the runs
#
# Python version, torch and package index (pip's variables, such as PIP_INDEX_URL, also apply):
#   make install PYTHON=python3.12
#   make install TORCH=torch==2.13.0 TORCH_INDEX=https://download.pytorch.org/whl/cu130
# Without TORCH_INDEX, machines without an NVIDIA GPU get PyTorch's CPU build; TORCH_INDEX=pip uses pip's default.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install train check test test-all tests tests-quick quick soak bench bench-batched bench-sweeps validate validate-rl8 docs up down clean

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
# Four workers for two cores, because tests often wait for processes. Each worker runs whole files, so that the servers
# and databases of a file are started once.
tests = pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(if $(ALL),,-m "not heavy or always") $(ARGS)
QUICK := $(addprefix tests/rlcore/,algorithms functional nn optim data config store system) tests/golden \
    $(addprefix tests/flows/,cli compare report)
tests-quick = pytest --quiet --numprocesses 2 --dist loadfile -m "not slow and not heavy" $(QUICK) $(ARGS)

# Run all checks, two at a time, also if one fails.
PAIRED = $(MAKE) --no-print-directory --keep-going --jobs 2
check: install
	@$(PAIRED) --output-sync=target $(CHECKS:%=check-%) || \
	    { echo "make check failed; see the errors above ($(BIN)/ruff format . fixes the format)" >&2; exit 1; }

test: check
	@$(MAKE) --no-print-directory tests

test-all:
	@$(MAKE) --no-print-directory test ALL=1

quick: install
	@$(PAIRED) check-types tests-quick check-lint check-format || { echo "make quick failed; see the errors above" >&2; exit 1; }

$(CHECKS:%=check-%) tests tests-quick:
	@begin=$$SECONDS; echo "$@: $($@)"; PATH="$(CURDIR)/$(BIN):$$PATH" $($@); code=$$?; echo "$@: $$((SECONDS - begin)) s"; exit $$code

docs: install
	@$(MAKE) --no-print-directory check-docs && echo "the site is in build/site; open build/site/index.html"

soak: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.kills.soak $(ARGS)

# Separate Python environments, because SheepRL, RL Zoo3 and rl8 need other versions of packages. Arguments of `peer`: folder,
# program, packages.
PEERS := .shepherd/peers
ZOO := .shepherd/zoo
RL8 := .shepherd/rl8
peer = test -x $(1)/bin/$(2) || { python3 -m venv $(1) && $(1)/bin/pip install -q $(if $(TORCH),$(TORCH),torch==2.13.0) && \
    $(1)/bin/pip install -q $(3); }
get_rl8 = { $(call peer,$(RL8),rl8,rl8==1.0.0); } && { test -d $(RL8)/rl8-1.0.0 || { \
    $(RL8)/bin/pip download -q --no-deps --no-binary :all: -d $(RL8) rl8==1.0.0 && \
    tar xzf $(RL8)/rl8-1.0.0.tar.gz -C $(RL8); }; }
with_rl8 = --rl8 $(RL8)/bin/python --examples $(RL8)/rl8-1.0.0/examples

bench: install
	@$(call peer,$(PEERS),sheeprl,stable-baselines3 sb3-contrib sheeprl==0.8.4 'setuptools<81' 'mujoco<4' 'gymnasium[box2d]' ale-py dm-control)
	$(BIN)/python -m benchmarks.peers --peers $(CURDIR)/$(PEERS)/bin/python $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.games --peers $(CURDIR)/$(PEERS)/bin/python)

bench-batched: install
	@$(get_rl8)
	$(BIN)/python -m benchmarks.batched $(with_rl8) $(ARGS)

validate-rl8: install
	@$(get_rl8)
	$(BIN)/python -m benchmarks.learning_rl8 $(with_rl8) $(ARGS)

bench-sweeps: install
	@$(call peer,$(ZOO),rl_zoo3,rl_zoo3 pandas)
	$(BIN)/python -m benchmarks.sweeps --zoo $(CURDIR)/$(ZOO)/bin/python --out docs/results/sweeps.md $(ARGS)

validate: install
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.validate $(ARGS)
	$(if $(ARGS),,OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.trading)
	$(if $(ARGS),,OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.drawn_lengths)
	$(if $(ARGS),,OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.exploration)

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
