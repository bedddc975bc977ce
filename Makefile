# `make demo` and `make test` set up everything themselves, in .venv.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# mypy does not follow setuptools' package-dir: it is shown the folders under their import names.
TYPED := build/typed
FOLDERS := ir passes targets autotune runtime

.PHONY: demo test check lint types bench clean

demo: $(VENV)/.installed
	$(PY) -m speccc.demo

test: $(VENV)/.installed-dev lint types check

check: $(VENV)/.installed-dev
	$(PY) -m speccc.models
	$(PY) -m pytest -rs -q

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

types: $(VENV)/.installed-dev
	rm -rf $(TYPED) && mkdir -p $(TYPED)/speccc
	ln -s $(addprefix $(CURDIR)/,$(wildcard speccc/*)) $(TYPED)/speccc/
	ln -s $(addprefix $(CURDIR)/,$(FOLDERS)) $(TYPED)/speccc/
	cd $(TYPED) && MYPYPATH=. $(CURDIR)/$(VENV)/bin/mypy --strict --config-file $(CURDIR)/pyproject.toml -p speccc

bench: $(VENV)/.installed-bench
	$(PY) -m speccc bench "$$($(PY) -m speccc.models)" --against llama.cpp

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info
