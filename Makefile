# `make demo` and `make test` set up everything themselves, in .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Some tests compare with PyTorch. Only its CPU build is installed by itself; where no index has one
# they are skipped, unless `make test TORCH=torch==2.13.0` allows the build of gigabytes, as CI does.
TORCH ?= torch==2.13.0+cpu
# mypy does not follow setuptools' package-dir: it is shown the folders under their import names.
TYPED := build/typed
# Beside mypy, so that what it has found out of our 300 files and their packages is kept as long.
TYPES_KNOWN := $(CURDIR)/$(VENV)/mypy-cache
FOLDERS := ir passes targets autotune runtime

.PHONY: demo test check lint types bench clean

demo: $(VENV)/.installed
	$(PY) -m speccc.demo

test: $(VENV)/.installed-dev lint types check

check: $(VENV)/.installed-dev
	$(PY) -m speccc.models
	$(PY) -m pytest -rs -q -n auto --maxprocesses 4 --dist loadfile \
	  --no-loadscope-reorder

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: $(VENV)/.installed-dev
	rm -rf $(TYPED) && mkdir -p $(TYPED)/speccc
	ln -s $(addprefix $(CURDIR)/,$(wildcard speccc/*)) $(TYPED)/speccc/
	ln -s $(addprefix $(CURDIR)/,$(FOLDERS)) $(TYPED)/speccc/
	cd $(TYPED) && MYPYPATH=. $(CURDIR)/$(VENV)/bin/mypy --strict --cache-dir $(TYPES_KNOWN) \
	  --config-file $(CURDIR)/pyproject.toml -p speccc

bench: $(VENV)/.installed-bench
	$(PY) -m speccc bench "$$($(PY) -m speccc.models)" --against llama.cpp

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	$(PIP) '$(TORCH)' 2>/dev/null \
	  || { test -n "$$CI" && $(PIP) -e '.[torch]'; } \
	  || echo 'note: no $(TORCH) here; tests that need it are skipped'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[bench]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info
