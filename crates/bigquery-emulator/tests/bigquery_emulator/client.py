"""Google's own clients against the emulator: BIGQUERY_REST and BIGQUERY_GRPC say where it is."""

import base64
import datetime
import decimal
import io
import os
import sys

import grpc
import pyarrow
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery, storage
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient, types, writer
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyarrow import parquet

UTC = datetime.timezone.utc

rest = bigquery.Client(
    project="p",
    credentials=AnonymousCredentials(),
    client_options=ClientOptions(api_endpoint="http://" + os.environ["BIGQUERY_REST"]),
)
channel = grpc.insecure_channel(os.environ["BIGQUERY_GRPC"])
write = BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=channel))

TYPES = [
    ("i", "INT64"), ("f", "FLOAT64"), ("b", "BOOL"), ("s", "STRING"), ("y", "BYTES"), ("d", "DATE"),
    ("dt", "DATETIME"), ("t", "TIME"), ("ts", "TIMESTAMP"), ("n", "NUMERIC"), ("bn", "BIGNUMERIC"),
    ("j", "JSON"), ("g", "GEOGRAPHY"),
]  # fmt: skip

FIELD = descriptor_pb2.FieldDescriptorProto
PROTO = {
    "i": FIELD.TYPE_INT64, "f": FIELD.TYPE_DOUBLE, "b": FIELD.TYPE_BOOL, "s": FIELD.TYPE_STRING,
    "y": FIELD.TYPE_BYTES, "d": FIELD.TYPE_INT32, "dt": FIELD.TYPE_INT64, "t": FIELD.TYPE_INT64,
    "ts": FIELD.TYPE_INT64, "n": FIELD.TYPE_BYTES, "bn": FIELD.TYPE_BYTES, "j": FIELD.TYPE_STRING,
    "g": FIELD.TYPE_STRING,
}  # fmt: skip


def make_message():
    """A message of all types, with a nested record and lists."""
    file = descriptor_pb2.FileDescriptorProto(name="row.proto", syntax="proto2")
    row = file.message_type.add(name="Row")
    for number, (name, _) in enumerate(TYPES, 1):
        row.field.add(name=name, number=number, type=PROTO[name], label=FIELD.LABEL_OPTIONAL)
    nested = row.nested_type.add(name="Rec")
    nested.field.add(name="x", number=1, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)
    nested.field.add(name="y", number=2, type=FIELD.TYPE_STRING, label=FIELD.LABEL_REPEATED)
    row.field.add(name="rec", number=20, type=FIELD.TYPE_MESSAGE, label=FIELD.LABEL_OPTIONAL, type_name=".Row.Rec")
    row.field.add(name="recs", number=21, type=FIELD.TYPE_MESSAGE, label=FIELD.LABEL_REPEATED, type_name=".Row.Rec")
    row.field.add(name="ints", number=22, type=FIELD.TYPE_INT64, label=FIELD.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return row, message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))


DESCRIPTOR, Row = make_message()
MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 58, 123456)


def packed_time(t):
    return t.hour << 32 | t.minute << 26 | t.second << 20 | t.microsecond


def packed_datetime(d):
    return d.year << 46 | d.month << 42 | d.day << 37 | packed_time(d)


def little(value, scale):
    unscaled = int(decimal.Decimal(value).scaleb(scale))
    return unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "little", signed=True)


def full_row(i):
    row = Row(
        i=i, f=1.5, b=True, s="h\u00e9llo", y=b"\x00\xff", d=(MOMENT.date() - datetime.date(1970, 1, 1)).days,
        dt=packed_datetime(MOMENT), t=packed_time(MOMENT), n=little("-12.5", 9), bn=little("3.25", 38),
        ts=int(MOMENT.replace(tzinfo=UTC).timestamp()) * 10**6 + 123456, j='{"a": [1, null]}', g="POINT(1 2)",
        ints=[1, 2],
    )  # fmt: skip
    row.rec.x = 7
    row.rec.y.extend(["a", "b"])
    row.recs.add(x=8)
    return row


