# make train | test | test-all | lint | docs | dist. Another interpreter: make PYTHON=python3.12 train
PYTHON ?= python3
WORKDIR ?= runs/quickstart
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder --durations=20
# Which tests make test runs, by their marks and places: make test MARK=slow TESTS=tests/model
MARK ?= not slow
TESTS ?=
# Which extras of pyproject.toml make reference installs.
EXTRAS ?= reference

.PHONY: help train test test-all soak lint bench reproduce balance ablations reference docs dist format clean

help:
	@echo "make train   train a small packed BERT (a few minutes) into $(WORKDIR)"
	@echo "make test    run the quick tests (5 to 17 minutes)"
	@echo "make test-all  run every test"
	@echo "make soak    kill 20 runs at random moments, resume them, compare (minutes)"
	@echo "make lint    check style, imports and types"
	@echo "make bench   time packer, loader, inference and training, beside peers that are installed"
	@echo "make balance  how long devices wait, packed and un-padded (5 minutes), into results/balance"
	@echo "make ablations  train without the mask, the position reset, both (14 minutes)"
	@echo "make reproduce  every table and figure of the packing paper, into results/REPORT.md"
	@echo "make reference  install PyTorch and transformers, which more tests compare with"
	@echo "make docs    build the site of docs/ into build/site"
	@echo "make dist    build what is committed into dist/, check it, try the wheel"

train: .venv/installed
	@$(BIN)/python train.py --config=configs/quickstart.py --workdir=$(WORKDIR)

test: .venv/installed
	@$(PYTEST) -m "$(MARK)" $(TESTS)

test-all: .venv/installed
	@$(PYTEST)

soak: .venv/installed
	@$(BIN)/python -m tests.soak

lint: .venv/installed
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo --cache-dir .cache/imports && $(BIN)/mypy .

bench: .venv/installed
	@mkdir -p results
	@$(BIN)/python -m benchmarks.packing --picture results/packing.png --json results/packing.json
	@$(BIN)/python -m benchmarks.pipeline --json results/pipeline.json
	@$(BIN)/python -m benchmarks.inference --json results/inference.json
	@$(BIN)/python -m benchmarks.training --json results/training.json
	@$(BIN)/python -m benchmarks.speedup --json results/speedup.json

balance: .venv/installed
	@$(BIN)/python -m experiments.load_balance --quick --workdir=results/balance

ablations: .venv/installed
	@$(BIN)/python -m launch.sweep configs/sweeps/ablations.py --jobs=2

# With QUICK=--quick less of all; with DATA=FOLDER on the real data there, too.
reproduce: .venv/installed
	@$(BIN)/python -m experiments.reproduce $(QUICK) $(if $(DATA),--data $(DATA))

# A CPU build of PyTorch is enough.
reference: .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock \
	  $$($(BIN)/python -c 'import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*(x for name in sys.argv[1:] for x in extras[name]))' $(EXTRAS))

docs: EXTRAS = docs
docs: reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in build/site. To read and search it: $(BIN)/python -m mkdocs serve"

dist: EXTRAS = dist
dist: reference
	@PYTHON=$(CURDIR)/$(BIN)/python .ci/dist

format: .venv/installed
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf .cache

# If there is no .venv, it is made; one that is there is used.
.venv/installed: requirements.txt requirements.lock | .venv
	@echo "Installing requirements.txt into .venv (about a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -c requirements.lock
	@touch $@

.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
	  "Expected Python 3.11 or newer; '$(PYTHON)' is missing or older. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 2; }
