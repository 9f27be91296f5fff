#!/usr/bin/env python3
"""Measures Millstream on generated events and prints each figure with its goal.

usage: figures.py --bin MILLSTREAM [--cache DIR] [--reps 3] [--flink LIB_DIR] [--only NAME ...] [--json OUT]

NAMEs: discard, schemas, append, replica, keys, recovery, interval. Without --flink the ratio to Flink is left out.
Every run is a process of its own; its CPU seconds (user + system) and peak memory are the kernel's (wait4). Counts of
every run are checked against the generator's truth; a wrong count ends the bench. Figures are medians. CPU seconds
barely depend on what else the machine does, wall time does: each rate is printed with the load that it was taken at.
"""
import argparse, hashlib, json, os, pathlib, re, shutil, signal, statistics, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
TABLES = "tables: { public.orders: { key: [order_id] }, public.customers: { key: [customer_id] } }\n"
EVENTS = {"events": ["-n", "4000000"],
          "schemas": ["-n", "200000", "--schemas"],
          "keys": ["-n", "10220000", "--keys", "10220000", "--distinct"],
          "keys-more": ["-n", "50000", "--keys", "10220000", "--distinct", "--start-lsn", "900000000000", "--seed", "2"]}

ap = argparse.ArgumentParser()
ap.add_argument("--bin", required=True); ap.add_argument("--cache", default=".cache/bench")
ap.add_argument("--reps", type=int, default=3); ap.add_argument("--flink"); ap.add_argument("--json")
ap.add_argument("--only", nargs="+", default=["discard", "schemas", "append", "replica", "keys", "recovery", "interval"])
args = ap.parse_args()
CACHE = pathlib.Path(args.cache).resolve()
WORK = CACHE / "work"
FIGURES = []


def say(text):
    print(text, flush=True)


def wrong(text):
    sys.exit(f"WRONG COUNT: {text}")


def load():
    return os.getloadavg()[0]


def events(name):
    """The folder of generated events and their truth; made if it is not there."""
    folder, truth = CACHE / name, CACHE / f"{name}.truth.json"
    if not truth.exists():
        say(f"generating {name} ({' '.join(EVENTS[name])}); once")
        subprocess.run([sys.executable, HERE / "gen_events.py", folder, *EVENTS[name]], check=True, stdout=subprocess.DEVNULL)
    # Into the page cache: what is measured is not the disk, and whoever reads first would pay for all.
    for part in sorted(folder.iterdir()):
        with open(part, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    return folder, json.loads(truth.read_text())


class Ended:
    """A process that ended: its output, CPU seconds, wall seconds, peak resident MB."""

    def __init__(self, command, **options):
        start = time.monotonic()
        with open(WORK / "out", "wb") as out, open(WORK / "err", "wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, **options)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.wall_s = time.monotonic() - start
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.rss_mb = usage.ru_maxrss / 1024
        self.out = (WORK / "out").read_text(errors="replace")
        if process.returncode != 0:
            tail = (WORK / "err").read_text(errors="replace")[-3000:]
            sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}\n{tail}")


def config(inputs, sinks, interval="1s", follow=False):
    paths = json.dumps([str(i / "part-*.jsonl") for i in inputs])
    text = (f"pipeline: bench\nsource: {{ type: files, path: {paths}, follow: {str(follow).lower()}, poll_interval: 100ms }}\n"
            f"{TABLES}dedupe: exact\ncheckpoint: {{ interval: {interval}, directory: state }}\nthreads: 2\nshards: 2\nsinks: {json.dumps(sinks)}\n")
    (WORK / "bench.yaml").write_text(text)
    return WORK / "bench.yaml"


def clean():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)


def check(summary, truths):
    """The run's counters against the sum of the generator's truths."""
    want = {name: sum(t[name] for t in truths) for name in ("events", "malformed", "accepted")}
    counters = summary["counters"]
    tables = counters["tables"].values()
    have = {"events": counters["records"], "malformed": sum(counters["dead"].values()), "accepted": sum(t["distinct"] for t in tables)}
    if have != want:
        wrong(f"have {have}, want {want}")
    redelivered = sum(t["duplicates"] for t in tables)
    if redelivered != want["events"] - want["malformed"] - want["accepted"]:
        wrong(f"{redelivered} duplicates")
    if summary["residues"]:
        wrong("; ".join(summary["residues"]))


def run(inputs, sinks, truths, **options):
    clean()
    done = Ended([args.bin, "run", config(inputs, sinks, **options), "--until-idle", "--json"])
    done.summary = json.loads(done.out.strip().splitlines()[-1])
    check(done.summary, truths)
    return done


def median(values):
    return statistics.median(values)


def figure(what, reached, goal, passed, note=""):
    FIGURES.append({"what": what, "reached": reached, "goal": goal, "passed": passed, "note": note})
    say(f"  {'ok  ' if passed else 'MISS'} {what}: {reached} (goal {goal}) {note}")


def at_most(what, value, goal, unit, digits=2, note=""):
    figure(what, f"{value:.{digits}f} {unit}", f"<= {goal:g} {unit}", value <= goal, note)