def check(row, i):
    assert row["i"] == i, row
    assert row["f"] == 1.5 and row["b"] is True and row["s"] == "h\u00e9llo" and row["y"] == b"\x00\xff", row
    assert row["d"] == MOMENT.date() and row["dt"] == MOMENT and row["t"] == MOMENT.time(), row
    assert row["ts"] == MOMENT.replace(tzinfo=UTC), row
    assert row["n"] == decimal.Decimal("-12.5") and row["bn"] == decimal.Decimal("3.25"), row
    assert row["j"] == {"a": [1, None]} and row["g"] == "POINT(1 2)", row
    assert row["rec"] == {"x": 7, "y": ["a", "b"]} and row["recs"] == [{"x": 8, "y": []}], row
    assert row["ints"] == [1, 2], row


def append(stream, rows, offset=None):
    template = types.AppendRowsRequest(write_stream=stream)
    template.proto_rows.writer_schema.proto_descriptor.CopyFrom(DESCRIPTOR)
    connection = writer.AppendRowsStream(write, template)
    request = types.AppendRowsRequest()
    request.proto_rows.rows.serialized_rows.extend(row.SerializeToString() for row in rows)
    if offset is not None:
        request.offset = offset
    try:
        return connection.send(request).result(timeout=60)
    finally:
        connection.close()


def ints(table):
    return [row["i"] for row in rest.query(f"SELECT i FROM `{table}` ORDER BY i").result()]


def make_table(name):
    fields = [bigquery.SchemaField(field, kind) for field, kind in TYPES]
    inner = [bigquery.SchemaField("x", "INT64"), bigquery.SchemaField("y", "STRING", mode="REPEATED")]
    fields += [
        bigquery.SchemaField("rec", "RECORD", fields=inner),
        bigquery.SchemaField("recs", "RECORD", mode="REPEATED", fields=inner),
        bigquery.SchemaField("ints", "INT64", mode="REPEATED"),
    ]
    table = bigquery.Table(f"p.d.{name}", schema=fields)
    table.time_partitioning = bigquery.TimePartitioning(field="d", expiration_ms=10**12)
    table.clustering_fields = ["i"]
    table.description = "a table"
    return rest.create_table(table)


def resources():
    dataset = bigquery.Dataset("p.d")
    dataset.location = "EU"
    made = rest.create_dataset(dataset)
    assert made.location == "EU" and [d.dataset_id for d in rest.list_datasets()] == ["d"]
    table = make_table("t")
    assert table.time_partitioning.field == "d" and table.clustering_fields == ["i"]
    try:
        make_table("t")
        raise AssertionError("made twice")
    except exceptions.Conflict:
        pass
    table = rest.get_table("p.d.t")
    table.schema = table.schema + [bigquery.SchemaField("later", "STRING")]
    table.labels = {"a": "b"}
    table = rest.update_table(table, ["schema", "labels"])
    assert table.schema[-1].name == "later" and table.labels == {"a": "b"}
    assert [t.table_id for t in rest.list_tables("p.d")] == ["t"]
    rest.delete_table("p.d.t")
    try:
        rest.get_table("p.d.t")
        raise AssertionError("not deleted")
    except exceptions.NotFound:
        pass
    try:
        rest.query("SELECT * FROM d.t").result()
        raise AssertionError("read what is deleted")
    except exceptions.NotFound:
        pass
    try:
        rest.query("SELEC 1").result()
        raise AssertionError("understood nonsense")
    except exceptions.BadRequest:
        pass


