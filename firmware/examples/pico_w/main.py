"""A Pico W that sends its temperature every ten seconds to the queue set by `ordack board provision`."""

import asyncio
import json

from machine import ADC
from ordack.node import Node, OutboxFull
from ordack.node.board import NetworkTime, Wifi

with open("config.json") as file:
    config = json.load(file)


async def network(node):
    # Reconnects if no data passes. "wifi" has the values of --country, --hostname, --static and more networks.
    wifi = Wifi(config["ssid"], config["password"], node=node, **config.get("wifi", {}))
    clock = NetworkTime(config["ntp"]) if "ntp" in config else None
    while True:
        if wifi.poll() and clock:
            clock.poll()
        await asyncio.sleep(0.2)


def failed(message):  # class 0x8000: the queue does not exist
    print("not delivered,", message.reason)


async def main():
    connect = config["host"], config["port"]
    if "tls" in config:
        from ordack.node.tls import TlsLink

        connect = TlsLink(*connect, **config["tls"])
    node = Node("outbox", connect=connect, name=config["name"], capacity=262144, on_failed=failed)
    line1 = node.queue(config["queue"])
    node.start()
    services = asyncio.create_task(network(node))
    sensor = ADC(4)  # the chip's thermometer
    while not services.done():
        celsius = 27 - (sensor.read_u16() * 3.3 / 65535 - 0.706) / 0.001721
        try:
            await line1.send("{:.1f}".format(celsius).encode(), label="temperature", ttrq=86400)
        except OutboxFull:
            pass  # after a long outage: readings expire after a day and make room
        await asyncio.sleep(10)


asyncio.run(main())
