# SPDX-License-Identifier: Apache-2.0
"""A client in a process of its own, whose memory and open files are those of one batch.

    python -m tests.engines.load_client <url> <work.pickle> <found.json> <open files>

The token comes from the environment. The batch is read from one file, the rollouts are written to the other.
"""

import json
import os
import pickle
import resource
import sys
from dataclasses import asdict
from pathlib import Path

from duet_trl.engines.guard import TOKEN_VARIABLE
from duet_trl.engines.server import GateServer


def memory_kib(name: str) -> int:
    """A line of /proc/self/status: VmRSS, or VmHWM, its peak since the process began."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])


def main(url: str, work: str, found: str, files: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    client = GateServer(url, os.environ[TOKEN_VARIABLE])
    client.wait(60.0)
    asked = pickle.loads(Path(work).read_bytes())
    before = memory_kib("VmRSS")
    rollouts = client.complete(**asked)
    growth = memory_kib("VmHWM") - before
    Path(found).write_text(json.dumps({"growth_kib": growth, "rollouts": [asdict(row) for row in rollouts]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
