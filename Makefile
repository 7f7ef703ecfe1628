# make certify: examine one kernel; make test: everything the repository promises, in about 13 minutes on two cores;
# make exhaustive: every property of every kernel at every dtype, and the tests that repeat at greater length what
# make test shows or draw from a fresh seed, which it prints; make validate: those, and a search for an answer of a
# sound kernel outside its bound, for about seven hours; make teeth: measure what the suite catches, for an hour and a
# half or more; make mutation: mutate truth, bounds and judgement, and count what the tests notice, for about an hour;
# make gpu: certify the kernels that are made for a GPU on one, run the tests that need it, and time them; without a GPU
# it ends with 2; make docs: build the documentation as docs/_build/index.html. Each sets up .venv first. make installs:
# install the checkout in fresh environments of each of PYTHONS, and with the oldest versions that it allows. make
# released: certify the released implementations in environments of their own, and compare with the page BASELINE.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# One thread for each worker of pytest-xdist, so that two cores do not fight over the work of one.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# The commands that tests start compile the suite once, also where the environment would have each compile it anew.
export PYTHONDONTWRITEBYTECODE :=
WORKERS ?= 2
PYTHONS ?= python3.11 python3.12 python3.13
# make validate SCHEDULER=tcp://host:8786 gives its sweeps to the workers of a Dask cluster; so do teeth and mutation.
SWEEPERS := $(if $(SCHEDULER),--scheduler $(SCHEDULER),--jobs $(WORKERS))

# Tests that draw by Hypothesis do so from fixed seeds in make test, and here from a fresh one, or from SEED.
ifndef SEED
SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
endif

# Who is done takes from who is not. A test that hangs is named, and the run goes on; the signal of real time belongs to
# the limits of calls under test.
PATIENCE = --dist worksteal --timeout $(1) --timeout-method thread

.PHONY: certify test examined lint types style docs exhaustive validate teeth mutation gpu installs released clean

certify: $(READY)
	$(BIN)/attn-spec certify numpy_tiled --output certificate.json --report report.html

# pyright keeps one core busy for a minute, and so runs beside the tests. These build the site themselves.
test: style
	$(MAKE) --no-print-directory --jobs 2 types examined

# A test that starts a command waits for it: one process more than there are workers keeps every core busy.
examined: $(READY)
	$(BIN)/python -m pytest -n $$(($(WORKERS) + 1)) $(call PATIENCE,600) --attn-brief properties tests

lint: style types
	$(MAKE) --no-print-directory docs

types: $(READY)
	$(BIN)/pyright

style: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist > /dev/null
	$(BIN)/check-wheel-contents dist
	# There reports, properties and implementations lie inside the package, as users have them.
	cd build/lib && $(abspath $(BIN))/lint-imports --config ../../pyproject.toml

# Built from nothing, since Sphinx warns of a page only when it reads the page.
docs: $(READY)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --write-all --builder html docs docs/_build

exhaustive: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) $(call PATIENCE,3600) -m "exhaustive or not exhaustive" properties
	@echo "make exhaustive SEED=$(SEED) draws the same again"
	$(BIN)/python -m pytest -n $(WORKERS) $(call PATIENCE,3600) --hypothesis-seed $(SEED) -m "exhaustive or hypothesis" tests

validate: exhaustive
	$(BIN)/python -m attn_spec.reports.proof.validation.bounds --problems 5000 $(SWEEPERS)
	$(BIN)/python -m attn_spec.reports.proof.validation.bounds --pass backward --problems 2000 $(SWEEPERS)
	$(BIN)/python -m attn_spec.reports.proof.adversary.report
	$(BIN)/python -m attn_spec.reports.proof.witnesses.report
	$(BIN)/python -m attn_spec.reports.proof.plain.examination $(SWEEPERS)
	$(BIN)/python -m attn_spec.reports.proof.validation.false_alarms --examples 50000 $(SWEEPERS)

teeth: $(READY)
	$(BIN)/attn-spec teeth --workers $(WORKERS) $(if $(SCHEDULER),--scheduler $(SCHEDULER)) --output teeth.html

mutation: $(READY)
	$(BIN)/python -m attn_spec.reports.proof.mutation.report --mutants 100 $(SWEEPERS)

# The tests run whatever the verdicts are, which decide on the exit code then; not where there is no GPU.
gpu: $(READY)
	$(BIN)/attn-spec gpu --output reports/gallery/gpu.html; code=$$?; test $$code -ne 2 || exit 2; \
		$(BIN)/python -m pytest -m gpu tests && exit $$code

installs: $(READY)
	$(BIN)/python tests/installations.py $(PYTHONS)

released: $(READY)
	$(BIN)/python -m attn_spec.reports.released.report --output reports/gallery/released.html --workers $(WORKERS) \
		$(if $(BASELINE),--baseline $(BASELINE))

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable .
	touch $@

clean:
	rm -rf build dist docs/_build docs/reference certificate.json report.html report.md report.json statistics.html \
		statistics.md statistics.json teeth.html teeth.md teeth.json gpu.html gpu.md gpu.json .attn-spec
