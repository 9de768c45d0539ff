"""Carries messages between HTTP and a store, one process in each direction.

    python3 webhook.py post STORE QUEUE URL       from QUEUE to a server: one POST for each message, in order
    python3 webhook.py listen STORE QUEUE PORT    from POST requests to 127.0.0.1:PORT to QUEUE

post: A message leaves QUEUE after the answer 2xx. A POST may come twice; both have one Idempotency-Key, and no other
message has it: the server answers 2xx to a known key. A message that the server refuses (400, 413, 415, 422) goes to
QUEUE-refused. All other failures are retried after 0.1 to 60 s.
listen: The client repeats a POST, Idempotency-Key included, until the answer is 204. QUEUE-keys keeps keys for a day.
"""

import hashlib
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import ordack
import requests


def post(message: ordack.Message) -> int:
    headers, delay_s = {"Idempotency-Key": message.message_key, "Content-Type": "application/octet-stream"}, 0.1
    while True:
        try:
            answer = requests.post(place, message.body, headers=headers, timeout=30, allow_redirects=False)
            if 200 <= answer.status_code < 300 or answer.status_code in (400, 413, 415, 422):
                return answer.status_code
            raise requests.HTTPError(f"{answer.status_code} {answer.reason}")
        except requests.RequestException as error:
            print(f"{place}: {error}. Retry in {delay_s:.1f} s", file=sys.stderr, flush=True)
        time.sleep(delay_s)
        delay_s = min(2 * delay_s, 60)


class Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_POST(self) -> None:
        key, size = (self.headers["Idempotency-Key"] or "").encode(), self.headers["Content-Length"] or "0"
        body = self.rfile.read(int(size)) if size.isdecimal() and int(size) <= 4_000_000 else b""
        if is_good := bool(key) and str(len(body)) == size:
            digest = hashlib.sha1(key).digest()
            with client.transaction() as transaction:  # if it fails, the client gets no answer
                if not transaction.receive_batch(f"{queue}-keys", 1, correlation_id=digest):
                    transaction.send(queue, body, label=self.path[:249], extension=key)
                transaction.send(f"{queue}-keys", b"", correlation_id=digest, ttbr=86_400)
        self.send_response(204 if is_good else 400)
        self.end_headers()


if len(sys.argv) != 5 or sys.argv[1] not in ("post", "listen"):
    sys.exit(__doc__)
direction, store, queue, place = sys.argv[1:]
with ordack.connect(store) as client:
    while direction == "post":
        with client.transaction() as transaction:
            message = transaction.receive(queue, timeout=None)
            if (status := post(message)) >= 400:
                transaction.send(f"{queue}-refused", message.body, label=f"{status} {message.label}"[:249])
    HTTPServer(("127.0.0.1", int(place)), Handler).serve_forever()
