# SPDX-License-Identifier: Apache-2.0
"""What may pass between a program under test and its judge: frames of plain data, and nothing that can act.

A value crosses as JSON. On the other side it is built anew from this module's own types, so that an object whose
`__eq__` always agrees, or whose class runs code when it is loaded, cannot cross: a subclass arrives as the plain value
it holds, anything else as a number that stands for it, if `objects` gives it one.
"""

import json
import os
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from types import TracebackType
from typing import Any

MAX_FRAME_BYTES = 16 << 20
"""Longest frame that is accepted from a program under test."""
MAX_CHECK_BYTES = 64 << 20
"""Longest frame that is accepted from the trusted side."""
MAX_ITEMS_OF_ITERATOR = 1_000_000
"""Items taken from a generator or another iterator, which may be endless."""
_JSON_INTEGERS = 1 << 53  # beyond it as hexadecimal digits: decimal ones take quadratic time and Python limits them


class NotPlainData(Exception):
    """A value that cannot cross, or bytes that are no frame of plain data."""


class EndOfData(Exception):
    """The other side has closed its end."""


class Objects:
    """What is not plain data, by number. This one has none; the two sides of a check put theirs in its place."""

    def number_of(self, value: Any) -> int:
        """The number of an object; NotPlainData if it cannot have one."""
        raise NotPlainData(f"a value of type {type(value).__name__!r}, which cannot leave the program")

    def object_of(self, number: Any) -> Any:
        """The object of a number; NotPlainData if there is none."""
        raise NotPlainData(f"object {number!r}, which is not there")


objects = Objects()


class Caught:
    """Runs what is not ours to trust; whatever it raises, SystemExit included, ends the block and is its `error`."""

    error: BaseException | None = None

    def __enter__(self) -> "Caught":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        self.error = error
        return True


def shown(error: BaseException) -> str:
    """Text of an exception, whose arguments may be objects of the program."""
    with Caught():
        return str(error)
    return "(cannot be shown)"


def description(error: BaseException) -> str:
    """Name and text of an exception."""
    return f"{type(error).__name__}: {shown(error)}"[:300]


def frame(message: Any, limit: int = MAX_FRAME_BYTES) -> bytes:
    """One JSON message behind its length; NotPlainData if it is longer than the limit."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > limit:
        raise NotPlainData(f"{len(data)} bytes, more than the limit of {limit}")
    return struct.pack(">I", len(data)) + data


def write_frame(descriptor: int, message: Any, limit: int = MAX_FRAME_BYTES) -> None:
    """Write a message as `frame` and `write` do."""
    write(descriptor, frame(message, limit))


def write(descriptor: int, data: bytes) -> None:
    """Write all of the data; EndOfData if nobody reads."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except (BrokenPipeError, ConnectionResetError) as error:
        raise EndOfData("nobody reads") from error


def read_frame(descriptor: int, limit: int = MAX_FRAME_BYTES) -> Any:
    """Read one JSON message; NotPlainData if it is too long or no JSON, EndOfData if the other side ends within it."""
    (size,) = struct.unpack(">I", _read_exactly(descriptor, 4))
    if size > limit:
        raise NotPlainData(f"a frame of {size} bytes, more than the limit of {limit}")
    data = _read_exactly(descriptor, size)
    try:
        return json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotPlainData("bytes that are no message") from error


def encode(value: Any) -> Any:
    """JSON form of a value of the types of `_CODES`, of strings, lists and iterators, and of what these hold.

    Of a subclass only the plain value crosses, of other types a number. NotPlainData where `objects` refuses one, and
    for what is nested too deeply.
    """
    try:
        return _encode(value)
    except RecursionError as error:
        raise NotPlainData("a value nested too deeply, or within itself") from error


def decode(message: Any) -> Any:
    """The value that `encode` made a message of; NotPlainData if the message is not of that form."""
    try:
        return _decode(message)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise NotPlainData(f"a malformed value ({type(error).__name__})") from error


