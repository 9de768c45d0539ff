"""A board that sends over a UART. At the other end: ordack serve --store plant --serial press7=/dev/ttyUSB0@115200"""

from machine import UART
from ordack.node import Node
from ordack.node.uart import UartLink

node = Node("outbox", connect=UartLink(UART(1, 115200, rxbuf=1024), rxbuf=1024))
line1 = node.queue("DIRECT=OS:gateway\\private$\\line1")  # any host name: the line carries all messages
message = line1.put(b"21.5", label="temperature")
node.wait(message.is_settled)
print("stored" if message.is_stored() else "refused")
