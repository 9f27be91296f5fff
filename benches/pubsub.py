#!/usr/bin/env python3
"""Measures the Pub/Sub connectors against the emulator in another process and prints each figure with its goal.

usage: pubsub.py --bin MILLSTREAM --events EVENTS.jsonl [--only publish pull latency soak] [--seconds 60] [--work DIR]

EVENTS.jsonl holds Debezium values, one a line (gen_events.py makes them). CPU seconds (user + system) are those of the
pipeline's process alone, as the kernel accounts them (wait4); rates are by the wall time of the whole process.

publish   files → Pub/Sub: messages published a second, without and with ordering keys
pull      Pub/Sub → discard, and → DuckDB append, of a backlog that lies there: CPU-s per million, messages/s, peak memory
latency   the live demo at 3,000 events/s with checkpoints every 1 s and every 100 ms: from published to visible
soak      the live demo with its faults for --seconds (600 and more): resident memory, threads and files, as means of two minutes from minute 2
          on
"""
import argparse, json, os, pathlib, shutil, signal, statistics, subprocess, sys, time

ap = argparse.ArgumentParser()
ap.add_argument("--bin", required=True); ap.add_argument("--events", required=True)
ap.add_argument("--only", nargs="+", default=["publish", "pull", "latency"])
ap.add_argument("--seconds", type=int, default=60); ap.add_argument("--work", default=".cache/bench/pubsub")
args = ap.parse_args()
WORK = pathlib.Path(args.work).resolve()
BIN = str(pathlib.Path(args.bin).resolve())
EVENTS = str(pathlib.Path(args.events).resolve())
TABLES = {"public.orders": {"key": ["order_id"]}, "public.customers": {"key": ["customer_id"]}}
with open(EVENTS, "rb") as file:
    COUNT = sum(1 for _ in file)


def figure(what, got, goal, ok):
    print(f"{what:58} {got:>32}   goal {goal:14} {'pass' if ok else 'FAIL'}   load {os.getloadavg()[0]:.1f}", flush=True)


class Ended:
    """A command that ended: its JSON, CPU seconds, wall seconds, peak resident MB."""

    def __init__(self, *words):
        start = time.monotonic()
        out = open(WORK / "out.json", "w")
        process = subprocess.Popen([BIN, *words], stdout=out, stderr=open(WORK / "log.txt", "w"), cwd=WORK)
        _, status, usage = os.wait4(process.pid, 0)
        self.wall = time.monotonic() - start
        self.cpu, self.mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        if status != 0:
            sys.exit(f"{words} failed: {(WORK / 'log.txt').read_text()[-2000:]}")
        text = (WORK / "out.json").read_text()
        self.json = json.loads(text) if text.startswith("{") else None


class Emulator:
    def __enter__(self):
        port = WORK / "port"
        port.unlink(missing_ok=True)
        words = ["emulator", "pubsub", "--listen", "127.0.0.1:0", "--port-file", str(port), "--project", "bench"]
        words += ["--topic", "events", "--subscription", "events-sub:events"]
        self.process = subprocess.Popen([BIN, *words], stdout=subprocess.DEVNULL, cwd=WORK)
        while not port.exists() or not port.read_text().strip():
            time.sleep(0.02)
        self.endpoint = f"http://127.0.0.1:{port.read_text().strip()}"
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def run(name, source, sinks, *words, **more):
    state = WORK / "state"
    shutil.rmtree(state, ignore_errors=True)
    for file in WORK.glob("out.duckdb*"):
        file.unlink()
    config = {"pipeline": name, "source": source, "sinks": sinks, "tables": TABLES, "checkpoint": {"directory": str(state)}, **more}
    (WORK / "p.yaml").write_text(json.dumps(config))
    return Ended("run", "p.yaml", "--json", "--until-idle", *words)


def publish(emulator, ordering):
    sink = {"type": "pubsub", "project": "bench", "topic": "events", "endpoint": emulator.endpoint, "ordering_keys": ordering}
    # Every line is published, also one that came before: the backlog is the file.
    return run("publish", {"type": "files", "path": EVENTS}, [sink], dedupe="off")


