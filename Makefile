# Two commands for a fresh machine (Rust, Python 3.10 or later with venv, and the package registries):
#   make demo   build, then analyse a real eight-rank dump
#   make test   everything that a fresh machine can run
# And: make lint, make wheel, make bench (speed tables), make fuzz (ten minutes).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find rust python -name '*.rs' -o -name '*.json' -path '*rust*' -o -name 'Cargo.toml') Cargo.toml pyproject.toml

.PHONY: demo test lint rust-test python-test bench fuzz wheel clean

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
	cargo test --workspace --features ovf-core/bench --quiet

python-test: $(VENV)/.built
	$(BIN)/python -m pytest tests

lint: $(VENV)/.built
	cargo fmt --all --check
	cargo clippy --workspace --features ovf-core/bench --all-targets --quiet -- -D warnings
	$(BIN)/ruff check python tests bench
	$(BIN)/ruff format --check python tests bench
	$(BIN)/mypy

# Makes its dumps once (11 GB in the temporary folder); `make bench BENCH="step16 --repeat 5"` for one table.
bench: $(VENV)/.built
	$(BIN)/python bench/run.py $(BENCH)

# Ten minutes for each of four checks; FUZZ_SECONDS for another time.
fuzz:
	OVF_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) cargo test --release -p ovf-core --features bench --test fuzz -- --nocapture --test-threads 2

wheel: $(VENV)/.tools
	$(BIN)/maturin build --release --out dist

clean:
	rm -rf target $(VENV) dist
