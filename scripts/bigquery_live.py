"""See bigquery-live."""

import datetime
import decimal
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import google.auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("MILLSTREAM", str(ROOT / "target/release/millstream"))
PROJECT = os.environ["PROJECT"]
PREFIX = os.environ.get("DATASET", "millstream_live")
LOCATION = os.environ.get("LOCATION", "US")
REST, GRPC, GCS = (os.environ.get(f"EMULATOR_{name}") for name in ["REST", "GRPC", "GCS"])
BUCKET = os.environ.get("BUCKET")
SINKS = {
    "exactly_once": {"layout": "append"},
    "at_least_once": {"layout": "append", "delivery": "at-least-once"},
    "changelog": {"layout": "changelog"},
    # Without staleness a query sees every upsert.
    "replica": {"layout": "replica", "freshness": "0s"},
    "merged": {"layout": "replica", "delivery": "merge", "delete": "hard"},
    "envelope": {"layout": "envelope"},
}
if BUCKET:
    SINKS["load"] = {"layout": "append", "delivery": "load", "load": {"bucket": BUCKET, "prefix": PREFIX}}

if REST:
    options = {"api_endpoint": f"http://{REST}"}
    client = bigquery.Client(project=PROJECT, credentials=AnonymousCredentials(), client_options=options)
else:
    try:
        google.auth.default()
    except google.auth.exceptions.DefaultCredentialsError:
        print("bigquery-live: left out, there are no Application Default Credentials")
        sys.exit(0)
    client = bigquery.Client(project=PROJECT, location=LOCATION)


def dataset(name):
    return f"{PREFIX}_{name}"


def canonical(value):
    """One form for what a database's final row and what BigQuery has of a value."""
    if isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool):
        return decimal.Decimal(str(value)).normalize()
    if isinstance(value, datetime.datetime):
        value = value.isoformat()
    if isinstance(value, str):
        try:
            moment = datetime.datetime.fromisoformat(value)
            return moment.astimezone(datetime.timezone.utc).isoformat() if moment.tzinfo else moment.isoformat()
        except ValueError:
            return value
    return value


def rows(sql):
    return [{name: canonical(value) for name, value in dict(row).items()} for row in client.query(sql).result()]


def compare(what, got, expected, key):
    mine = {row[key]: {name: row.get(name) for name in expected[0]} for row in got}
    wanted = {row[key]: row for row in expected}
    if mine == wanted and len(mine) == len(got):
        print(f"right: {what}, {len(got)} rows")
        return True
    for k in sorted(set(mine) | set(wanted)):
        if mine.get(k) != wanted.get(k):
            print(f"WRONG: {what}, key {k}: columns {[n for n in expected[0] if (mine.get(k) or {}).get(n) != (wanted.get(k) or {}).get(n)]}")
    return False


final = {}
for line in (ROOT / "corpus/shop.final.jsonl").read_text().splitlines():
    record = json.loads(line, parse_float=decimal.Decimal)
    final.setdefault(record["table"], []).append({n: canonical(v) for n, v in record["row"].items()})

for name in SINKS:
    client.delete_dataset(dataset(name), delete_contents=True, not_found_ok=True)
good = True
try:
    with tempfile.TemporaryDirectory() as folder:
        sinks = []
        for name, more in SINKS.items():
            sink = {"type": "bigquery", "name": name.replace("_", "-"), "project": PROJECT, "dataset": dataset(name), "location": LOCATION, **more}
            if REST:
                sink["endpoints"] = {"rest": f"http://{REST}", "grpc": f"http://{GRPC}"}
                if name == "load":
                    sink["endpoints"]["gcs"] = f"http://{GCS}"
            sinks.append(sink)
        config = {
            "pipeline": "bigquery-live",
            "source": {"type": "files", "path": str(ROOT / "corpus/shop.schema.jsonl"), "lines": "record"},
            "checkpoint": {"directory": f"{folder}/state"},
            "sinks": sinks,
        }
        path = pathlib.Path(folder) / "live.yaml"
        path.write_text(json.dumps(config))
        began = time.monotonic()
        subprocess.run([BINARY, "run", str(path)], check=True)
        print(f"ran for {time.monotonic() - began:.1f} s")
    for table, key in [("orders", "order_id"), ("customers", "customer_id")]:
        expected = final[f"public.{table}"]
        for name in ["exactly_once", "at_least_once", *(["load"] if BUCKET else [])]:
            good &= compare(f"{name} {table}_latest", rows(f"SELECT * FROM `{PROJECT}.{dataset(name)}.{table}_latest`"), expected, key)
        for name in ["replica", "merged"]:
            good &= compare(f"{name} {table}", rows(f"SELECT * FROM `{PROJECT}.{dataset(name)}.{table}`"), expected, key)
        histories = {name: f"{table}_raw`" for name in SINKS if SINKS[name]["layout"] == "append"}
        histories |= {"changelog": f"{table}_changelog`", "envelope": f"cdc_events` WHERE `table` = '{table}'"}
        counts = {name: rows(f"SELECT COUNT(*) AS n FROM `{PROJECT}.{dataset(name)}.{of}")[0]["n"] for name, of in histories.items()}
        if len(set(counts.values())) > 1:
            print(f"WRONG: {table}: histories of {counts} rows")
            good = False
finally:
    for name in SINKS:
        client.delete_dataset(dataset(name), delete_contents=True, not_found_ok=True)
print("everything is right" if good else "something is wrong")
sys.exit(not good)
