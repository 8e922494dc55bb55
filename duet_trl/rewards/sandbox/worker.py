# SPDX-License-Identifier: Apache-2.0
"""The process that runs a program under test, and does nothing else: it answers the judge's calls with plain values.

The program can rewrite all of this interpreter, which gains it nothing: no test, expected value or verdict comes here,
and whatever is sent to the judge is read as the value of a call.
"""

import atexit
import builtins
import contextlib
import operator
import os
import re
import sys
import threading
import types
from typing import Any

from . import codec
from .codec import MAX_ANSWER_BYTES, MAX_CHECK_BYTES, Caught, EndOfData, Link, NotPlainData

INPUT, OUTPUT = 4, 5
"""Descriptors of the files in memory that a script reads and prints to."""
MODULE_NAME = "program"
_NEXT_STATEMENT = re.compile(r"^(?:class|def|async def|if|for|while|print|assert|import|from|@|#|```)", re.MULTILINE)
"""Where a base model that was asked for a function body continues with something else."""


class _Own(codec.Objects):
    """Objects of the program that the tests may ask for, by number."""

    def __init__(self, named: list[Any]) -> None:
        self._all = named
        self._numbers = {id(value): number for number, value in enumerate(named)}

    def number_of(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._all)
            self._all.append(value)  # kept, so that its id stays its own
        return self._numbers[id(value)]

    def object_of(self, number: Any) -> Any:
        return self._all[number]


OPERATIONS = {
    "call": lambda function, *arguments, **options: function(*arguments, **options),
    "attribute": getattr,
    "assign": setattr,
    "length": len,
    "items": iter,
    "item": operator.getitem,
    "replace": operator.setitem,
    "text": str,
}
"""Operations that the tests may ask of an object."""


def work(link: Link) -> None:
    """Load the program that the judge sends first, then answer calls until the judge closes the link."""
    builtins.exit = builtins.quit = sys.exit  # what `site` would add; it is not imported
    with Caught() as outcome:
        program = link.receive(MAX_CHECK_BYTES)
        if not program["reads_input"]:
            os.close(INPUT)
            os.close(OUTPUT)
        functions = _load(program)
        codec.objects = _Own([functions[name] for name in program["names"]])
        link.send({"loaded": True})
    while outcome.error is None:
        try:
            request = link.receive(MAX_CHECK_BYTES)
        except EndOfData:
            return
        with Caught() as failed:
            link.send(_answer(request))
        if failed.error is not None:
            link.send({"ended": codec.description(failed.error)})
    link.send({"ended": codec.description(outcome.error)})


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    arguments, options = codec.decode(request["arguments"]), codec.decode(request["options"])
    with Caught() as outcome:
        value = OPERATIONS[request["operation"]](codec.objects.object_of(request["object"]), *arguments, **options)
        return {"value": codec.encode(value)}
    if isinstance(outcome.error, NotPlainData):
        return {"ended": f"it returned {outcome.error}"}
    if isinstance(outcome.error, Exception):
        return _raised(outcome.error)
    return {"ended": codec.description(outcome.error)}


def _load(program: dict[str, Any]) -> dict[str, Any]:
    """Name and function of what the tests call."""
    program["source"] = program["source"].removeprefix("\ufeff")  # the byte order mark of a file
    if program["reads_input"]:
        code = compile(program["source"], f"<{MODULE_NAME}>", "exec", dont_inherit=True)
        return {name: lambda text: _run_script(code, text) for name in program["names"]}
    preamble, source, names = program["preamble"], program["source"], program["names"]
    attempts = [(preamble, source)]
    if preamble and re.match(r"\s*[ \t]\S", source):
        # the body of the function that the preamble begins, perhaps with more after it
        attempts += [("", preamble + source), ("", preamble + _NEXT_STATEMENT.split(source)[0])]
    for attempt in attempts:
        with Caught() as outcome:
            return _execute(*attempt, names)
    raise outcome.error


def _execute(preamble: str, source: str, names: list[str]) -> dict[str, Any]:
    """The namespace after preamble and source; a name that only the preamble defines does not count."""
    code = compile(source, f"<{MODULE_NAME}>", "exec", dont_inherit=True)
    namespace = _new_module(MODULE_NAME)
    for ending in ("", "\n    pass\n"):  # the preamble may end in the middle of a function
        with Caught() as outcome:
            exec(compile(preamble + ending, "<preamble>", "exec", dont_inherit=True), namespace)
        if outcome.error is None:
            break
    for name in names:
        namespace.pop(name, None)
    exec(code, namespace)
    if missing := [name for name in names if name not in namespace]:
        raise NameError(f"the program does not define {', '.join(missing)}")
    return namespace


def _run_script(code: types.CodeType, text: str) -> str:
    """Output of the program when it reads this text: the descriptors are files in memory, which scripts also use.

    It may end by sys.exit. As when an interpreter ends, threads are waited for and exit functions run.
    """
    for kept, usual in ((INPUT, 0), (OUTPUT, 1)):
        os.ftruncate(kept, 0)
        os.lseek(kept, 0, os.SEEK_SET)
        os.dup2(kept, usual)
    with open(INPUT, "wb", closefd=False) as given:
        given.write(text.encode())
    os.lseek(INPUT, 0, os.SEEK_SET)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)
    with contextlib.suppress(SystemExit):
        exec(code, _new_module("__main__"))
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.__stdout__.flush()
    if os.fstat(OUTPUT).st_size > MAX_ANSWER_BYTES // 4:
        raise NotPlainData("too much output")
    return os.pread(OUTPUT, MAX_ANSWER_BYTES, 0).decode()


def _new_module(name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def _raised(error: Exception) -> dict[str, Any]:
    """An exception with the classes that it inherits from, one of which the tests may expect."""
    text = codec.shown(error)[:1000]
    with Caught() as outcome:
        arguments = codec.encode(error.args)
        codec.framed(arguments, MAX_ANSWER_BYTES // 4)
    if outcome.error is not None:
        arguments = codec.encode((text,))
    names = [base.__name__ for base in type(error).__mro__]
    return {"raised": names[:20], "text": text, "arguments": arguments}
