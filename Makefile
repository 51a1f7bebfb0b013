# Every command goes through `.venv/bin/python -m`, by a relative path: it works in folders with a space in their name.
python := .venv/bin/python
ready  := .venv/.ready
engines := .venv/.engines

.DEFAULT_GOAL := help
# What was compiled is kept, whatever the environment says: without it each import of torch takes 10 s of CPU, not 4.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup run test test-full together check style types layers packages bench pages docs site papers matrix clean

help:       ## show what make can do
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS='	' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

setup: $(ready)  ## make .venv with covey and everything it needs

# Without compiling: of 19,000 files a few thousand are ever imported, which compiles them.
install := $(python) -m pip install --quiet --no-compile -c constraints.txt

$(ready): pyproject.toml constraints.txt
	test -x $(python) || python3 -m venv .venv
	$(install) -e '.[dev,data]'
	@touch $(ready)

$(engines): pyproject.toml constraints.txt
	test -x $(python) || python3 -m venv .venv
	$(install) -e '.[dev,data,mpi,ray,spark,tensorboard,mlflow,wandb,page,serve,federated,site,tune,export,remote,cipher]'
	@touch $(ready) $(engines)

run: setup  ## compare five strategies on the digits, with two workers
	$(python) -m covey compare examples/digits.py --workers 2 --until 'accuracy>=0.95' --report report.html

# Three at a time, but for what watches the clock on real processes; tests/test_house.py checks where that is.
clock := tests/real tests/clusters tests/safety

test:  ## lint, types, layers and the quick tests
	@$(MAKE) --no-print-directory -j 2 $(engines) packages
	@$(MAKE) --no-print-directory -j 2 style layers
	@$(MAKE) --no-print-directory -j 2 types together
	$(python) -m pytest -m 'not full and alone' $(clock)

# More at a time than cores, and types beside them, as some tests wait for processes that they have started.
together: setup
	$(python) -m pytest -m 'not full and not alone' -n 3 --dist loadgroup

test-full:  ## the same with the slow tests
	@$(MAKE) --no-print-directory -j 2 $(engines) packages
	@$(MAKE) --no-print-directory -j 3 check
	$(python) -m pytest -m 'not alone' -n 2 --dist loadgroup
	$(python) -m pytest -m 'alone' $(clock)

check: style types layers

style: setup
	$(python) -m ruff check
	$(python) -m codespell_lib README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md docs website src examples benchmarks

types: setup
	$(python) -m mypy

layers: setup
	$(python) -c 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_logo=True))'

# What tests want of Debian, where that is possible: real data, Java for Spark, iproute2 for the lab,
# a browser for the page, etcd for a second launcher, SLURM for jobs. They skip without.
debian := dataset-fashion-mnist openjdk-17-jre-headless iproute2 chromium etcd-server slurmctld slurmd
packages:
	@if ! dpkg -s $(debian) >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  timeout 240 sh -c 'apt-get -qq install -y $(debian) || \
	    { apt-get -qq update && apt-get -qq install -y $(debian); }' >/dev/null 2>&1 || true; \
	fi

bench: $(engines)  ## run the benchmarks
	$(python) -m benchmarks

pages: setup  ## write docs/strategies.md and docs/compatibility.md from what the strategies' entries declare
	$(python) -m tests.pages

docs: setup  ## run every example in the docs
	$(python) -m pytest -m 'full or not full' tests/test_docs.py

site: $(engines)  ## build the documentation as a web site, in build/site
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --quiet --strict --config-file website/mkdocs.yml

papers: $(engines)  ## write docs/papers.md: the surveys' tables again, scaled to this machine
	$(python) -m benchmarks.papers

# With what PYTHON has: engines, page and privacy are left out where their packages may be missing.
PYTHON ?= $(python)
optional := clusters page privacy report test_docs.py test_site.py test_notebooks.py safety/test_lint.py run/test_options.py benchmarks
optional += engines/test_cipher.py federated/test_private_service.py federated/test_secure_rounds.py tune/test_tenants.py
matrix:  ## the tests that need no optional package, with another Python: make matrix PYTHON=python3.12
	PYTHONPATH="$(CURDIR)/src:$(CURDIR):$$PYTHONPATH" $(PYTHON) -c 'import platform, torch; print("Python", platform.python_version(), "torch", torch.__version__, platform.machine())'
	COVEY_MATRIX=1 PYTHONPATH="$(CURDIR)/src:$(CURDIR):$$PYTHONPATH" $(PYTHON) -m pytest -m 'not full and not alone' -n auto --dist loadgroup -q $(patsubst %,--ignore=tests/%,$(optional))

clean:  ## remove .venv, caches and builds
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
