# Two commands for a fresh machine (Rust, Python 3.10 or later with venv, and the package registries):
#   make demo   build, then analyse a real eight-rank dump
#   make test   everything that a fresh machine can run
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find rust python -name '*.rs' -o -name '*.json' -path '*rust*' -o -name 'Cargo.toml') Cargo.toml pyproject.toml

.PHONY: demo test lint rust-test python-test wheel clean

demo: $(VENV)/.built
	$(BIN)/ovf check examples/tp2_pp4 || test $$? -eq 1

test: rust-test python-test

$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --group dev
	if command -v chromium >/dev/null; then $(BIN)/python -m pip install --quiet --group browser; fi
	touch $@

$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	PIP_QUIET=1 $(BIN)/maturin develop --release --quiet
	touch $@

rust-test:
	cargo test --workspace --quiet

python-test: $(VENV)/.built
	$(BIN)/python -m pytest tests

lint: $(VENV)/.built
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check python tests
	$(BIN)/ruff format --check python tests
	$(BIN)/mypy

wheel: $(VENV)/.tools
	$(BIN)/maturin build --release --out dist

clean:
	rm -rf target $(VENV) dist
