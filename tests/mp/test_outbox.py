"""The outbox on MicroPython and CPython: power cuts, failing disks, damage, real files. Prints `N passed, N failed`."""

import os
import sys

sys.path.insert(0, "tests/mp")

import power
from mqqb import confirm, core
from node import outbox

LINE = power.NAMES[0]


def scratch(name):
    """An empty folder under build/, of this interpreter's own: several run at once."""
    folder = "build/outbox-" + name + "-" + sys.implementation.name + "-" + core.implementation
    for path in ("build", folder):
        try:
            os.mkdir(path)
        except OSError:
            pass
    for old in os.listdir(folder):
        os.remove(folder + "/" + old)
    return folder


def put(box, body, name=LINE):
    """Send one message; its handle."""
    queue = box.queue(name)
    handle = outbox.Stored(box.next_message_id, confirm.new(1, power.CONFIRMATION))
    record = power.array("I", queue.record)
    record[2] += 1
    box.append(handle, queue, outbox.TRANSACTIONAL | outbox.RECOVERABLE, record, body)
    box.sync()
    return handle


def fill(box):
    while True:
        put(box, bytes(200))


def end(box, handles):
    """Nobody needs these messages any more."""
    for handle in handles:
        handle.record[confirm.STATE] = ord(confirm.GONE)
    box.change(handles)


def bodies(box):
    return [bytes(box.load(restored.handle)) for restored in box.restored]


def raises(kind, call, *arguments):
    """The exception of that kind which the call must raise."""
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError("it should have raised " + str(kind))


def every_byte_of_a_workload():
    ways = (power.KEEP_ALL, power.KEEP_SYNCED, power.TEAR, power.KILL)
    cuts = power.every_cut(seed=7, actions=14, ways=ways, stride=2)
    print(cuts, "cuts")
    assert cuts > 3000


def one_life_after_another():
    released = 0
    for seed in range(1, 61):
        capacity = 3000 if seed % 2 else 100000
        released += power.many_lives(seed, 15, capacity=capacity, segment_size=300 + seed % 5 * 200)[0]
    print(released, "messages released")
    assert released > 2000


def segments(folder):
    return [name for name in os.listdir(folder) if name.endswith(".log")]


def real_files_keep_what_was_sent():
    folder = scratch("files")
    box = outbox.Outbox(outbox.Files(folder), power.GUID, segment_size=2000)
    sent = [bytes([k]) * (k * 37 % 1500) for k in range(40)]
    handles = [put(box, body) for body in sent]
    assert [bytes(box.load(handle)) for handle in handles] == sent, "readable while it grows"
    end(box, handles[:25])
    box.close()
    again = outbox.Outbox(outbox.Files(folder))
    assert again.guid == power.GUID
    assert bodies(again) == sent[25:]
    assert again.next_message_id == 41
    assert again.queue(LINE).record[2] == 41
    assert len(segments(folder)) < 30, "settled segments are gone"
    end(again, [restored.handle for restored in again.restored])
    assert len(segments(folder)) == 1
    again.close()
    last = outbox.Outbox(outbox.Files(folder))
    assert last.restored == []
    last.close()


def a_torn_tail_is_dropped_and_never_built_upon():
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    put(box, b"whole")
    put(box, b"torn")
    disk.tail.data = disk.tail.data[:-1]
    size = len(disk.tail.data)
    box = outbox.Outbox(disk)
    assert bodies(box) == [b"whole"]
    assert box.next_message_id == 2, "the torn one was never accepted"
    put(box, b"after it")
    assert len(disk.files) == 2
    assert len(disk.files["00000001.log"].data) == size
    assert bodies(outbox.Outbox(disk)) == [b"whole", b"after it"]


def damage_is_reported():
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    handles = [put(box, b"reading %d" % k) for k in range(3)]
    tail = disk.tail
    files = {name: bytes(disk.files[name].data) for name in disk.files}
    records = [0, handles[0].offset - 60] + [handle.offset for handle in handles]  # the queue's record comes first
    for place in range(len(tail.data)):
        tail.data[place] ^= 0x10
        if place < handles[2].offset:
            error = raises(outbox.OutboxDamaged, outbox.Outbox, disk)
            assert error.name == "00000001.log"
            assert error.offset == max([start for start in records if start <= place])
            if place >= handles[0].offset:
                assert raises(outbox.OutboxDamaged, box.load, handles[place >= handles[1].offset]).name == error.name
        else:  # nothing behind the last record says that it was durable: it looks like one that was torn
            assert bodies(outbox.Outbox(disk)) == [b"reading 0", b"reading 1"]
        tail.data[place] ^= 0x10
    assert files == {name: bytes(disk.files[name].data) for name in disk.files}, "nothing is changed by looking"


TESTS = (
    every_byte_of_a_workload,
    one_life_after_another,
    real_files_keep_what_was_sent,
    a_torn_tail_is_dropped_and_never_built_upon,
    damage_is_reported,
)


def main():
    failed = 0
    for test in TESTS:
        try:
            test()
        except Exception as error:
            failed += 1
            print("FAILED", test.__name__)
            if hasattr(sys, "print_exception"):
                sys.print_exception(error)
            else:
                raise
    print("%d passed, %d failed" % (len(TESTS) - failed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
