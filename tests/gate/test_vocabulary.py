# SPDX-License-Identifier: Apache-2.0
"""Token bytes against what real tokenizers decode."""

import json
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_trl.gate.vocabulary import vocabulary_bytes
from tests.pretrained import gemma3, smollm2

tokenizers = pytest.importorskip("tokenizers")
AddedToken, Tokenizer = tokenizers.AddedToken, tokenizers.Tokenizer
decoders, models = tokenizers.decoders, tokenizers.models
normalizers, pre_tokenizers = tokenizers.normalizers, tokenizers.pre_tokenizers

CORPUS = [
    "The answer is \\boxed{42}. Therefore, the answer is 42.",
    "```python\ndef f(x):\n    return {x: x + 1}\n```",
    "So $x = \\frac{1}{2}$ and naïve façade über 𝔸 = ½ – done\n\n",
] * 20


def fast(backend):
    """A tokenizer as far as `vocabulary_bytes` looks at one."""
    return SimpleNamespace(backend_tokenizer=backend)


def add_tokens(backend):
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("\n\n\n", special=False, normalized=False)])
    return backend


@pytest.fixture(scope="module")
def byte_level():
    """Byte-level BPE, as in GPT-2, Llama 3 and Qwen."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return add_tokens(backend)


def byte_tokens():
    return [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="module")
def llama():
    """BPE over U+2581 with byte fallback and the decoder of Llama 2, merges learned here."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator([text for text in CORPUS if "𝔸" not in text], trainer)
    model = json.loads(backend.to_str())["model"]
    vocab = {token: number for number, token in enumerate(["<unk>", *byte_tokens()])}
    for token in model["vocab"]:
        vocab.setdefault(token, len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<unk>", special=True)])
    return add_tokens(backend)


@pytest.fixture(scope="module")
def unigram():
    """Unigram pieces with a Metaspace decoder behind byte fallback."""
    letters = sorted({char for text in CORPUS[:2] for char in text} - {" "})
    pieces = [("<unk>", 0.0), *((token, -9.0) for token in byte_tokens()), ("▁", -2.0), ("▁answer", -3.0)]
    backend = Tokenizer(models.Unigram([*pieces, *((char, -4.0) for char in letters)], unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.add_special_tokens([AddedToken("<unk>", special=True)])
    return add_tokens(backend)


TEXTS = st.lists(
    st.sampled_from(
        ["\\boxed{", "}", " ", "  ", "answer", "\n", "\n\n\n", "```", "é", "𝔸", "漢", "\t", "<think>", "x"]
    ),
    max_size=20,
).map("".join)


def written(backend, text):
    ids = backend.encode(text).ids
    vocabulary = vocabulary_bytes(fast(backend))
    return b"".join(vocabulary[token] for token in ids).decode(), backend.decode(ids)


@given(TEXTS)
@example("<think>\\boxed{½}\n\n\n")
@settings(max_examples=300)
def test_byte_level_tokens_join_to_the_text(byte_level, text):
    assert written(byte_level, text) == (text, text)


@given(TEXTS)
@settings(max_examples=300)
def test_sentencepiece_tokens_join_to_the_text_behind_one_blank(llama, text):
    joined, decoded = written(llama, text)
    assert joined.removeprefix(" ") == decoded
    if text and "<think>" not in text and "\n\n\n" not in text:  # blanks are put before text behind these, too
        assert joined == " " + text


@pytest.mark.parametrize("kind", ["byte_level", "llama", "unigram"])
def test_every_single_token_is_what_decoding_shows_and_special_ones_have_no_bytes(kind, request):
    backend = request.getfixturevalue(kind)
    vocabulary = vocabulary_bytes(fast(backend))
    assert len(vocabulary) == backend.get_vocab_size()
    anchor = backend.token_to_id("x")  # keeps the decoder from taking a leading blank away
    for number, data in enumerate(vocabulary):
        shown = backend.decode([anchor, number])
        assert shown == ("x" if data is None else "x" + data.decode(errors="replace")), backend.id_to_token(number)
    assert vocabulary[backend.token_to_id("<|end|>")] is None
    # a normalizer that puts blanks before words puts one into the added token, too, and decoding shows it
    assert vocabulary[backend.token_to_id("<think>")] == (b" <think>" if kind == "llama" else b"<think>")
    assert vocabulary[backend.token_to_id("\n\n\n")] == b"\n\n\n"


def test_all_256_bytes_are_spelled_by_byte_level_tokens(byte_level):
    assert {data for data in vocabulary_bytes(fast(byte_level)) if data and len(data) == 1} == {
        bytes([byte]) for byte in range(256)
    }


def test_rows_behind_the_tokenizer_are_none(byte_level):
    size = byte_level.get_vocab_size()
    vocabulary = vocabulary_bytes(fast(byte_level), size + 5)
    assert vocabulary[:size] == vocabulary_bytes(fast(byte_level))
    assert vocabulary[size:] == [None] * 5


def test_a_model_smaller_than_its_tokenizer_is_an_error(byte_level):
    with pytest.raises(ValueError, match="Resize the model's embeddings"):
        vocabulary_bytes(fast(byte_level), byte_level.get_vocab_size() - 1)


def spelled(vocab, decoder):
    backend = Tokenizer(models.WordLevel({**vocab, "<unk>": len(vocab)}, unk_token="<unk>"))
    backend.decoder = decoder
    return backend


def test_a_decoder_of_several_steps_is_understood_by_what_it_does(byte_level):
    """The decoder that transformers gives to the byte-level vocabulary of a GGUF file: parts of two others."""
    alone = vocabulary_bytes(fast(byte_level))
    backend = Tokenizer.from_str(byte_level.to_str())
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Replace("▁", " "), decoders.ByteLevel(), decoders.Fuse()]
    )
    assert vocabulary_bytes(fast(backend)) == alone


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (decoders.Fuse(), {"ab": b"ab", "▁c": "▁c".encode()}),
        (decoders.WordPiece(), {"ab": b" ab", "##c": b"c"}),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip("a", 1, 0)]), {"▁c": b" c", "ab": b"b"}),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Replace("a", "b")]), {"▁a": b" b", "c": b"c"}),
        (decoders.Sequence([decoders.Replace(tokenizers.Regex("▁+"), " "), decoders.Fuse()]), {"▁▁a": b" a"}),
        (
            decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
            {"<0xE2>": b"\xe2", "<0x41>": b"A", "�": "�".encode()},
        ),
    ],
)
def test_tokens_are_read_as_the_decoder_writes_them(decoder, words):
    table = vocabulary_bytes(fast(spelled({"x": 0} | {word: n for n, word in enumerate(words, start=1)}, decoder)))
    assert table[1 : 1 + len(words)] == list(words.values())


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),  # a token that comes twice is written once
        decoders.Sequence([decoders.Fuse(), decoders.Replace("aa", "b")]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ac", "b")]),  # two tokens
        decoders.Sequence([decoders.Replace(tokenizers.Regex("."), "")]),
    ],
)
def test_a_decoder_that_does_not_write_token_by_token_is_an_error(decoder):
    with pytest.raises(ValueError, match=r"decoder is not understood: .*trim=False, abort=False"):
        vocabulary_bytes(fast(spelled({"x": 0, "a": 1, "c": 2}, decoder)))


