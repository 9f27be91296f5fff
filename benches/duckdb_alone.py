"""What DuckDB alone costs for a history's rows: Arrow tables, read from a file that Millstream wrote, are inserted in commits of
so many rows into a new file. Prints CPU seconds per million rows, inserting and closing.

usage: duckdb_alone.py BENCH.duckdb          (needs duckdb and pyarrow from PyPI)
"""
import os, resource, sys, tempfile
import duckdb

OURS = ["__op", "__source_ts_ms", "__ingested_at", "__source_table", "__transaction_id", "__lsn", "__order", "__unchanged",
        "__old_key", "__key_columns"]
GROUPS = "ROW_GROUP_SIZE 30720, STORAGE_VERSION 'v1.4.0'"


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


source = duckdb.connect(sys.argv[1], read_only=True)
names = [row[0] for row in source.execute("SELECT table_name FROM duckdb_tables() WHERE table_name LIKE '%\\_raw' ESCAPE '\\'").fetchall()]
tables = {name: source.execute(f"FROM {name} LIMIT 1000000").to_arrow_table() for name in names}
columns = {name: source.execute(f"SELECT column_name, column_type FROM (DESCRIBE {name})").fetchall() for name in names}
source.close()
total = sum(len(table) for table in tables.values())


def measure(what, rows_a_commit, options="", settings="", without=()):
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(sys.argv[1]))) as folder:
        con = duckdb.connect()
        con.execute(f"ATTACH '{folder}/alone.duckdb' AS f {options and f'({options})'}; USE f;"
                    f"SET checkpoint_threshold='256MB'; SET memory_limit='1GB'; {settings}")
        for name in names:
            kept = ", ".join(f'"{c}" {ty}' for c, ty in columns[name] if c not in without)
            con.execute(f"CREATE TABLE {name} ({kept})")
        commits = max(1, total // rows_a_commit)
        before = cpu()
        for i in range(commits):
            con.execute("BEGIN")
            for name, table in tables.items():
                first, end = len(table) * i // commits, len(table) * (i + 1) // commits
                part = table.select([c for c, _ in columns[name] if c not in without]).slice(first, end - first)
                con.execute(f"INSERT INTO {name} SELECT * FROM part")
            con.execute("COMMIT")
        inserted = cpu()
        con.close()
        closed = cpu()
        size = os.path.getsize(f"{folder}/alone.duckdb") >> 20
    per = 1e6 / total
    print(f"{what:34} {rows_a_commit:8,} a commit: {(inserted - before) * per:5.2f} + {(closed - inserted) * per:4.2f} CPU-s/M, {size} MB", flush=True)


for rows in (25_000, 100_000, 250_000):
    measure("DuckDB's defaults", rows)
    measure("as Millstream opens it", rows, GROUPS)
    measure("the same, one thread", rows, GROUPS, "SET threads=1;")
    measure("the same, without our columns", rows, GROUPS, "SET threads=1;", OURS)
    measure("the same, uncompressed", rows, GROUPS, "SET threads=1; SET force_compression='uncompressed';")
