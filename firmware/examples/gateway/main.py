"""A board on a UART behind a Raspberry Pi, which forwards readings to the plant: ordack.toml is for the Pi."""

from machine import ADC, UART
from ordack.node import Node
from ordack.node.uart import UartLink

node = Node("outbox", connect=UartLink(UART(1, 115200, rxbuf=1024), rxbuf=1024), capacity=262144)
line1 = node.queue("DIRECT=OS:plant\\private$\\line1")  # the Pi has the next hop of `plant`
reading = line1.put(b"%d" % ADC(4).read_u16(), dead_letter=True)
node.wait(reading.is_settled)
print("the Pi has it" if reading.is_stored() else "refused")
node.wait(reading.is_ended)
print("received" if reading.is_received() else "not received")
