#!/usr/bin/env bash
# Embedded stores for keyed state, side by side: benches/store/run.sh DIR (10 GB free, a quarter of an hour).
# Workloads: b = 10 M new keys in epochs of 500 k, c = 2 M random updates of them after a reopen, a = 4 M events,
# Zipf over 200 k keys. `die=1` ends with SIGKILL; `open` then shows what a reopen takes.
set -uo pipefail
cd "$(dirname "$0")"
dir=${1:?usage: run.sh DIR}
cargo build --release --quiet || exit 1
bench=${CARGO_TARGET_DIR:-target}/release/storebench
tuned="workers=1 pin=2 memtable=32 journal=128"
phase() { "$bench" "$@" 2> /dev/null; rm -f "$dir"/*.copy; }
rm -rf "$dir"; mkdir -p "$dir"
phase null "$dir/null" b
phase null "$dir/null" a
for setting in "ingest=100000 cache=64" "cache=32"; do        # fjall: sorted tables, then batches
  rm -rf "$dir/fjall"
  phase fjall "$dir/fjall" b die=1 $tuned $setting
  phase fjall "$dir/fjall" open $tuned $setting
  phase fjall "$dir/fjall" c $tuned $setting
  phase fjall "$dir/fjall" compact $tuned $setting
done
phase fjall "$dir/fjall-a" a $tuned cache=32
phase redb "$dir/redb" b die=1 cache=256
phase redb "$dir/redb" open cache=256
phase redb "$dir/redb" c cache=256
phase redb "$dir/redb" compact cache=256
phase redb "$dir/redb-a" a cache=256
phase log "$dir/log" b die=1 sort=0
phase log "$dir/log" open sort=0
phase log "$dir/log" c sort=0
phase log "$dir/log-a" a sort=0
rm -rf "$dir"
