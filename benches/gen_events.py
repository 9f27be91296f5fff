#!/usr/bin/env python3
"""Deterministic synthetic Debezium PostgreSQL change events (JSON lines) of two tables.

usage: gen_events.py DIR [-n 4000000] [--seed 1] [--keys 200000] [--zipf 0.99] [--distinct] [--dup 0.02] [--bad 0.001]
                     [--schemas] [--parts 2] [--start-lsn L]

Writes DIR/part-i.jsonl, one envelope a line, split by hash(table, key) (order kept inside a part, as Kafka would), and
DIR.truth.json (beside the folder, in which every file is events) with what a correct pipeline must find: counts by op,
malformed lines, redelivered lines, events that are accepted (well-formed and not seen before), distinct keys, live keys
and a checksum of the final (table, key, lsn, op).

The first 10 % are snapshot reads (r) of distinct keys, then c/u/d = 30/50/10 of the total, on Zipf-drawn keys (so a 'c'
can hit a live key, as after a delete and re-insert; only the newest lsn matters). With --distinct no two events but
redeliveries share a key, and keys come in a scattered order: the worst case for keyed state. Duplicates are
byte-identical redeliveries of one of the 1000 events before. Malformed lines: cut JSON, no op, lsn of a wrong type, no
key column, plain text; a redelivered malformed line counts as both. Only the standard library is used; the output is a
pure function of the arguments (random.Random only through .random()). About 20 us an event.
"""
import argparse, base64, hashlib, json, os, random, zlib
from bisect import bisect_left
from itertools import accumulate

ap = argparse.ArgumentParser()
ap.add_argument("dir"); ap.add_argument("-n", type=int, default=4_000_000)
ap.add_argument("--seed", type=int, default=1); ap.add_argument("--keys", type=int, default=200_000)
ap.add_argument("--zipf", type=float, default=0.99); ap.add_argument("--distinct", action="store_true")
ap.add_argument("--dup", type=float, default=0.02); ap.add_argument("--bad", type=float, default=0.001)
ap.add_argument("--schemas", action="store_true"); ap.add_argument("--parts", type=int, default=2)
ap.add_argument("--start-lsn", type=int, default=24_023_128)
a = ap.parse_args()
R = random.Random(a.seed).random

ORDERS = int(a.keys * 0.7)                      # keys 0..ORDERS-1 are orders, the rest customers
cum = [] if a.distinct else list(accumulate(1.0 / (i + 1) ** a.zipf for i in range(a.keys)))
tot = cum[-1] if cum else 0.0
MULT = 7919                                     # rank -> key: a fixed permutation (7919 is prime)
while a.keys % MULT == 0: MULT += 2
BITS = max(2, (a.keys - 1).bit_length()); MASK = (1 << BITS) - 1
def scattered(i):                                # i -> key: a fixed scattered permutation of 0..keys-1
    while True:
        i ^= i >> (BITS + 1) // 2; i = i * 0x9E3779B1 & MASK; i ^= i >> (BITS + 1) // 2; i = i * 0x85EBCA6B & MASK
        if i < a.keys: return i
FIRST = ["Anna", "Björn", "Chloé", "Dmitri", "Elena", "Farid", "Giulia", "Hiroshi", "Ines", "Jürgen", "Katarzyna", "Liam", "Mei", "Noah", "Olu", "Priya"]
LAST = ["Müller", "O'Neil", "Smith", "García", "Ivanova", "Nguyễn", "Kowalski", "Tanaka", "Okafor", "Rossi", "Larsen", "Dubois", "Khan", "Silva", "Novák", "Cohen"]
STREET = ["Main Street", "Hauptstraße", "Rue de la Paix", "Via Roma", "Elm Avenue", "Kungsgatan", "Calle Mayor", "Station Road"]
CITY = ["Berlin", "Paris", "München", "Oslo", "Madrid", "Łódź", "Dublin", "Porto"]
STATUS = ["NEW", "PAID", "PICKED", "SHIPPED", "DELIVERED", "RETURNED", "CANCELLED"]
NOTE = ['please ring twice', 'leave at the \\"back\\" door', 'gift wrap, no invoice in the parcel', 'call before delivery\\nthanks', 'fragile: glass', 'deliver after 18:00 only, concierge on the left', 'none', 'tel. +49 30 1234567']
CUR = ["EUR", "USD", "GBP", "PLN"]
T0 = 1_717_200_000_000                           # ms