def pull(emulator, sink):
    source = {"type": "pubsub", "project": "bench", "subscriptions": "events-sub", "endpoint": emulator.endpoint}
    ended = run("pull", source, [sink], "--idle", "1s")
    records = ended.json["counters"]["records"]
    # What it waited for more is no part of the work.
    return ended, records, records / (ended.wall - 1)


WORK.mkdir(parents=True, exist_ok=True)
if "publish" in args.only or "pull" in args.only:
    for sink in [{"type": "discard"}, {"type": "duckdb", "path": "out.duckdb"}]:
        with Emulator() as emulator:
            ended = publish(emulator, False)
            written = ended.json["counters"]["sinks"]["pubsub"]["written"]
            figure("files → Pub/Sub, no ordering keys: messages/s", f"{written / ended.wall:,.0f}, {ended.cpu / written * 1e6:.1f} CPU-s/M",
                   "≥ 150,000", written / ended.wall >= 150_000)
            if "pull" in args.only:
                ended, records, rate = pull(emulator, sink)
                if records < written:
                    sys.exit(f"WRONG COUNT: {records} of {written} came")
                goal = 6.5 if sink["type"] == "duckdb" else 4.0
                cpu = ended.cpu / records * 1e6
                name = f"Pub/Sub → {sink['type']}"
                figure(f"{name}: CPU-s per million", f"{cpu:.2f}", f"≤ {goal}", cpu <= goal)
                figure(f"{name}: messages/s", f"{rate:,.0f}", "≥ 120,000", rate >= 120_000)
                figure(f"{name}: peak RSS", f"{ended.mb:.0f} MB", "≤ 500 MB", ended.mb <= 500)
if "latency" in args.only:
    for interval, limit in [("1s", 1500), ("100ms", 400)]:
        words = ["demo", "--directory", str(WORK / "demo"), "--events", str(pathlib.Path(__file__).parent.parent.resolve() / "corpus")]
        ended = Ended(*words, "--seconds", str(args.seconds), "--interval", interval)
        line = next(l for l in (WORK / "out.json").read_text().splitlines() if l.startswith("from published to visible"))
        p95 = int(line.split("p95 ")[1].split(" ms")[0])
        figure(f"latency at 3,000/s, checkpoints every {interval}", line.split(": ")[1], f"p95 < {limit} ms", p95 < limit)
if "soak" in args.only:
    words = ["demo", "--directory", str(WORK / "demo"), "--events", str(pathlib.Path(__file__).parent.parent.resolve() / "corpus")]
    process = subprocess.Popen([BIN, *words, "--seconds", str(args.seconds)], stdout=open(WORK / "out.json", "w"), stderr=subprocess.DEVNULL)
    began, samples = time.monotonic(), []
    while process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status")
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line) if status.exists() else {}
        # Its end gives memory and threads back.
        if "VmRSS" in fields and time.monotonic() - began < args.seconds - 2:
            files = len(os.listdir(f"/proc/{process.pid}/fd"))
            samples.append((time.monotonic() - began, int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), files))
        time.sleep(1)
    text = (WORK / "out.json").read_text()

    def over(since, until):
        """Means between two seconds: two minutes are more than one round of DuckDB's log, in which memory goes up and down."""
        return [statistics.mean(part) for part in zip(*[s[1:] for s in samples if since <= s[0] <= until])]

    minutes = [*range(2, args.seconds // 60 - 1, 2)]
    curve = ", ".join(f"from minute {minute}: {over(minute * 60, minute * 60 + 120)[0]:.0f}" for minute in minutes)
    early, late = over(120, 240), over(args.seconds - 120, args.seconds)
    growth = (late[0] / early[0] - 1) * 100
    print(f"soak: resident MB, means of two minutes, {curve}; {max(s[1] for s in samples):.0f} at most", flush=True)
    figure("soak: resident memory, minutes 2 to 4 → last two", f"{early[0]:.0f} → {late[0]:.0f} MB ({growth:+.1f} %)", "< +5 %", growth < 5)
    figure("soak: threads and files", f"{early[1]:.1f}, {early[2]:.1f} → {late[1]:.1f}, {late[2]:.1f}", "no growth", late[1] <= early[1] + 2 and late[2] <= early[2] + 4)
    figure("soak: balance", "every record is accounted for", "", "every record and event is accounted for" in text)
shutil.rmtree(WORK, ignore_errors=True)
