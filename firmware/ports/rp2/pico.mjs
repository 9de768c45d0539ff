// pico.mjs ROM FIRMWARE: a Raspberry Pi Pico in rp2040js. Prints {"repl": PORT, "uart": PORT}: its USB serial port and its
// UART1 as TCP ports of the loopback, for one connection at a time each. Runs until it is killed.
import { ConsoleLogger, LogLevel, RP2040, Simulator, USBCDC } from 'rp2040js';
import fs from 'node:fs';
import net from 'node:net';

const [romFile, firmwareFile] = process.argv.slice(2);
const CYCLE_NS = 1e9 / 125e6;
const TURN = 20000; // instructions between two looks at the sockets
const UART_FIFO = 16;

const simulator = new Simulator();
const pico = simulator.rp2040;
const clock = simulator.clock;
pico.logger = new ConsoleLogger(LogLevel.Error, true);
// What it does not model is asked for by every write of the flash: the mailbox to the other core, which does not run.
const warn = console.warn;
console.warn = (text, ...rest) => /invalid SIO address: 5[08]/.test(text) || warn(text, ...rest);

// rp2040js 1.4 asserts the UART's transmit interrupt for ever, on which MicroPython's machine.UART hangs. Here a write to
// the data register (offset 0) raises it, and the firmware clears it.
const uartClass = Object.getPrototypeOf(pico.uart[0]);
const writeRegister = uartClass.writeUint32;
uartClass.checkInterrupts = function () {
  this.rp2040.setInterrupt(this.irq, Boolean(this.interruptStatus & this.interruptMask));
};
uartClass.writeUint32 = function (offset, value) {
  writeRegister.call(this, offset, value);
  if ((offset & 0xfff) === 0) {
    this.interruptStatus |= 1 << 5;
    this.checkInterrupts();
  }
};

const rom = Buffer.alloc(16384);
fs.readFileSync(romFile).copy(rom);
pico.loadBootrom(new Uint32Array(rom.buffer, rom.byteOffset, 4096));
pico.flash.set(fs.readFileSync(firmwareFile), 0);
pico.core.reset();
pico.onBreak = (code) => { // see rom.c
  const [r0, r1, r2] = pico.core.registers;
  if (code === 0xe1) {
    pico.flash.fill(0xff, r0, r0 + r1);
  } else if (code === 0xe2) {
    for (let i = 0; i < r2; i++) pico.flash[r0 + i] = pico.readUint8(r1 + i);
  } else {
    console.error(`BKPT 0x${code.toString(16)} at 0x${pico.core.PC.toString(16)}`);
    process.exit(1);
  }
};

// A TCP port whose connection takes what the board says; `received` is what came for the board.
async function bridge() {
  const line = { connection: null, received: [], said: [], port: 0 };
  const server = net.createServer((connection) => {
    connection.setNoDelay(true);
    line.connection?.destroy();
    line.connection = connection;
    connection.on('data', (data) => line.received.push(...data));
    connection.on('error', () => {});
    connection.on('close', () => {
      if (line.connection === connection) line.connection = null;
    });
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  line.port = server.address().port;
  line.flush = () => {
    if (!line.said.length || !line.connection) return; // kept for who comes
    line.connection.write(Buffer.from(line.said));
    line.said.length = 0;
  };
  return line;
}

const repl = await bridge();
const uart = await bridge();
const usb = new USBCDC(pico.usbCtrl);
let usbIsUp = false;
usb.onDeviceConnected = () => { usbIsUp = true; };
usb.onSerialData = (data) => repl.said.push(...data);
pico.uart[1].onByte = (byte) => uart.said.push(byte);

function turn() {
  for (let done = 0; done < TURN; done++) {
    if (pico.core.waiting) {
      clock.tick(Math.min(clock.nanosToNextAlarm, 1e6));
      if (uart.received.length || uart.said.length || repl.received.length) break;
      done += TURN / 8;
    } else {
      clock.tick(pico.core.executeInstruction() * CYCLE_NS);
    }
    if (uart.received.length && !(done & 63) && pico.uart[1].rxFIFO.itemCount < UART_FIFO) {
      pico.uart[1].feedByte(uart.received.shift());
    }
  }
  while (usbIsUp && repl.received.length && !usb.txFIFO.full) usb.sendSerialByte(repl.received.shift());
  repl.flush();
  uart.flush();
  setImmediate(turn);
}

console.log(JSON.stringify({ repl: repl.port, uart: uart.port }));
turn();