def dec(cents):                                  # Debezium decimal.handling.mode=precise: base64 big-endian two's complement
    return base64.b64encode(cents.to_bytes((cents.bit_length() + 8) // 8, "big")).decode()

def ts(ms):                                      # io.debezium.time.ZonedTimestamp, within a fixed day range
    s = ms // 1000; d, r = divmod(s - 1_717_200_000, 86400)
    return f"2024-06-{1 + d % 28:02d}T{r // 3600:02d}:{r // 60 % 60:02d}:{r % 60:02d}.{ms % 1000:03d}000Z"

def order(pk, ms):
    x = R(); k = int(x * 1e9)
    return (f'{{"order_id":{pk},"customer_id":{ORDERS + k % (a.keys - ORDERS)},"status":"{STATUS[k % 7]}","total_amount":"{dec(100 + k % 900000)}",'
            f'"currency":"{CUR[k % 4]}","items":{1 + k % 9},"note":"{NOTE[k // 7 % 8]}","ship_to":"{1 + k % 180} {STREET[k // 11 % 8]}, {10000 + k % 89999} {CITY[k // 13 % 8]}",'
            f'"gift":{"true" if k % 10 == 0 else "false"},"weight_kg":{k % 4000 / 100},"created_at":{(ms - 86_400_000 + k % 1000) * 1000},"updated_at":"{ts(ms)}"}}')

def customer(pk, ms):
    x = R(); k = int(x * 1e9); f = FIRST[k % 16]; l = LAST[k // 16 % 16]
    return (f'{{"customer_id":{pk},"email":"user{pk}@mail{k % 50}.example.com","first_name":"{f}","last_name":"{l}","phone":"+49 {100 + k % 899} {1000000 + k % 8999999}",'
            f'"address":"{1 + k % 180} {STREET[k // 11 % 8]}, {10000 + k % 89999} {CITY[k // 13 % 8]}","tier":{k % 4},"balance":"{dec(k % 10_000_000)}","referrer":null,'
            f'"marketing_ok":{"true" if k % 3 else "false"},"created_at":{(ms - 86_400_000_0 + k % 1000) * 1000},"updated_at":"{ts(ms)}"}}')

ONULL = '{{"order_id":{},"customer_id":0,"status":"","total_amount":"AA==","currency":"","items":0,"note":null,"ship_to":null,"gift":null,"weight_kg":null,"created_at":0,"updated_at":"1970-01-01T00:00:00Z"}}'
CNULL = '{{"customer_id":{},"email":"","first_name":null,"last_name":null,"phone":null,"address":null,"tier":0,"balance":null,"referrer":null,"marketing_ok":null,"created_at":0,"updated_at":"1970-01-01T00:00:00Z"}}'

def fld(t, n, opt=True, name=None, params=None):
    d = {"type": t, "optional": opt}
    if name: d["name"] = name; d["version"] = 1
    if params: d["parameters"] = params
    d["field"] = n
    return d
DEC = ("org.apache.kafka.connect.data.Decimal", {"scale": "2", "connect.decimal.precision": "12"})
OF = [fld("int64", "order_id", False), fld("int64", "customer_id", False), fld("string", "status", False), fld("bytes", "total_amount", False, *DEC), fld("string", "currency", False), fld("int32", "items", False), fld("string", "note"), fld("string", "ship_to"), fld("boolean", "gift"), fld("double", "weight_kg"), fld("int64", "created_at", False, "io.debezium.time.MicroTimestamp"), fld("string", "updated_at", False, "io.debezium.time.ZonedTimestamp")]
CF = [fld("int64", "customer_id", False), fld("string", "email", False), fld("string", "first_name"), fld("string", "last_name"), fld("string", "phone"), fld("string", "address"), fld("int32", "tier", False), fld("bytes", "balance", True, *DEC), fld("string", "referrer"), fld("boolean", "marketing_ok"), fld("int64", "created_at", False, "io.debezium.time.MicroTimestamp"), fld("string", "updated_at", False, "io.debezium.time.ZonedTimestamp")]
SF = [fld("string", "version", False), fld("string", "connector", False), fld("string", "name", False), fld("int64", "ts_ms", False), fld("string", "snapshot", True, "io.debezium.data.Enum", {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}), fld("string", "db", False), fld("string", "sequence"), fld("int64", "ts_us"), fld("int64", "ts_ns"), fld("string", "schema", False), fld("string", "table", False), fld("int64", "txId"), fld("int64", "lsn"), fld("int64", "xmin")]
def schema(tbl, cols):
    v = f"shop.public.{tbl}"
    return json.dumps({"type": "struct", "fields": [
        {"type": "struct", "fields": cols, "optional": True, "name": v + ".Value", "field": "before"},
        {"type": "struct", "fields": cols, "optional": True, "name": v + ".Value", "field": "after"},
        {"type": "struct", "fields": SF, "optional": False, "name": "io.debezium.connector.postgresql.Source", "version": 1, "field": "source"},
        {"type": "struct", "fields": [fld("string", "id", False), fld("int64", "total_order", False), fld("int64", "data_collection_order", False)], "optional": True, "name": "event.block", "version": 1, "field": "transaction"},
        fld("string", "op", False), fld("int64", "ts_ms"), fld("int64", "ts_us"), fld("int64", "ts_ns")],
        "optional": False, "name": v + ".Envelope", "version": 2}, separators=(",", ":"))
SCHEMA = (schema("orders", OF), schema("customers", CF))

t = dict(events=0, bytes=0, r=0, c=0, u=0, d=0, malformed=0, duplicates=0, accepted=0)
state = {}
os.makedirs(a.dir, exist_ok=True)
parts = [open(f"{a.dir}/part-{i}.jsonl", "w", encoding="utf-8", buffering=1 << 20) for i in range(a.parts)]
recent = [None] * 1000
lsn = a.start_lsn; tx = 700; nreal = 0; snap = int(a.n * 0.10)
fresh = 0                                       # --distinct: keys given out so far
for i in range(a.n):
    z = R()
    if z < a.dup and nreal:
        line, p, ev = recent[int(R() * min(nreal, 1000))]
        t["duplicates"] += 1
        if ev[3] in "rcud": t[ev[3]] += 1
    else:
        if a.distinct: key = scattered(fresh); op = "r" if i < snap else "c"; fresh += 1
        elif i < snap and i < a.keys: key = i * MULT % a.keys; op = "r"
        else:
            key = bisect_left(cum, R() * tot) * MULT % a.keys
            q = R(); op = "c" if q < 1 / 3 else "u" if q < 8 / 9 else "d"
        lsn += 56 + int(z * 400)
        if R() < 0.4: tx += 1
        ms = T0 + i // 4 + int(z * 3); now = ms + 5 + int(z * 200)
        o = key < ORDERS; f = order if o else customer
        before = after = "null"
        if op == "d": before = (ONULL if o else CNULL).format(key)
        else:
            after = f(key, ms)
            if op == "u" and not o and key % 2: before = f(key, ms - 60_000)    # a table half with REPLICA IDENTITY FULL
        us = int(R() * 1000)
        line = (f'{{"before":{before},"after":{after},"source":{{"version":"3.0.5.Final","connector":"postgresql","name":"shop","ts_ms":{ms},"snapshot":"{"true" if op == "r" else "false"}",'
                f'"db":"shop","sequence":"[\\"{lsn - 48}\\",\\"{lsn}\\"]","ts_us":{ms * 1000 + us},"ts_ns":{(ms * 1000 + us) * 1000},"schema":"public","table":"{"orders" if o else "customers"}","txId":{tx},"lsn":{lsn},"xmin":null}},'
                f'"transaction":null,"op":"{op}","ts_ms":{now},"ts_us":{now * 1000 + us},"ts_ns":{(now * 1000 + us) * 1000 + 321}}}')
        if a.schemas: line = f'{{"schema":{SCHEMA[0 if o else 1]},"payload":{line}}}'
        p = zlib.crc32(f"{o}{key}".encode()) % a.parts
        ev = (o, key, lsn, op)
        if R() < a.bad:
            k = int(R() * 5); t["malformed"] += 1; ev = (o, key, lsn, "x")
            if k == 0: line = line[: len(line) * 2 // 3]
            elif k == 1: line = line.replace(f'"op":"{op}",', "")
            elif k == 2: line = line.replace(f'"lsn":{lsn}', '"lsn":"n/a"')
            elif k == 3: line = line.replace(f'"{"order_id" if o else "customer_id"}":{key}', '"no_pk":1')
            else: line = "ERROR 2024-06-01 connector restarted"
        else: t[op] += 1
        recent[nreal % 1000] = (line, p, ev); nreal += 1
    if ev[3] == "x":
        if z < a.dup: t["malformed"] += 1
    else:
        sk = (ev[0], ev[1]); cur = state.get(sk)
        if cur is None or ev[2] > cur[0]: state[sk] = (ev[2], ev[3]); t["accepted"] += 1
    t["events"] += 1; t["bytes"] += len(line.encode()) + 1
    parts[p].write(line); parts[p].write("\n")
for x in parts: x.close()
h = hashlib.sha256()
for (o, k), (l, op) in sorted(state.items()): h.update(f"{'orders' if o else 'customers'},{k},{l},{op}\n".encode())
t.update(distinct_keys=len(state), live_keys=sum(v[1] != "d" for v in state.values()), final_state_sha256=h.hexdigest(), mean_bytes=round(t["bytes"] / t["events"], 1))
json.dump(t, open(f"{a.dir}.truth.json", "w"), indent=1); print(json.dumps(t))