def at_least(what, value, goal, unit, digits=0, note=""):
    figure(what, f"{value:,.{digits}f} {unit}", f">= {goal:,g} {unit}", value >= goal, note)


def per_million(runs, truth):
    return median([r.cpu_s for r in runs]) / truth["events"] * 1e6


def rate(runs, truth):
    return median([truth["events"] / r.wall_s for r in runs])


def flink(folder, truth):
    """Flink's CPU seconds a million events from the first record to the job's end (its start is left out)."""
    done = Ended([HERE / "flink/run.sh", args.flink, WORK / "flink", folder, "rocksdb", "discard", "dom", "reuse"])
    result = dict(pair.split("=") for pair in re.findall(r"\w+=\S+", done.out))
    counts = [int(result[k]) for k in ("in", "bad", "accepted")]
    if counts != [truth[k] for k in ("events", "malformed", "accepted")]:
        wrong(f"Flink: {counts}")
    return float(result["cpu_s_per_M_steady"]), float(result["steady_ev_s"]), int(result["maxrss_kb"]) / 1024


def discard():
    folder, truth = events("events")
    runs, peers = [], []
    for rep in range(args.reps):
        runs.append(run([folder], [{"type": "discard"}], [truth]))
        r = runs[-1]
        say(f"  rep {rep + 1}: {r.cpu_s / 4:.2f} CPU-s/M, {4e6 / r.wall_s:,.0f} events/s, {r.rss_mb:.0f} MB, load {load():.1f}")
        if args.flink:
            peers.append(flink(folder, truth))
            say("  rep {}: Flink RocksDB {:.2f} CPU-s/M, {:,.0f} events/s, {:.0f} MB, load {:.1f}".format(rep + 1, *peers[-1], load()))
    at_most("discard: CPU", per_million(runs, truth), 3.0, "CPU-s/M")
    at_least("discard: rate", rate(runs, truth), 500_000, "events/s", note=f"load {load():.1f}")
    at_most("discard: peak RSS", max(r.rss_mb for r in runs), 300, "MB", 0)
    if peers:
        ratio = median([p[0] for p in peers]) / per_million(runs, truth)
        figure("discard: events per CPU-second against Flink RocksDB", f"{ratio:.1f} x", ">= 4.5 x", ratio >= 4.5,
               f"Flink {median([p[0] for p in peers]):.1f} CPU-s/M, {median([p[1] for p in peers]):,.0f} events/s")


def schemas():
    folder, truth = events("schemas")
    runs = [run([folder], [{"type": "discard"}], [truth]) for _ in range(args.reps)]
    at_most("embedded schemas: CPU", per_million(runs, truth), 7, "CPU-s/M", note=f"{truth['mean_bytes']:.0f} B an event")


def query(sql):
    done = Ended([args.bin, "query", WORK / "bench.yaml", sql, "--json"])
    return json.loads(done.out)


def check_history(truth):
    """Rows of the history, and the newest (lsn, op) of each key, are the generator's."""
    newest, rows = [], 0
    for table, key in (("customers", "customer_id"), ("orders", "order_id")):
        rows += int(query(f"SELECT count(*) AS n FROM {table}_raw")[0]["n"])
        # In one row: an answer has a bounded number of them.
        sql = f"""SELECT string_agg(concat_ws(',', '{table}', k, lsn, op) || chr(10), '' ORDER BY k) AS newest FROM (
          SELECT {key} AS k, max(__lsn) AS lsn, arg_max(__op, __lsn) AS op FROM {table}_raw GROUP BY 1)"""
        newest.append(query(sql)[0]["newest"])
    if rows != truth["accepted"]:
        wrong(f"{rows} rows in the history, want {truth['accepted']}")
    if hashlib.sha256("".join(newest).encode()).hexdigest() != truth["final_state_sha256"]:
        wrong("the history's newest rows differ from the generator's final state")


def check_live(truth, view):
    rows = sum(int(query(f"SELECT count(*) AS n FROM {table}{view}")[0]["n"]) for table in ("customers", "orders"))
    if rows != truth["live_keys"]:
        wrong(f"{rows} rows in {view or 'the replica'}, want {truth['live_keys']}")


def duckdb(name, sinks, cpu_goal, rate_goal):
    folder, truth = events("events")
    runs = []
    for rep in range(args.reps):
        r = run([folder], sinks, [truth])
        check_history(truth)
        check_live(truth, "_latest")
        if len(sinks) > 1:
            check_live(truth, "")
        runs.append(r)
        say(f"  rep {rep + 1}: {r.cpu_s / 4:.2f} CPU-s/M, {4e6 / r.wall_s:,.0f} events/s, {r.rss_mb:.0f} MB, load {load():.1f}")
    at_most(f"{name}: CPU", per_million(runs, truth), cpu_goal, "CPU-s/M", note=f"peak RSS {max(r.rss_mb for r in runs):.0f} MB")
    if rate_goal:
        at_least(f"{name}: rate", rate(runs, truth), rate_goal, "events/s", note=f"load {load():.1f}")


