# Two commands: `make train` and `make test`. Both make the environment first, in .venv, if it is not there yet.

PYTHON ?= python3
JOBS ?= 2
# A file of exact versions for pip, such as .ci/constraints.txt; empty: the newest that pyproject.toml allows.
CONSTRAINTS ?=
BIN := .venv/bin
# Named, because ruff would also format the examples in Markdown, where comments are aligned for readers.
SOURCES := src tests benchmarks docs/example_sections.py docs/make_screenshots.py docs/notebook_pages.py docs/notebooks examples
INSTALLED := .venv/.installed
# Debian installs it together with the browser (package chromium-driver).
DRIVER := chromedriver

# Tests run side by side, one thread each: two that both use every core only stand in each other's way.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help train test lint docs results format clean

help:  ## say what there is
	@echo "make COMMAND, one of:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) (makes the environment), JOBS=$(JOBS) (tests side by side)"

# The stamp is younger than pyproject.toml once everything in it is installed.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@echo "== environment: .venv, from $$($(PYTHON) --version), with everything a developer needs (about 6 GB: torch)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS:%=--constraint %) --editable ".[dev]"
	@touch $@

train: $(INSTALLED)  ## train GSP, and GAP beside it, on glyph collages: minutes on a CPU, no download
	@echo "== training: GSP and GAP on glyph collages; ends with a table and runs/.../report.html"
	env -u OMP_NUM_THREADS $(BIN)/gspool train

test: lint  ## check format, style, types and imports; run tests and doctests
	@echo "== tests and the examples in docstrings, $(JOBS) at a time"
	@command -v $(DRIVER) >/dev/null || echo "== no $(DRIVER) here: tests of the web page are left out"
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not gpu and not slow$(if $(shell command -v $(DRIVER)),, and not browser)"
	@echo "== all passed"

lint: $(INSTALLED)  ## only the checks that do not run the code
	@echo "== format, style"
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	@echo "== types"
	$(BIN)/mypy --num-workers $(JOBS)
	@echo "== imports point one way"
	$(BIN)/lint-imports

docs: $(INSTALLED)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: $(INSTALLED)  ## put the numbers of results/ into README.md and docs/
	$(BIN)/gspool report

format: $(INSTALLED)  ## format the code and mend what can be mended by itself
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean:  ## remove what was built; the environment stays
	rm -rf site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
