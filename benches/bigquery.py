#!/usr/bin/env python3
"""Figures of the BigQuery sink, against the emulator in a process of its own.

write      files → append, exactly-once and at-least-once: CPU-s per million of the pipeline's process, events/s, peak memory; counts are checked
tables     --tables tables in one pipeline, into append exactly-once: memory, streams made, connections
evolution  20 columns added one by one to 5 tables while --rate events/s flow: no stop, no loss, NULL before and values after
latency    Pub/Sub, or a followed file, → BigQuery at --rate events/s: from published to seen by a query, exactly-once at 1 s and at-least-once

    python3 benches/bigquery.py --bin target/release/millstream --events FILE [--only write tables evolution latency]
"""

import argparse
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--bin", required=True)
parser.add_argument("--events", help="generated events, one envelope a line")
parser.add_argument("--only", nargs="*", default=["write", "tables", "evolution", "latency"])
parser.add_argument("--work", default="/tmp/millstream-bigquery-bench")
parser.add_argument("--tables", type=int, default=2000)
parser.add_argument("--rate", type=int, default=3000)
parser.add_argument("--seconds", type=int, default=40)
parser.add_argument("--key-events", default=None)
args = parser.parse_args()
BIN = str(pathlib.Path(args.bin).resolve())
WORK = pathlib.Path(args.work)
TABLES = {"public.orders": {"key": ["order_id"]}, "public.customers": {"key": ["customer_id"]}}
if args.events:
    truth = pathlib.Path(args.events + ".truth.json")
FAILED = []


def figure(name, seen, goal, good):
    print(f"{'ok    ' if good else 'MISSED'} {name}: {seen} (goal: {goal})", flush=True)
    if not good:
        FAILED.append(name)


