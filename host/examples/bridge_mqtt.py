"""Carries messages between an MQTT 5 broker and a store, one process in each direction.

    python3 bridge_mqtt.py in STORE HOST PORT TOPIC QUEUE    from a topic, or a filter of topics, to QUEUE
    python3 bridge_mqtt.py out STORE HOST PORT TOPIC QUEUE   from QUEUE to a topic

in: One transaction stores the message in QUEUE, and its packet identifier in QUEUE-seen. It stores no redelivery.
Duplicates before the broker are the publisher's: its user property `message-key` arrives as the message's extension.
out: A message leaves QUEUE after the broker has acknowledged it. After a kill or a lost connection MQTT may carry it
twice. Both have one user property `message-key`, and no other message has it: a consumer drops known keys.
"""

import hashlib
import sys
from queue import SimpleQueue
from typing import Any

import ordack
from paho.mqtt import enums, packettypes
from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions as Options


def connected(mqtt: Client, _data: object, flags: Any, reason: Any, _properties: object) -> None:
    print(f"{host}:{port}: {reason}", file=sys.stderr, flush=True)
    if direction == "in" and not reason.is_failure:
        if not flags.session_present:  # a new session begins its packet identifiers anew
            list(client.queue(seen).receive())
        mqtt.subscribe(topic, options=Options(qos=1, retainHandling=Options.RETAIN_SEND_IF_NEW_SUB))


def arrived(_mqtt: Client, _data: object, message: MQTTMessage) -> None:
    key = b"%d %s" % (message.mid, hashlib.sha256(message.topic.encode() + b"\0" + message.payload).digest())
    if not message.dup or key not in [last.body for last in client.queue(seen).peek()]:
        given = dict(getattr(message.properties, "UserProperty", ())).get("message-key", "").encode()
        with client.transaction() as transaction:
            transaction.receive_batch(seen, 1)
            transaction.send(seen, key)
            transaction.send(queue, message.payload, label=message.topic[:249], extension=given)
    # When this function returns, paho acknowledges the message


if len(sys.argv) != 7 or sys.argv[1] not in ("in", "out"):
    sys.exit(__doc__)
direction, store, host, port, topic, queue = sys.argv[1:]
broker = Client(enums.CallbackAPIVersion.VERSION2, f"ordack-{direction}-{queue}", protocol=MQTTv5)
seen, answers = f"{queue}-seen", SimpleQueue[Any]()
broker.on_connect, broker.on_message = connected, arrived
broker.on_publish = lambda _mqtt, _data, _mid, reason, _properties: answers.put(reason)
session = Properties(packettypes.PacketTypes.CONNECT)
session.SessionExpiryInterval, session.ReceiveMaximum = 0xFFFFFFFF, 1
broker.connect_async(host, int(port), clean_start=direction == "out", properties=session)
with ordack.connect(store) as client:
    broker.loop_forever(retry_first_connection=True) if direction == "in" else broker.loop_start()
    for message in client.queue(queue).receive(timeout=None):
        named = Properties(packettypes.PacketTypes.PUBLISH)
        named.UserProperty = ("message-key", message.message_key)
        broker.publish(topic, message.body, 1, properties=named)  # also when the connection is back
        if (reason := answers.get()).is_failure:
            sys.exit(f"{host}:{port} refuses a message on {topic}: {reason}. It stays in {queue}.")
