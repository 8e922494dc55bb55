# SPDX-License-Identifier: Apache-2.0
"""Pushing to a local stand-in of the Hub's HTTP interface, and what the card says."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
import transformers.utils.hub
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import TrlParser

from duet_trl import DUETGRPOConfig
from duet_trl.seams.checkpoint import ARRAYS_FILE, STATE_FILE
from duet_trl.seams.hub import configuration_yaml
from tests.runs import duet_settings, duet_trainer, trained

TOKEN = "hf_standin"


class Hub(ThreadingHTTPServer):
    """Takes one model: creation and one commit that holds the files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args) -> None:
        pass

    def answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            name = json.loads(body)["name"]
            self.answer({"url": f"{self.server.address}/me/{name}", "name": f"me/{name}", "id": "1"})
        elif self.path == "/api/validate-yaml":
            self.answer({"warnings": [], "errors": []})
        elif "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            kinds = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted]
            self.answer({"files": kinds})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
            self.answer({"commitUrl": f"{self.server.address}/me/x/commit/1", "commitOid": "1" * 40})
        else:
            self.answer({"error": f"no such endpoint {self.path}"}, 404)

    def do_GET(self) -> None:
        self.answer({"id": "me/x", "siblings": [], "sha": "1" * 40, "lastModified": "2026-01-01T00:00:00.000Z"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in of the Hub that this process takes for the real one."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in (("ENDPOINT", server.address), ("HF_HUB_OFFLINE", False), ("HF_HUB_DISABLE_XET", True)):
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # it remembers the address
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def trainer(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """Trained once; every test pushes what it has."""
    folder = tmp_path_factory.mktemp("tiny")
    trainer = trained(tiny_path, folder, max_steps=2, hub_model_id="me/tiny", hub_token=TOKEN)
    return trainer


def test_model_tokenizer_card_and_state_reach_the_hub_and_load_again(trainer, tmp_path, hub):
    trainer.push_to_hub()
    for name in ("model.safetensors", "tokenizer.json", "config.json", "README.md", STATE_FILE):
        assert hub.files[name], name
    received = tmp_path / "received"
    for name, data in hub.files.items():
        (received / name).parent.mkdir(parents=True, exist_ok=True)
        (received / name).write_bytes(data)
    model = AutoModelForCausalLM.from_pretrained(received, dtype=torch.float32)
    pairs = zip(model.parameters(), trainer.model.parameters(), strict=True)
    assert all(torch.equal(mine, yours) for mine, yours in pairs)
    assert AutoTokenizer.from_pretrained(received)("4").input_ids == trainer.processing_class("4").input_ids
    trainer.save_method_state(tmp_path / "again")
    for name in (STATE_FILE, ARRAYS_FILE):
        assert hub.files[name] == (tmp_path / "again" / name).read_bytes()
    card = hub.files["README.md"].decode()
    assert "| duet/generated_tokens |" in card and "arXiv:2605.08441" in card and "tags:" in card
    assert TOKEN not in card and trainer.args.output_dir not in card


@pytest.mark.parametrize(
    ("missing", "message"),
    [("network", "ConnectError: .*hf auth login"), ("token", ".*401"), ("hub", ".*hf auth login")],
)
def test_the_model_is_saved_before_a_push_that_fails_and_the_error_says_where(trainer, missing, message, request):
    saved = [Path(trainer.args.output_dir) / name for name in ("model.safetensors", "tokenizer.json", STATE_FILE)]
    for path in saved:
        path.unlink(missing_ok=True)
    trainer.hub_model_id = None  # as before its first push
    if missing != "hub":  # HF_HUB_OFFLINE is set for all tests, but where there is a stand-in
        hub = request.getfixturevalue("hub")
    if missing == "network":
        hub.shutdown()
        hub.server_close()
    where = re.escape(trainer.args.output_dir)
    with pytest.raises(RuntimeError, match=rf"saved in {where} but was not pushed: {message}"):
        trainer.push_to_hub(**{"token": "hf_wrong"} if missing == "token" else {})
    assert all(path.exists() for path in saved)


def test_the_card_of_a_local_model_names_no_model_called_none(tiny_path, tmp_path):
    trainer = duet_trainer(tiny_path, tmp_path / "sums", max_steps=1)
    trainer.create_model_card()
    card = (tmp_path / "sums" / "README.md").read_text()
    assert "# Model Card for sums\n" in card and "fine-tuned version of a local model" in card
    assert "None" not in card.split("## Training under a token budget")[0]


def test_configuration_in_the_card_is_read_back_to_the_same_one(tmp_path):
    config = DUETGRPOConfig(**duet_settings(tmp_path, method="paper", keep_probability=0.2, hub_token="secret"))
    text = configuration_yaml(config)
    assert "secret" not in text and str(tmp_path) not in text
    path = tmp_path / "card.yaml"
    path.write_text(text)
    (again,) = TrlParser(DUETGRPOConfig).parse_args_and_config(
        ["--config", str(path), "--output_dir", config.output_dir, "--hub_token", "secret"]
    )
    assert again.to_dict() == config.to_dict()
    assert yaml.safe_load(text)["keep_probability"] == 0.2