APPEND = {"type": "duckdb", "name": "history", "path": "bench.duckdb", "layout": "append"}
REPLICA = {"type": "duckdb", "name": "replica", "path": "bench.duckdb", "layout": "replica"}


def append():
    duckdb("DuckDB append", [APPEND], 5, 250_000)


def replica():
    duckdb("DuckDB append + replica", [APPEND, REPLICA], 8, None)


def state_bytes():
    """Allocated blocks, not lengths: journals are preallocated sparse files."""
    return sum(f.stat().st_blocks * 512 for f in (WORK / "state").rglob("*") if f.is_file() and "dead-letters" not in f.parts)


def keys():
    folder, truth = events("keys")
    small, small_truth = events("events")
    base = median([small_truth["events"] / run([small], [{"type": "discard"}], [small_truth]).wall_s for _ in range(args.reps)])
    r = run([folder], [{"type": "discard"}], [truth])
    keys = truth["distinct_keys"]
    speed = truth["events"] / r.wall_s
    at_most(f"{keys:,} distinct keys: peak RSS", r.rss_mb, 600, "MB", 0)
    at_most(f"{keys:,} distinct keys: state on disk", state_bytes() / keys, 100, "bytes/key", 1)
    figure(f"{keys:,} distinct keys: rate", f"{speed:,.0f} events/s", f">= {base / 2:,.0f} events/s (half of the first line's)",
           speed >= base / 2, f"{r.cpu_s / truth['events'] * 1e6:.2f} CPU-s/M, load {load():.1f}")


def status():
    """The running pipeline's status; None while it does not answer."""
    asked = subprocess.run([args.bin, "status", WORK / "bench.yaml", "--json"], capture_output=True, text=True)
    return json.loads(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else None


def start():
    return subprocess.Popen([args.bin, "run", WORK / "bench.yaml", "--json"], stdout=open(WORK / "out", "wb"), stderr=open(WORK / "err", "ab"))


def until(process, reached, what, seconds=600.0, pause=0.02):
    """Polls the status until `reached`; returns the seconds that it took and the status."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        now = status()
        if now and "epoch" in now and reached(now):
            return time.monotonic() - begin, now
        if process.poll() is not None:
            sys.exit(f"the pipeline ended while {what}\n{(WORK / 'err').read_text()[-3000:]}")
        time.sleep(pause)
    sys.exit(f"gave up {what} after {seconds:.0f} s")


def recovery():
    """A followed run over all keys is killed while new lines come in; a second one starts over what it left."""
    folder, truth = events("keys")
    more, more_truth = events("keys-more")
    lines = [line for part in sorted(more.glob("part-*.jsonl")) for line in part.read_bytes().splitlines(keepends=True)]
    clean()
    (WORK / "more").mkdir()
    new = open(WORK / "more/part-0.jsonl", "ab", buffering=0)
    config([folder, WORK / "more"], [{"type": "discard"}], follow=True)
    process = start()
    until(process, lambda s: s["counters"]["records"] == truth["events"], "loading the keys", pause=0.5)
    new.write(b"".join(lines[:len(lines) // 2]))
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    new.write(b"".join(lines[len(lines) // 2:]))
    process = start()
    taken_s, _ = until(process, lambda s: s["records_in"] > 0, "waiting for the first event")
    durable_s, _ = until(process, lambda s: s["counters"]["records"] > truth["events"], "waiting for the first epoch")
    until(process, lambda s: s["counters"]["records"] == truth["events"] + more_truth["events"], "reading the rest")
    process.send_signal(signal.SIGTERM)
    process.wait()
    # The new lines repeat keys of the first, so that every one of them reads its key's state from disk.
    check(json.loads((WORK / "out").read_text().strip().splitlines()[-1]), [truth, more_truth])
    at_most(f"recovery after SIGKILL, {truth['distinct_keys']:,} keys: first new event", taken_s, 3, "s",
            note=f"its epoch durable after {taken_s + durable_s:.2f} s; load {load():.1f}")


def interval():
    folder, truth = events("events")
    cost = {"1s": [], "60s": []}
    for _ in range(max(args.reps, 5)):
        for every in cost:
            cost[every].append(run([folder], [{"type": "discard"}], [truth], interval=every).cpu_s)
    more = (median(cost["1s"]) / median(cost["60s"]) - 1) * 100
    at_most("checkpoint every 1 s against 60 s: more CPU", more, 10, "%", 1,
            f"{median(cost['1s']) / 4:.2f} and {median(cost['60s']) / 4:.2f} CPU-s/M")


def main():
    WORK.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        say(f"{name}:")
        globals()[name]()
    width = max(len(f["what"]) for f in FIGURES)
    say("")
    for f in FIGURES:
        say(f"{'pass' if f['passed'] else 'FAIL'}  {f['what']:<{width}}  {f['reached']:>18}  {f['goal']:<40} {f['note']}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(FIGURES, indent=1))
    missed = sum(not f["passed"] for f in FIGURES)
    say(f"\n{len(FIGURES) - missed} of {len(FIGURES)} figures reached; counts equal the generator's truth in every run")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
