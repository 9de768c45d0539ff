"""The node without asyncio: your own loop calls it, and no call waits."""

import time

from ordack.node import Node

node = Node("outbox", connect=("127.0.0.1", 1801))
line1 = node.queue("DIRECT=TCP:127.0.0.1\\private$\\line1")
message = line1.put(b"21.5")  # durable on return
batch = line1.put_all([b"21.6", b"21.7"])  # one flash sync for both
if node.wait(message.is_settled, 5000):  # polls until stored or failed; False: not within 5,000 ms
    print("stored" if message.is_stored() else "refused")
while not all(message.is_settled() for message in batch):
    time.sleep(node.poll() / 1000)  # poll() does all work that is due, and returns the ms until the next call
print("all stored" if all(message.is_stored() for message in batch) else "not all were stored")
