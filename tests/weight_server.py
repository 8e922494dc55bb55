# SPDX-License-Identifier: Apache-2.0
"""A server whose rollouts are a function of the weights that it was sent: `weight_server.py port tokens hold`.

It streams OpenAI's completions, and takes weights through a folder. Tokens come from one distribution, that in the
file `tokens`, drawn by random numbers of the weights, the prompt and the place in the batch. So a run that repeats
another one bit for bit gets its rollouts again, and one that asks under other weights gets others. It imports little,
and is there at once.
"""

import asyncio
import contextlib
import hashlib
import json
import math
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np


class WeightServer:
    """Streams that begin under the weights number `hold` stop after their first token, and stay open; 0: none do."""

    def __init__(self, row: np.ndarray, hold: int) -> None:
        self.row, self.hold = row, hold  # (V,)
        top = np.argsort(self.row)[-5:]
        self.top = {f"token_id:{token}": math.log(self.row[token]) for token in top}
        self.weights, self.reloads, self.version = "", 0, "default"
        self.accepted = self.first = 0  # connections in all, and before the batch

    async def serve(self, port: int) -> None:
        """Answer until the process is killed."""
        self.held = asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.accepted  # the client connects in the order of the batch
        self.accepted += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            body, path = json.loads(await reader.readexactly(length) or b"null"), head.split()[1].partition("?")[0]
            if path == "/v1/completions":
                await self._stream(reader, writer, body, number - self.first)
            else:
                if path == "/held":
                    await self.held.wait()
                text = self._other(path, body).encode()
                status = b"404 No" if text == b"null" else b"200 OK"
                head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(text))
                writer.write(head + text)
            await writer.drain()
        writer.close()

    def _other(self, path: str, body: Any) -> str:
        if path == "/metrics":  # which the client reads before a batch, or behind the one before
            self.first = self.accepted
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/collective_rpc":
            files = sorted(Path(body["kwargs"]["weights_path"]).iterdir())
            self.weights = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
            self.reloads += 1
        known = {
            "/held": {},
            "/health": {},
            "/metrics": {},
            "/collective_rpc": {},
            "/update_weight_version": {},
            "/reset_prefix_cache": {"success": True},
            "/v1/models": {"data": [{"id": "tiny"}]},
            "/weight_info": {"weight_version": self.version},
            "/server_info": {
                "vllm_config": {
                    "device_config": {"device": "none"},
                    "model_config": {"logprobs_mode": "processed_logprobs"},
                }
            },
        }
        return json.dumps(known.get(path))

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: dict[str, Any], place: int
    ) -> None:
        seed = [zlib.crc32(f"{self.weights} {body['prompt']}".encode()), place]
        ids = np.random.default_rng(seed).choice(len(self.row), size=body["max_tokens"], p=self.row).tolist()
        ended = [at for at, token in enumerate(ids) if token in body["stop_token_ids"]][:1]
        ids = ids[: ended[0] + 1] if ended else ids
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for at, token in enumerate(ids):
            logprobs = {"tokens": [f"token_id:{token}"], "token_logprobs": [math.log(self.row[token])]}
            reason = None if at + 1 < len(ids) else "stop" if ended else "length"
            choice = {"index": 0, "text": "x", "token_ids": [token], "prompt_token_ids": body["prompt"]}
            choice |= {"logprobs": logprobs | {"top_logprobs": [self.top]}, "finish_reason": reason}
            writer.write(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
            await writer.drain()
            if self.hold and self.reloads == self.hold:
                self.held.set()
                await reader.read()  # until the client hangs up
                return
        writer.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    port, tokens, hold = sys.argv[1:]
    asyncio.run(WeightServer(np.load(tokens), int(hold)).serve(int(port)))