def streams():
    parent = make_table("u").path.removeprefix("/")
    kinds = types.WriteStream.Type

    append(f"{parent}/streams/_default", [full_row(1)])
    rows = list(rest.query("SELECT * FROM `p.d.u`").result())
    assert len(rows) == 1
    check(rows[0], 1)
    rows = list(rest.query_and_wait("SELECT * FROM p.d.u"))
    check(rows[0], 1)
    check(next(iter(rest.list_rows("p.d.u"))), 1)
    assert rest.get_table("p.d.u").num_rows == 1

    committed = write.create_write_stream(parent=parent, write_stream=types.WriteStream(type_=kinds.COMMITTED))
    assert append(committed.name, [full_row(2), full_row(3)], 0).append_result.offset == 0
    assert append(committed.name, [full_row(4)], 2).append_result.offset == 2
    assert ints("p.d.u") == [1, 2, 3, 4]
    try:
        append(committed.name, [full_row(3)], 1)
        raise AssertionError("appended twice")
    except exceptions.GoogleAPICallError as error:
        assert error.grpc_status_code == grpc.StatusCode.ALREADY_EXISTS, error

    buffered = write.create_write_stream(parent=parent, write_stream=types.WriteStream(type_=kinds.BUFFERED))
    append(buffered.name, [full_row(5), full_row(6), full_row(7)], 0)
    assert ints("p.d.u") == [1, 2, 3, 4]
    flush = types.FlushRowsRequest(write_stream=buffered.name, offset=1)
    assert write.flush_rows(flush).offset == 1
    assert ints("p.d.u") == [1, 2, 3, 4, 5, 6]

    pending = write.create_write_stream(parent=parent, write_stream=types.WriteStream(type_=kinds.PENDING))
    append(pending.name, [full_row(8)], 0)
    assert write.finalize_write_stream(name=pending.name).row_count == 1
    assert ints("p.d.u") == [1, 2, 3, 4, 5, 6]
    request = types.BatchCommitWriteStreamsRequest(parent=parent, write_streams=[pending.name])
    assert write.batch_commit_write_streams(request).commit_time
    assert ints("p.d.u") == [1, 2, 3, 4, 5, 6, 8]
    assert write.get_write_stream(name=pending.name).type_ == kinds.PENDING


def statements():
    rest.query("CREATE TABLE d.v (k INT64, v STRING) CLUSTER BY k").result()
    job = rest.query("INSERT INTO d.v VALUES (1, 'a'), (2, \"b\")")
    job.result()
    assert job.num_dml_affected_rows == 2, job.num_dml_affected_rows
    merge = """MERGE d.v AS T USING (SELECT 2 AS k, 'c' AS v UNION ALL SELECT 3, 'd') AS S ON T.k = S.k
      WHEN MATCHED THEN UPDATE SET v = S.v WHEN NOT MATCHED THEN INSERT (k, v) VALUES (S.k, S.v)"""
    rest.query(merge).result()
    rows = rest.query("SELECT * FROM d.v ORDER BY k").result()
    assert [tuple(row) for row in rows] == [(1, "a"), (2, "c"), (3, "d")]
    rest.query("CREATE VIEW d.w AS SELECT k, CONCAT(v, '!') AS shout FROM `p.d.v` WHERE k > 1").result()
    assert [row["shout"] for row in rest.query("SELECT shout FROM d.w ORDER BY 1").result()] == ["c!", "d!"]
    assert rest.get_table("p.d.w").table_type == "VIEW"


def bucket(name):
    """A bucket that is made if it is not there; the client finds the emulator by STORAGE_EMULATOR_HOST."""
    client = storage.Client(project="p", credentials=AnonymousCredentials())
    return client.lookup_bucket(name) or client.create_bucket(name, location="US")


def objects():
    """Uploads by one request and in parts, lists by prefix and folder, preconditions, deletes."""
    files = bucket("objects-of-python")
    small, large = files.blob("a/small.txt"), files.blob("a/b/large ü.bin")
    small.upload_from_string("hello", content_type="text/plain", if_generation_match=0)
    assert small.download_as_bytes() == b"hello" and small.content_type == "text/plain"
    large.chunk_size = 256 * 1024
    data = bytes(range(256)) * 5_000
    large.upload_from_file(io.BytesIO(data), size=None)
    assert large.download_as_bytes() == data and large.download_as_bytes(start=10, end=19) == data[10:20]
    try:
        small.upload_from_string("again", if_generation_match=0)
        raise AssertionError("an object was replaced")
    except exceptions.PreconditionFailed:
        pass
    names = [blob.name for blob in files.list_blobs(prefix="a/", page_size=1)]
    assert names == ["a/b/large ü.bin", "a/small.txt"], names
    folders = files.list_blobs(prefix="a/", delimiter="/")
    assert [blob.name for blob in folders] == ["a/small.txt"] and folders.prefixes == {"a/b/"}
    asked = ["storage.objects.create", "storage.objects.delete"]
    assert set(asked) <= set(files.test_iam_permissions(asked))
    small.delete()
    large.delete()
    try:
        small.delete()
        raise AssertionError("an object was deleted twice")
    except exceptions.NotFound:
        pass