class Emulator:
    def __init__(self, *words):
        ports = WORK / "ports"
        ports.unlink(missing_ok=True)
        words = ["emulator", "bigquery", "--rest", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--gcs", "127.0.0.1:0", "--port-file", str(ports), *words]
        self.process = subprocess.Popen([BIN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(ports.read_text().split() if ports.exists() else []) < 2:
            time.sleep(0.02)
        self.rest, self.grpc = (f"127.0.0.1:{port}" for port in ports.read_text().split()[:2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def query(self, sql):
        body = json.dumps({"query": sql, "useLegacySql": False, "maxResults": 100000}).encode()
        url = f"http://{self.rest}/bigquery/v2/projects/bench/queries"
        request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
        try:
            answer = json.load(urllib.request.urlopen(request))
        except urllib.error.HTTPError as e:
            raise RuntimeError(e.read().decode()) from None
        return [[cell["v"] for cell in row["f"]] for row in answer.get("rows", [])]

    def sink(self, delivery, **more):
        endpoints = {"rest": f"http://{self.rest}", "grpc": f"http://{self.grpc}"}
        return {"type": "bigquery", "name": "bigquery", "project": "bench", "dataset": "d", "delivery": delivery, "endpoints": endpoints, **more}


def config(source, sink, **more):
    state = WORK / "state"
    shutil.rmtree(state, ignore_errors=True)
    whole = {"pipeline": "bench", "source": source, "sinks": [sink], "checkpoint": {"directory": str(state), "interval": "1s"}, **more}
    (WORK / "p.yaml").write_text(json.dumps(whole))


class Watched:
    """A process whose memory is looked at while it runs."""

    def __init__(self, *words):
        self.out = open(WORK / "out.json", "w")
        self.log = open(WORK / "log.txt", "w")
        self.process = subprocess.Popen([BIN, *words], stdout=self.out, stderr=self.log, cwd=WORK)
        self.peak, self.sockets, self.began = 0, 0, time.monotonic()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while self.process.poll() is None:
            try:
                text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
                self.peak = max(self.peak, *[int(l.split()[1]) / 1024 for l in text.splitlines() if l.startswith("VmHWM")])
                links = [os.readlink(f"/proc/{self.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{self.process.pid}/fd")]
                self.sockets = max(self.sockets, sum(link.startswith("socket") for link in links))
            except (OSError, ValueError):
                pass
            time.sleep(0.2)

    def end(self):
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.wall = time.monotonic() - self.began
        self.cpu = usage.ru_utime + usage.ru_stime
        if self.process.returncode:
            sys.exit(f"ended with {self.process.returncode}:\n{(WORK / 'log.txt').read_text()[-3000:]}")
        self.json = json.loads((WORK / "out.json").read_text())
        return self


def envelope(table, key, lsn, row, op="c"):
    source = {"connector": "postgresql", "ts_ms": 1_700_000_000_000 + lsn, "db": "d", "schema": "s", "table": table, "lsn": lsn, "sequence": json.dumps([str(lsn), str(lsn)])}
    return {"topic": f"x.s.{table}", "key": json.dumps({"id": key}), "value": json.dumps({"before": None, "after": {"id": key, **row}, "source": source, "op": op, "ts_ms": 1_700_000_000_000 + lsn}), "headers": []}


shutil.rmtree(WORK, ignore_errors=True)
WORK.mkdir(parents=True)
if "write" in args.only:
    lines = sum(1 for _ in open(args.events))
    for delivery, goal in [("at-least-once", 5.0), ("exactly-once", 5.5)]:
        with Emulator() as emulator:
            config({"type": "files", "path": str(pathlib.Path(args.events).resolve())}, emulator.sink(delivery), tables=TABLES)
            ended = Watched("run", "p.yaml", "--json").end()
            written = ended.json["counters"]["sinks"]["bigquery"]["written"]
            held = sum(int(emulator.query(f"SELECT COUNT(*) FROM `bench.d.{t}_raw`")[0][0]) for t in ["orders", "customers"])
            if held != written or ended.json["counters"]["records"] != lines:
                sys.exit(f"WRONG COUNT: {lines} lines, {written} written, {held} in the tables")
            cpu = ended.cpu / lines * 1e6
            figure(f"files → append, {delivery}: CPU-s per million", f"{cpu:.2f}, {lines / ended.wall:,.0f} events/s, peak {ended.peak:.0f} MB", f"≤ {goal}", cpu <= goal)
if "tables" in args.only:
    with open(WORK / "in.jsonl", "w") as out:
        lsn = 0
        for of in range(5):
            for table in range(args.tables):
                lsn += 1
                out.write(json.dumps(envelope(f"t{table}", of, lsn, {"name": f"n{lsn}", "n": lsn})) + "\n")
    with Emulator() as emulator:
        config({"type": "files", "path": str(WORK / "in.jsonl"), "lines": "record"}, emulator.sink("exactly-once"))
        ended = Watched("run", "p.yaml", "--json").end()
        written = ended.json["counters"]["sinks"]["bigquery"]["written"]
        count = int(emulator.query("SELECT COUNT(*) FROM bench.d.INFORMATION_SCHEMA.TABLES WHERE table_type = 'BASE TABLE'")[0][0])
        good = written == 5 * args.tables and count >= args.tables and ended.peak <= 500
        figure(f"{args.tables} tables, exactly-once", f"{written} rows in {ended.wall:.1f} s, peak {ended.peak:.0f} MB, {ended.sockets} sockets at most", "≤ 500 MB", good)


def follow(rate, seconds, line):
    """Appends lines at a rate."""
    began, written = time.monotonic(), 0
    with open(WORK / "in.jsonl", "a") as out:
        while (now := time.monotonic() - began) < seconds:
            due = int(now * rate)
            for n in range(written, due):
                out.write(json.dumps(line(n, now)) + "\n")
            out.flush()
            written = max(written, due)
            time.sleep(0.02)
    return written


if "evolution" in args.only:
    (WORK / "in.jsonl").write_text("")
    with Emulator("--schema-delay", "500ms") as emulator:
        config({"type": "files", "path": str(WORK / "in.jsonl"), "lines": "record", "follow": True, "poll_interval": "20ms"}, emulator.sink("exactly-once"))
        running = Watched("run", "p.yaml", "--json")

        def line(n, now):
            columns = min(20, int(now / args.seconds * 22))
            return envelope(f"t{n % 5}", n, n + 1, {"at": n, **{f"added_{c}": n for c in range(columns)}})

        written = follow(args.rate, args.seconds, line)
        time.sleep(3)
        running.process.send_signal(signal.SIGTERM)
        ended = running.end()
        good = ended.json["counters"]["sinks"]["bigquery"]["written"] == written and not ended.json["residues"]
        wrong = 0
        for t in range(5):
            total, last, odd = emulator.query(f"SELECT COUNT(*), COUNT(added_19), COUNTIF(added_19 != at OR (added_19 IS NULL AND added_18 IS NOT NULL AND at > 1000000000)) FROM `bench.d.t{t}_raw`")[0]
            monotone = emulator.query(f"SELECT COUNTIF(" + " OR ".join(f"(added_{c} IS NULL AND added_{c + 1} IS NOT NULL)" for c in range(19)) + f") FROM `bench.d.t{t}_raw`")[0][0]
            wrong += int(odd) + int(monotone)
            good &= int(total) == len(range(t, written, 5)) and int(last) > 0
        figure(f"20 columns added to 5 tables at {args.rate:,}/s", f"{written:,} events, all written, {ended.json.get('restarts', 0)} restarts, {wrong} rows with a value where there was none", "no stop, no loss", good and wrong == 0 and not ended.json.get("restarts"))
class Seen:
    """When a query first saw which newest event of a table, in milliseconds."""

    def __init__(self, emulator):
        self.emulator, self.stop, self.seen = emulator, threading.Event(), []
        self.thread = threading.Thread(target=self.poll)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def poll(self):
        last = -1
        while not self.stop.is_set():
            try:
                value = self.emulator.query("SELECT MAX(at) FROM `bench.d.t0_raw`")[0][0]
            except RuntimeError:
                time.sleep(0.1)
                continue
            now = time.time_ns() // 1_000_000
            if value is not None and int(value) != last:
                last = int(value)
                self.seen.append((now, last))
            time.sleep(0.02)

    def figure(self, name, limit):
        # An event waits until the first look that shows a later one or itself: its age then, over all events, which come evenly.
        ages, begin = [], self.seen[0][1] + 5000
        for (_, before), (now, newest) in zip(self.seen, self.seen[1:]):
            ages += [now - at for at in range(before + 1, newest + 1, 5) if at > begin]
        ages.sort()
        p = {q: ages[int(len(ages) * q / 100)] for q in (50, 95, 99)}
        figure(f"latency at {args.rate:,}/s, {name}", f"p50 {p[50]} ms, p95 {p[95]} ms, p99 {p[99]} ms", f"p95 < {limit} ms", p[95] < limit)


def from_pubsub(emulator, delivery):
    """Runs the pipeline over an emulated Pub/Sub while a client publishes."""
    port = WORK / "pubsub-port"
    port.unlink(missing_ok=True)
    words = ["emulator", "pubsub", "--listen", "127.0.0.1:0", "--port-file", str(port), "--project", "bench", "--topic", "events"]
    pubsub = subprocess.Popen([BIN, *words, "--subscription", "events-sub:events"], stdout=subprocess.DEVNULL)
    while not port.exists() or not port.read_text().strip():
        time.sleep(0.02)
    address = f"127.0.0.1:{port.read_text().strip()}"
    source = {"type": "pubsub", "project": "bench", "subscriptions": "events-sub", "endpoint": f"http://{address}"}
    # Messages of one request have one ordering key, if any: these have none, and the config tells the key.
    config(source, emulator.sink(delivery), tables={f"s.t{n}": {"key": ["id"]} for n in range(5)})
    running = Watched("run", "p.yaml", "--json")
    scripts = pathlib.Path(__file__).resolve().parent.parent / "scripts"
    python = subprocess.run(["sh", str(scripts / "python-pubsub-venv")], capture_output=True, text=True, check=True).stdout.strip()
    publish = [python, str(pathlib.Path(__file__).with_name("publish_events.py")), address, "projects/bench/topics/events"]
    sent = int(subprocess.run([*publish, str(args.rate), str(args.seconds)], capture_output=True, text=True, check=True).stdout)
    time.sleep(3)
    running.process.send_signal(signal.SIGTERM)
    events = sum(table["events"] for table in running.end().json["counters"]["tables"].values())
    pubsub.send_signal(signal.SIGTERM)
    pubsub.wait()
    if events != sent:
        sys.exit(f"WRONG COUNT: {sent} events published, {events} taken in")


def from_file(emulator, delivery):
    """Runs the pipeline over a file that grows."""
    (WORK / "in.jsonl").write_text("")
    config({"type": "files", "path": str(WORK / "in.jsonl"), "lines": "record", "follow": True, "poll_interval": "20ms"}, emulator.sink(delivery))
    running = Watched("run", "p.yaml", "--json")
    follow(args.rate, args.seconds, lambda n, _: envelope(f"t{n % 5}", n, n + 1, {"at": time.time_ns() // 1_000_000}))
    running.process.send_signal(signal.SIGTERM)
    running.end()


if "latency" in args.only:
    for delivery, limit in [("exactly-once", 1500), ("at-least-once", 300)]:
        for name, run in [("Pub/Sub", from_pubsub), ("a followed file", from_file)]:
            with Emulator() as emulator:
                with Seen(emulator) as seen:
                    run(emulator, delivery)
                seen.figure(f"{name} → {delivery}", limit)
shutil.rmtree(WORK, ignore_errors=True)
sys.exit(1 if FAILED else 0)
