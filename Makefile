# make demo    set up, then explain what ships
# make test    set up, then run the tests
# The other targets: lint, types, docs, pages, gallery, check (all but the gallery), slow, test-oracles, test-ray, benchmark, format, dev, clean.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The name of a stamp holds a checksum of what was installed, so an environment is made anew only when that changes.
VERSIONS := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
USE := $(VENV)/ready-to-use-$(VERSIONS)
WORK := $(VENV)/ready-to-work-$(VERSIONS)
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

# Some processors announce bfloat16 instructions that they do not carry out; oneDNN must not try them.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE

.DEFAULT_GOAL := help
.PHONY: help venv dev demo test slow test-oracles test-ray lint format types docs pages gallery check benchmark clean

help:
	@sed -n 's/^# //; /make\|targets/p; 3q' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(USE): | $(BIN)/python
	@echo "Installing whyformer into $(VENV): a minute or two, the first time."
	$(INSTALL) .
	@touch $@

$(WORK): | $(BIN)/python
	@echo "Installing whyformer and its tools into $(VENV): a minute or two, the first time."
	$(INSTALL) '.[test,docs]'
	@touch $(USE) $@

venv: $(WORK)

dev: $(WORK)
	$(INSTALL) '.[dev]'
	$(BIN)/pre-commit install

demo: $(USE)
	$(BIN)/whyformer demo

test: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/pytest --numprocesses auto --dist loadfile

slow: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m slow

# Other libraries, each in an environment of its own, still say what tests/oracles has stored: NAME.txt is what to
# install, make_NAME*.py what to run there.
test-oracles: $(patsubst tests/oracles/%.txt,$(VENV)-oracles/%/checked,$(wildcard tests/oracles/*.txt))

$(VENV)-oracles/%/checked: tests/oracles/%.txt always
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	@for program in tests/oracles/make_$**.py; do $(@D)/bin/python $$program --check || exit 1; done

always:

# The tests of bulk that need Ray, also the slow ones, in an environment of their own.
test-ray: $(VENV)-ray/ready-$(VERSIONS)
	HF_HUB_OFFLINE=1 $(VENV)-ray/bin/pytest -m "" tests/bulk/test_ray.py

$(VENV)-ray/ready-$(VERSIONS):
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test,ray]'
	@touch $@

lint: $(WORK)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(WORK)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(WORK)
	$(BIN)/mypy

docs: $(WORK)
	$(BIN)/sphinx-build --fail-on-warning --quiet --builder html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The pages that come from the code; a test fails when one is stale.
pages: $(WORK)
	$(BIN)/python docs/generate_pages.py

gallery: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/python docs/gallery.py
	@echo "docs/gallery.md, docs/images/gallery"

check: lint types docs test

benchmark: $(USE)
	@for program in benchmarks/*.py; do $(BIN)/python $$program || exit 1; done

clean:
	rm -rf $(VENV) $(VENV)-oracles $(VENV)-ray docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
