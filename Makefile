# Two commands matter: `make demo` shows what Millstream does, `make test` runs all that CI runs. Both fetch what they
# need; a fresh machine has to have Rust, make and npm. Without npm set BUNDLED=1: DuckDB is compiled from source then
# (a C++ compiler and about a quarter of an hour).

CARGO ?= cargo
ifeq ($(BUNDLED),1)
features := --features millstream/bundled
endif

.PHONY: help demo test bench bigquery-live fuzz build fmt lint check-arrows check-fuzz check-tidy schema docs duckdb

help:
	@echo "make demo    run a pipeline over shipped real events and show what came out of it"
	@echo "make test    everything that CI runs"
	@echo "make build   the release binary, target/release/millstream"
	@echo "make bench   measure speed and memory"
	@echo "make bigquery-live PROJECT=…    try BigQuery itself, with your credentials"
	@echo "make fuzz    fuzz every decoder and the checkpoint's bytes, 60 s each"

# DEMO='--seconds 60 --rate 10000', or DEMO= to run until Ctrl-C.
DEMO ?= --seconds 20
demo: duckdb
	$(CARGO) run -q --release --locked -p millstream $(features) -- demo $(DEMO)

build: duckdb
	$(CARGO) build --release --locked -p millstream $(features)

test: check-tidy duckdb check-arrows fmt lint check-fuzz
	$(CARGO) test --workspace --locked $(features)

fmt:
	$(CARGO) fmt --all --check

lint: duckdb
	$(CARGO) clippy --workspace --all-targets --locked $(features) -- -D warnings

check-arrows:
	sh scripts/check-arrows

# The fuzz targets are a workspace of their own, which a change elsewhere can break. Their library is C++.
check-fuzz:
	@if command -v c++ > /dev/null; then $(CARGO) check -q --locked --manifest-path fuzz/Cargo.toml; \
	else echo "check-fuzz: left out, there is no C++ compiler"; fi

check-tidy:
	sh scripts/check-tidy

# The prebuilt DuckDB library, into .cache/duckdb.
duckdb:
ifneq ($(BUNDLED),1)
	@sh scripts/fetch-duckdb.sh
endif

# The config's JSON Schema and the README's table of keys, after a change of the config.
schema: duckdb
	$(CARGO) run -q --locked -p millstream $(features) -- schema > config.schema.json.new
	mv config.schema.json.new config.schema.json
	UPDATE_README=1 $(CARGO) test -q --locked -p millstream $(features) --bin millstream the_readme_knows_every_key

# The table of docs/metrics.md, after a change of the metrics.
docs:
	UPDATE_DOCS=1 $(CARGO) test -q --locked -p millstream-server --test server the_docs_know_every_metric

bench:
	bash benches/run.sh $(BENCH)

# Against BigQuery itself: PROJECT=…, and DATASET=, LOCATION=, BUCKET= (for load jobs) if you like; left out without credentials.
bigquery-live: build
	PROJECT=$(PROJECT) DATASET=$(or $(DATASET),millstream_live) LOCATION=$(or $(LOCATION),US) BUCKET=$(BUCKET) sh scripts/bigquery-live

fuzz:
	sh scripts/fuzz