def loads():
    """Files of every type by load jobs, and the errors of these."""
    files = bucket("loads-of-python")
    day, moment = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30, 1, 5)
    table = pyarrow.table(
        {
            "i": pyarrow.array([1, None]),
            "n": pyarrow.array([decimal.Decimal("1.5"), None], pyarrow.decimal128(38, 9)),
            "bn": pyarrow.array([decimal.Decimal("-0." + "0" * 37 + "1"), None], pyarrow.decimal256(76, 38)),
            "y": pyarrow.array([b"\0\xff", None]),
            "d": pyarrow.array([day, None]),
            "t": pyarrow.array([moment.time(), None], pyarrow.time64("us")),
            "dt": pyarrow.array([moment, None], pyarrow.timestamp("us")),
            "ts": pyarrow.array([moment.replace(tzinfo=UTC), None], pyarrow.timestamp("us", "UTC")),
            "l": pyarrow.array([["x", "y"], []]),
            "s": pyarrow.array([{"a": 7}, None]),
        }
    )
    out = io.BytesIO()
    parquet.write_table(table, out)
    files.blob("in/1.parquet").upload_from_string(out.getvalue())
    rest.create_dataset("loads", exists_ok=True)
    options = bigquery.ParquetOptions()
    options.enable_list_inference = True
    config = bigquery.LoadJobConfig(source_format="PARQUET", parquet_options=options)
    uri = "gs://loads-of-python/in/*.parquet"
    job = rest.load_table_from_uri(uri, "p.loads.t", job_config=config, job_id="once")
    job.result()
    assert job.output_rows == 2 and job.input_files == 1
    kinds = [field.field_type for field in rest.get_table("p.loads.t").schema]
    wanted = ["INTEGER", "NUMERIC", "BIGNUMERIC", "BYTES", "DATE", "TIME", "DATETIME", "TIMESTAMP", "STRING", "RECORD"]
    assert kinds == wanted, kinds
    rows = sorted(rest.list_rows("p.loads.t"), key=lambda row: row["i"] is None)
    assert tuple(rows[0]) == (
        1, decimal.Decimal("1.5"), decimal.Decimal("-0." + "0" * 37 + "1"), b"\0\xff", day, moment.time(), moment,
        moment.replace(tzinfo=UTC), ["x", "y"], {"a": 7},
    ), rows[0]  # fmt: skip
    # A job's id is taken for ever.
    try:
        rest.load_table_from_uri(uri, "p.loads.t", job_config=config, job_id="once", retry=None)
        raise AssertionError("a job ran twice")
    except exceptions.Conflict:
        pass
    assert rest.get_job("once").output_rows == 2
    # Another type than the table's, and a JSON column, which Parquet files have no way into.
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"i": ["x"]}), out)
    files.blob("bad.parquet").upload_from_string(out.getvalue())
    try:
        rest.load_table_from_uri("gs://loads-of-python/bad.parquet", "p.loads.t", job_config=config).result()
        raise AssertionError("a text became a number")
    except exceptions.BadRequest as error:
        assert "does not match the target type INTEGER" in str(error), error
    config = bigquery.LoadJobConfig(
        source_format="NEWLINE_DELIMITED_JSON",
        schema=[bigquery.SchemaField("i", "INTEGER"), bigquery.SchemaField("j", "JSON")],
        write_disposition="WRITE_TRUNCATE",
    )
    files.blob("lines.json").upload_from_string('{"i": "1", "j": {"a": [1.10]}}\n{"i": 2}\n')
    for _ in range(2):
        rest.load_table_from_uri("gs://loads-of-python/lines.json", "p.loads.j", job_config=config).result()
    rows = [tuple(row) for row in rest.query("SELECT i, TO_JSON_STRING(j) FROM loads.j ORDER BY i").result()]
    assert [row[0] for row in rows] == [1, 2], rows
    try:
        rest.load_table_from_uri("gs://loads-of-python/none", "p.loads.j", job_config=config).result()
        raise AssertionError("a file that is not there was loaded")
    except exceptions.NotFound:
        pass


for step in sys.argv[1:]:
    globals()[step]()
