# SPDX-License-Identifier: Apache-2.0
"""The process that runs a program under test, and does nothing else: it answers the judge's calls with plain values.

The program shares this interpreter and can rewrite all of it. That gains it nothing: no test, no expected value and no
verdict ever comes here, and whatever is sent to the judge is read as the value of a call.
"""

import io
import re
import sys
import types
from typing import Any

from .sandbox_codec import (
    MAX_CHECK_BYTES,
    MAX_FRAME_BYTES,
    Caught,
    EndOfData,
    NotPlainData,
    decode,
    encode,
    read_frame,
    write_frame,
)

MODULE_NAME = "program"
_NEXT_STATEMENT = re.compile(r"^(?:class|def|async def|if|for|while|print|assert|import|from|@|#|```)", re.MULTILINE)
"""Where a base model that was asked for a function body goes on to something else."""


def work(link: int) -> None:
    """Load the program that the judge sends first, then answer calls until the judge closes the link."""
    with Caught() as outcome:
        functions = _load(read_frame(link, MAX_CHECK_BYTES))
        write_frame(link, {"loaded": True})
    if outcome.error is not None:
        write_frame(link, {"ended": _description(outcome.error)})
        return
    while True:
        try:
            request = read_frame(link, MAX_CHECK_BYTES)
        except EndOfData:
            return
        with Caught() as outcome:
            write_frame(link, _answer(functions, request))
        if outcome.error is not None:
            write_frame(link, {"ended": _description(outcome.error)})


def _answer(functions: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    arguments, options = decode(request["arguments"]), decode(request["options"])
    with Caught() as outcome:
        value = functions[request["name"]](*arguments, **options)
        return {"value": encode(value)}
    if isinstance(outcome.error, NotPlainData):
        return {"ended": f"it returned {outcome.error}"}
    if isinstance(outcome.error, Exception):
        return {"raised": type(outcome.error).__name__, "text": str(outcome.error)[:1000]}
    return {"ended": _description(outcome.error)}


def _load(program: dict[str, Any]) -> dict[str, Any]:
    """Name and function of what the tests call."""
    if program["reads_input"]:
        code = compile(program["source"], f"<{MODULE_NAME}>", "exec", dont_inherit=True)
        return {name: lambda text: _run_script(code, text) for name in program["names"]}
    preamble, source, names = program["preamble"], program["source"], program["names"]
    attempts = [(preamble, source)]
    if preamble and re.match(r"\s*[ \t]\S", source):
        # the body of the function that the preamble begins, perhaps with more behind it
        cut = _NEXT_STATEMENT.split(source)[0]
        attempts += [("", preamble + source), ("", preamble + cut)]
    for number, attempt in enumerate(attempts, start=1):
        with Caught() as outcome:
            namespace = _execute(*attempt, names)
        if outcome.error is None:
            missing = [name for name in names if name not in namespace]
            if not missing:
                return namespace
            outcome.error = NameError(f"the program does not define {', '.join(missing)}")
        if number == len(attempts):
            raise outcome.error
    raise AssertionError("there is always an attempt")


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
    return namespace


def _run_script(code: types.CodeType, text: str) -> str:
    """What the program prints when it reads this text; it may end itself by sys.exit."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    printed = _LimitedBuffer()
    sys.stdout = output = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
    try:
        exec(code, _new_module("__main__"))
    except SystemExit:
        pass
    output.flush()
    return printed.getvalue().decode()


class _LimitedBuffer(io.BytesIO):
    """Output of a script, up to what a frame can carry."""

    def write(self, data: bytes) -> int:
        if self.tell() + len(data) > MAX_FRAME_BYTES // 4:
            raise NotPlainData("too much output")
        return super().write(data)


def _new_module(name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def _description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
