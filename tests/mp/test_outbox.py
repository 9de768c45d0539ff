"""The outbox on MicroPython and CPython: power cuts, failing disks, damage, real files. Prints `N passed, N failed`."""

import os
import sys

sys.path.insert(0, "tests/mp")

import power
from engine_cases import run_calls, tests_of
from mqqb import confirm, core
from ordack.node.storage import log, outbox, replay, sources
from power import bodies, end, put

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


def every_byte_of_a_workload():
    cuts = power.every_cut(seed=7, actions=14, stride=17)
    print(cuts, "cuts")
    assert cuts > 400


def one_life_after_another():
    released = 0
    for seed in range(1, 13):
        capacity = 3000 if seed % 2 else 100000
        released += power.many_lives(seed, 15, capacity=capacity, segment_size=300 + seed % 5 * 200)[0]
        released += power.many_lives(seed, 5, sizes=(0, 40, 700), write_bytes=520, segment_size=2000)[0]
    print(released, "messages released")
    assert released > 200


def segments(folder):
    return [name for name in os.listdir(folder) if name.endswith(".log")]


def test_real_files_keep_what_was_sent():
    folder = scratch("files")
    box = outbox.Outbox(log.Files(folder), power.GUID, segment_size=2000)
    sent = [bytes([k]) * (k * 37 % 1500) for k in range(40)]
    handles = [put(box, body) for body in sent]
    assert [bytes(box.log.load(handle)) for handle in handles] == sent, "readable while it grows"
    end(box, handles[:25])
    box.close()
    again = outbox.Outbox(log.Files(folder))
    assert again.log.guid == power.GUID
    assert bodies(again) == sent[25:]
    assert again.next_message_id == 41
    assert again.queue(LINE).record[2] == 41
    assert len(segments(folder)) < 30, "settled segments are gone"
    end(again, [restored.handle for restored in again.restored])
    assert len(segments(folder)) == 1
    again.close()
    last = outbox.Outbox(log.Files(folder))
    assert last.restored == []
    last.close()


def test_a_torn_tail_is_dropped_and_never_built_upon():
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


def holds(box):
    """All that a start finds, but for what jumps."""
    messages = [(one.queue.name, one.tx_sequence_id, one.tx_sequence_number) for one in box.restored]
    handles = [one.handle for one in box.restored] + box.restored_arrivals
    messages += [(one.message_id, bytes(box.log.load(one)), bytes(one.record)) for one in handles]
    arrivals = [one.source.name for one in box.restored_arrivals]
    counters = [(one.name, bytes(one.record)) for one in box.queues + box.sources]
    return box.log.guid, messages, arrivals, counters, box.last_message_id


def test_any_flipped_bit_is_read_as_it_was():
    """At any state of a log: nothing stops, is lost or made up, no number is used again, and it is said."""
    dice = power.Dice(8)
    states = []

    def note(disk, step, data):
        if dice.below(3) == 0:
            states.append(disk.after_cut(power.KEEP_ALL, dice))

    disk = power.Disk()
    disk.before = note
    box = outbox.Outbox(disk, power.GUID, segment_size=700, capacity=6000, name="press 7")
    queues = [box.queue(name) for name in power.NAMES]
    source = box.source(*power.SOURCES[0])
    handles = []
    for k in range(40):
        handles.append(put(box, b"reading %d" % k + bytes(k), queues[k % 2].name))
        source.record[2] += 1
        arrival = sources.Arrival(box.next_arrival, confirm.new(k + 1, power.CONFIRMATION), source)
        arrival.record[confirm.STATE] = log.RECEIVED
        box.arrive(arrival, source, b"command %d" % k)
        box.sync()
        arrival.record[confirm.STATE] = confirm.GONE
        box.change([arrival])
        if k % 3 == 2:
            box.will_send()
            end(box, handles[: k % 7])
            del handles[: k % 7]
        if k % 11 == 10:
            box = outbox.Outbox(disk, segment_size=700, capacity=6000)
            handles = [one.handle for one in box.restored]
            queues = box.queues
            source = box.sources[0]
    changes = 0
    for state in states[:: max(len(states) // 12, 1)]:
        clean = outbox.Outbox(state.after_cut(power.KEEP_ALL, dice))
        expected = holds(clean)
        for name in sorted(state.files):
            size = len(state.files[name].data)
            for _ in range(20 if size else 0):
                place, mask = dice.below(size), 1 << dice.below(8)
                flipped = state.after_cut(power.KEEP_ALL, dice)
                data = flipped.files[name].data
                data[place] ^= mask
                before = bytes(data)
                box = outbox.Outbox(flipped)
                found = holds(box)
                changes += 1
                assert found[:3] == expected[:3], (name, place, mask)
                assert found[3:] == expected[3:], (name, place, mask)
                assert box.next_message_id >= clean.next_message_id
                assert box.next_arrival >= clean.next_arrival
                assert box.starts >= clean.starts
                if name in flipped.files:
                    every = log.Log(flipped, 0, 0, 1024, None)
                    replay.recover(every)
                    assert name in every.damage[0], (name, place, mask)
                    assert box.damage == every.damage or (len(clean.log.segments) > 1 and not box.damage)
                    assert bytes(data[: len(before)]) == before, "nothing is changed by looking"
    print(changes, "flipped bits")
    assert changes > 400


def test_what_is_broken_worse_is_left_out_and_said():
    """What is behind it is delivered; of what was in there, only what is known to have ended is not missed."""
    for settled in (False, True):
        disk = power.Disk()
        box = outbox.Outbox(disk, power.GUID)
        handles = [put(box, b"reading %d" % k) for k in range(4)]
        if settled:
            end(box, handles[:2])
        put(box, b"last")
        place = handles[1].offset
        for k in range(6):
            disk.tail.data[place + 5 * k] ^= 0xA5
        again = outbox.Outbox(disk)
        whole = [b"reading 2", b"reading 3", b"last"]
        assert bodies(again) == (whole if settled else [b"reading 0"] + whole)
        assert again.damage[0].startswith("00000001.log at byte %d: " % place)
        assert "bytes cannot be read" in again.damage[0]
        assert again.damage[1:] == ([] if settled else ["message 2 cannot be read, and is not known to have ended"])
        assert again.next_message_id > box.next_message_id
        assert all(one.sent for one in again.restored), "they may have been: it was not read"
        put(again, b"new")
        assert bodies(outbox.Outbox(disk))[-1] == b"new"


CUTS = (every_byte_of_a_workload, one_life_after_another)  # CPython has more of both in tests/node/test_outbox.py
TESTS = tests_of(globals())


if __name__ == "__main__":
    run_calls([(test.__name__, test, (), {}) for test in CUTS + TESTS])
