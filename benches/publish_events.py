"""Publishes change events to a topic of a Pub/Sub emulator at an even rate, 20 ms at a time. Each says in its row when it was published
(`at`, milliseconds since 1970). Run by bigquery.py with a Python that has google-cloud-pubsub: ADDRESS TOPIC RATE SECONDS.
"""

import json
import sys
import time

import grpc
from google.pubsub_v1.types import PublishRequest, PubsubMessage
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.publisher import PublisherClient

address, topic, rate, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
client = PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel(address)))
begin = time.monotonic()
sent = 0
while time.monotonic() < begin + seconds:
    messages = []
    at = time.time_ns() // 1_000_000
    while sent < (time.monotonic() - begin) * rate:
        table = f"t{sent % 5}"
        place = str(sent + 1)
        source = {"connector": "postgresql", "ts_ms": at, "db": "d", "schema": "s", "table": table, "lsn": sent + 1, "sequence": json.dumps([place, place])}
        value = {"before": None, "after": {"id": sent, "at": at}, "source": source, "op": "c", "ts_ms": at}
        messages.append(PubsubMessage(data=json.dumps(value).encode()))
        sent += 1
    if messages:
        client.publish(PublishRequest(topic=topic, messages=messages))
    time.sleep(0.02)
print(sent)
