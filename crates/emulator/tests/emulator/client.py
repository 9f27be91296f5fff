"""Google's own client against the emulator: PUBSUB_EMULATOR_HOST says where. Ends with an AssertionError, or in silence."""

import collections
import concurrent.futures
import sys
import threading

from google.api_core import exceptions
from google.cloud import pubsub_v1

PROJECT = "python"
options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
publisher = pubsub_v1.PublisherClient(publisher_options=options)
subscriber = pubsub_v1.SubscriberClient()


def topic(name):
    path = publisher.topic_path(PROJECT, name)
    publisher.create_topic(name=path)
    return path


def subscribe(name, topic_path, **config):
    path = subscriber.subscription_path(PROJECT, name)
    subscriber.create_subscription(request={"name": path, "topic": topic_path, **config})
    return path


class Reader:
    """Collects what a streaming pull brings until there is enough."""

    def __init__(self, path, callback, enough):
        self.done = threading.Event()
        self.failure = None

        def called(message):
            try:
                callback(message)
                if enough():
                    self.done.set()
            except BaseException as error:
                self.failure = error
                self.done.set()
                raise

        self.future = subscriber.subscribe(path, called)

    def wait(self):
        assert self.done.wait(60), "not enough came"
        self.future.cancel()
        try:
            self.future.result(30)
        except concurrent.futures.TimeoutError:
            raise AssertionError("the stream does not end")
        if self.failure:
            raise self.failure


def ordering():
    orders = topic("ordered")
    path = subscribe("ordered", orders, enable_message_ordering=True)
    count, keys = 600, 6
    futures = []
    for n in range(count):
        data = str(n).encode()
        futures.append(publisher.publish(orders, data, ordering_key=f"key-{n % keys}", kind="test"))
    ids = [future.result(60) for future in futures]
    assert len(set(ids)) == count
    seen = collections.defaultdict(list)
    nacked = set()
    lock = threading.Lock()

    def callback(message):
        n = int(message.data)
        with lock:
            assert message.attributes["kind"] == "test"
            # The first of every key is given back once: all of the key come again behind it.
            if n < keys and n not in nacked:
                nacked.add(n)
                message.nack()
                return
            if n not in seen[message.ordering_key]:
                seen[message.ordering_key].append(n)
        message.ack()

    Reader(path, callback, lambda: sum(map(len, seen.values())) == count).wait()
    # What was taken up between a nack and what came again may have been seen before, but nothing was lost.
    for key in range(keys):
        numbers = seen[f"key-{key}"]
        assert sorted(numbers) == list(range(key, count, keys)), (key, numbers[:10])
    assert len(nacked) == keys


def dead_letters():
    letters = topic("letters")
    dead = subscribe("dead", letters)
    work = topic("work")
    policy = {"dead_letter_topic": letters, "max_delivery_attempts": 5}
    path = subscribe("strict", work, dead_letter_policy=policy)
    publisher.publish(work, b"bad").result(30)
    attempts = []

    def callback(message):
        attempts.append(message.delivery_attempt)
        message.nack()

    Reader(path, callback, lambda: len(attempts) >= 5).wait()
    assert attempts == [1, 2, 3, 4, 5], attempts
    got = []

    def take(message):
        got.append(message)
        message.ack()

    Reader(dead, take, lambda: got).wait()
    assert got[0].data == b"bad"
    assert got[0].attributes["CloudPubSubDeadLetterSourceSubscription"] == "strict"
    assert got[0].attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def exactly_once():
    once = topic("once")
    path = subscribe("once", once, enable_exactly_once_delivery=True, ack_deadline_seconds=60)
    count = 50
    for n in range(count):
        publisher.publish(once, str(n).encode())
    confirmed = []
    futures = []

    def callback(message):
        future = message.ack_with_response()
        futures.append(future)
        future.add_done_callback(lambda f: confirmed.append(f.result()))

    reader = Reader(path, callback, lambda: len(futures) == count)
    assert reader.done.wait(60)
    results = [future.result(60) for future in futures]
    assert {str(result) for result in results} == {"AcknowledgeStatus.SUCCESS"}, results
    reader.wait()
    assert len(futures) == count, "no message came twice"
    # An ack id that is not the latest is refused, for good.
    publisher.publish(once, b"again").result(30)
    first = subscriber.pull(subscription=path, max_messages=1).received_messages[0]
    subscriber.modify_ack_deadline(subscription=path, ack_ids=[first.ack_id], ack_deadline_seconds=0)
    second = subscriber.pull(subscription=path, max_messages=1).received_messages[0]
    assert first.message.message_id == second.message.message_id
    try:
        subscriber.acknowledge(subscription=path, ack_ids=[first.ack_id])
        raise AssertionError("an old ack id was taken")
    except exceptions.FailedPrecondition as error:
        assert "PERMANENT_FAILURE_INVALID_ACK_ID" in str(error.details), error.details
    subscriber.acknowledge(subscription=path, ack_ids=[second.ack_id])


for step in sys.argv[1:]:
    {"ordering": ordering, "dead_letters": dead_letters, "exactly_once": exactly_once}[step]()
