#!/usr/bin/env bash
# Builds the release binary and prints every figure: benches/run.sh [figures.py options, e.g. --reps 5 --only append]
# Set FLINK=0 to leave the peer out. Generated events (11 GB), Flink and work files live in .cache/bench.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=$PWD/.cache/bench
mkdir -p "$cache"
sh scripts/fetch-duckdb.sh
cargo build --release --quiet -p millstream
binary=${CARGO_TARGET_DIR:-target}/release/millstream
flink=()
if [ "${FLINK:-1}" != 0 ]; then
  lib=$cache/flink/pyflink/lib
  if ! command -v javac > /dev/null; then
    echo "no JDK (17 is known to work): the comparison with Flink is left out" >&2
  else
    if [ ! -d "$lib" ]; then
      echo "fetching Flink 2.3.0 from PyPI (329 MB, once)" >&2
      mkdir -p "$cache/flink"
      ls "$cache"/flink/*.whl > /dev/null 2>&1 ||
        python3 -m pip download --quiet --no-deps --dest "$cache/flink" apache-flink-libraries==2.3.0
      python3 -m zipfile -e "$cache"/flink/*.whl "$cache/flink/unpacked"
      mv "$cache/flink/unpacked/pyflink" "$cache/flink/pyflink"
      rm -rf "$cache/flink/unpacked"
    fi
    flink=(--flink "$lib")
  fi
fi
exec python3 benches/figures.py --bin "$binary" --cache "$cache" "${flink[@]}" "$@"