@pytest.fixture(scope="module")
def tekken(tmp_path_factory):
    """Mistral's own tokenizer, as AutoTokenizer loads it from a folder with a tekken.json."""
    mistral = pytest.importorskip("mistral_common")
    from transformers import MistralCommonBackend

    path = tmp_path_factory.mktemp("tekken") / "tekken.json"
    path.write_bytes(Path(mistral.__file__).parent.joinpath("data", "tekken_240911.json").read_bytes())
    return MistralCommonBackend(path)


@given(TEXTS)
@settings(max_examples=20)
def test_mistrals_own_tokens_join_to_the_text(tekken, text):
    vocabulary = _tekken_bytes(tekken)
    ids = tekken.encode(text, add_special_tokens=False)
    assert b"".join(vocabulary[token] for token in ids) == text.encode()


def test_mistrals_own_special_tokens_have_no_bytes(tekken):
    vocabulary = _tekken_bytes(tekken)
    assert len(vocabulary) == 131_072 + 5
    assert vocabulary[: len(tekken.all_special_ids)] == [None] * len(tekken.all_special_ids)
    assert vocabulary[131_072:] == [None] * 5
    assert vocabulary_bytes(tekken, shown=["[INST]"])[tekken.all_special_tokens.index("[INST]")] == b"[INST]"


@cache
def _tekken_bytes(tekken):
    return vocabulary_bytes(tekken, 131_072 + 5)


@pytest.mark.slow
@pytest.mark.parametrize("model", [smollm2, gemma3])
def test_the_vocabulary_of_a_pretrained_model_joins_to_the_text(model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model())
    begin = time.process_time()
    vocabulary = vocabulary_bytes(tokenizer)
    assert time.process_time() - begin < 10  # 2 s for 262,144 tokens
    text = "So $x = \\frac{1}{2}$ and naïve 𝔸 = ½\n\n   \\boxed{42}\t漢"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(vocabulary[token] for token in ids).decode() == text
    assert vocabulary[tokenizer.eos_token_id] is None


def test_a_slow_tokenizer_is_an_error():
    with pytest.raises(ValueError, match="is not a fast tokenizer"):
        vocabulary_bytes(SimpleNamespace())


def test_without_a_decoder_tokens_stand_between_blanks():
    backend = Tokenizer(models.WordLevel({"the": 0, "answer": 1, "is": 2, "42": 3, "?": 4}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    table = vocabulary_bytes(fast(backend))
    ids = backend.encode("the answer is 42 so").ids
    assert b"".join(table[number] for number in ids).decode() == " " + backend.decode(ids)