def _encode(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_JSON_INTEGERS < value < _JSON_INTEGERS else {"int": hex(value)}
    if kind is list:
        return [_encode(item) for item in value]
    if kind in _CODES:
        return {kind.__name__: _CODES[kind][0](value)}
    for base in kind.__mro__[1:]:
        if base in _REBUILT:
            return _encode(_REBUILT[base](value))
    if isinstance(value, Iterator):
        return {"iterator": _items_of_iterator(value)}
    return {"object": objects.number_of(value)}


def _encode_pairs(value: dict) -> list:
    return [[_encode(key), _encode(item)] for key, item in dict.items(value)]


def _encode_items(value: Any) -> list:
    return [_encode(item) for item in value]


def _encode_moment(value: datetime | time) -> str:
    """A date or a time of day; a zone is code, which cannot cross."""
    if value.tzinfo is not None:
        raise NotPlainData(f"a {type(value).__name__} with a time zone, which cannot leave the program")
    return value.isoformat()


def _items_of_iterator(value: Iterator) -> list:
    items = []
    for item in value:
        if len(items) == MAX_ITEMS_OF_ITERATOR:
            raise NotPlainData(f"an iterator over more than {MAX_ITEMS_OF_ITERATOR} items")
        items.append(_encode(item))
    return items


def _rebuilt(kind: type, value: Any) -> Any:
    return kind(kind.__iter__(value))


def _decode(message: Any) -> Any:
    if isinstance(message, list):
        return [_decode(item) for item in message]
    if isinstance(message, dict):
        ((tag, content),) = message.items()
        return _DECODERS[tag](content)
    return message


def _decode_items(content: list) -> Iterator:
    return (_decode(item) for item in content)


def _decode_pairs(content: list) -> dict:
    return {_decode(key): _decode(item) for key, item in content}


def _items(rebuild: Callable[[Iterator], Any]) -> tuple[Callable, Callable]:
    """Both ways of a value that is its items."""
    return _encode_items, lambda content: rebuild(_decode_items(content))


def _pairs(rebuild: Callable[[dict], Any]) -> tuple[Callable, Callable]:
    return _encode_pairs, lambda content: rebuild(_decode_pairs(content))


_CODES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    float: (float.hex, float.fromhex),
    complex: (
        lambda value: [value.real.hex(), value.imag.hex()],
        lambda content: complex(*map(float.fromhex, content)),
    ),
    bytes: (bytes.hex, bytes.fromhex),
    bytearray: (bytearray.hex, bytearray.fromhex),
    tuple: _items(tuple),
    set: _items(set),
    frozenset: _items(frozenset),
    dict: _pairs(dict),
    OrderedDict: _pairs(OrderedDict),
    Counter: _pairs(Counter),
    deque: _items(deque),
    range: (
        lambda value: _encode_items((value.start, value.stop, value.step)),
        lambda content: range(*_decode_items(content)),
    ),
    Fraction: (
        lambda value: _encode_items((value.numerator, value.denominator)),
        lambda content: Fraction(*_decode_items(content)),
    ),
    Decimal: (str, Decimal),
    date: (date.isoformat, date.fromisoformat),
    datetime: (_encode_moment, datetime.fromisoformat),
    time: (_encode_moment, time.fromisoformat),
    timedelta: (lambda value: [value.days, value.seconds, value.microseconds], lambda content: timedelta(*content)),
    type({}.keys()): _items(lambda items: dict.fromkeys(items).keys()),
    type({}.values()): _items(lambda items: dict(enumerate(items)).values()),
    type({}.items()): _items(lambda items: dict(items).items()),
}
"""How a value of each type is written, and made again of what was written."""
_DECODERS: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: decoder for kind, (_, decoder) in _CODES.items()},
    "int": lambda content: int(content, 16),
    "object": lambda content: objects.object_of(content),
    "iterator": lambda content: iter([_decode(item) for item in content]),
}
_REBUILT: dict[type, Callable[[Any], Any]] = {
    int: lambda value: int.__add__(value, 0),
    float: lambda value: float.__add__(value, 0.0),
    str: lambda value: "".join(str.__iter__(value)),
    **{kind: partial(_rebuilt, kind) for kind in (bytes, tuple, list, set, frozenset)},
    dict: lambda value: dict(dict.items(value)),
}
"""The plain value in an instance of a subclass, such as a named tuple or a defaultdict."""


def _read_exactly(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = os.read(descriptor, min(size - len(data), 1 << 20))
        except ConnectionResetError:
            part = b""
        if not part:
            raise EndOfData("the other side closed its end")
        data += part
    return bytes(data)
