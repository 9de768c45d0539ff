"""The node without asyncio: a loop of your own calls it, and nothing in it waits."""

import time

from ordack.node import Node

node = Node("outbox", connect=("127.0.0.1", 1801))
line1 = node.queue("DIRECT=TCP:127.0.0.1\\private$\\line1")
message = line1.put(b"21.5")  # durable when it returns
batch = line1.put_all([b"21.6", b"21.7"])  # one sync of the flash for all of them
if node.wait(message.is_settled, 5000):  # polls until it is stored or has failed; False: not within 5,000 ms
    print("stored" if message.is_stored() else "refused")
while not all(message.is_settled() for message in batch):
    time.sleep(node.poll() / 1000)  # poll() does what can be done now, and says after how many ms to call again
print("all stored" if all(message.is_stored() for message in batch) else "not all were stored")
