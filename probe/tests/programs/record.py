"""Reads a file of `probe record` by docs/record-format.md alone: record.py FILE. Prints an object per event.

Not a part of the command: what it says is compared with what `probe print` says."""

import json
import struct
import sys
import zlib


class Numbers:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, length):
        assert self.at + length <= len(self.data), "cut"
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self):
        value = self.number()
        return value >> 1 ^ -(value & 1)

    def bytes(self):
        return self.take(self.number())

    def text(self):
        return self.bytes().decode(errors="replace")

    def __bool__(self):
        return self.at < len(self.data)


def stack(body, stacks, names):
    image, pid, end, count = (body.number() for _ in range(4))
    frames, addr = [], 0
    for _ in range(count):
        addr += body.signed()
        frames.append(addr)
    exact = {body.number() for _ in range(body.number())}
    places = [addr if index in exact else addr - 1 for index, addr in enumerate(frames)]
    lines = [names[image, pid, place].split("\n") for place in places]
    stacks.append([line.split("\t")[0] for lines in lines for line in lines])


def facts(payload, probes, places, tasks, names, stacks):
    while payload:
        kind, body = payload.number(), Numbers(payload.bytes())
        if kind == 1:
            text, label, flags, count = body.text(), body.text(), body.number(), body.number()
            args = [(body.text(), body.number(), body.number(), body.number()) for _ in range(count)]
            probes.append((flags & 1, args))
        elif kind == 4:
            image, probe, addr, offset = (body.number() for _ in range(4))
            places.append((probe, body.text()))
        elif kind == 5:
            tasks.append((body.number(), body.number(), body.text()))
        elif kind == 6:
            key = (body.number(), body.number(), body.number())
            names[key] = body.text()
        elif kind == 7:
            tasks.clear()
            names.clear()
            stacks.clear()
        elif kind == 8:
            stack(body, stacks, names)


def value(payload, kind, in_parts, stacks):
    if in_parts and payload.number() == 0:
        return None
    if kind == 4:
        return payload.take(payload.number() >> 1).decode(errors="replace")
    if kind == 8:
        return stacks[payload.number()]
    number = payload.signed() if kind == 1 else payload.number()
    return hex(number) if kind == 2 else number


def events(payload, time, probes, places, tasks, stacks):
    task, left = None, False
    while payload:
        head = payload.number()
        if head == 0:
            number = payload.number()
            if number == 65536:
                left = True
            else:
                task = tasks[number]
            continue
        probe, name = places[(head - 1) // 2]
        is_return, args = probes[probe]
        time += payload.signed()
        event = {"time_ns": time, "event": name, "pid": task[0], "tid": task[1], "comm": task[2]}
        if is_return:
            event["left_ns" if left else "duration_ns"] = payload.number()
        left = False
        values = [(arg[1], arg[0], value(payload, arg[1], head % 2 == 0, stacks)) for arg in args]
        event["args"] = {name: value for kind, name, value in values if kind != 8}
        event.update((name, value) for kind, name, value in values if kind == 8)
        print(json.dumps(event))


def main():
    data = open(sys.argv[1], "rb").read()
    assert data[:12] == b"\x89PROBEREC\r\n\x1a" and data[12:14] == b"\2\0"
    assert zlib.crc32(data[:28]) == struct.unpack("<I", data[28:32])[0]
    at, probes, places, tasks, names, stacks, ended = 32, [], [], [], {}, [], False
    while at < len(data):
        head = data[at : at + 44]
        kind, length, first, last, count, lost, checksum, own = struct.unpack("<4sIQQIQII", head)
        assert zlib.crc32(head[:40]) == own
        payload = data[at + 44 : at + 44 + length]
        assert zlib.crc32(payload) == checksum
        if kind == b"PRBF":
            facts(Numbers(payload), probes, places, tasks, names, stacks)
        elif kind == b"PRBE":
            events(Numbers(payload), first, probes, places, tasks, stacks)
        ended = kind == b"PRBZ"
        at += 44 + length
    assert ended and at == len(data)


main()
