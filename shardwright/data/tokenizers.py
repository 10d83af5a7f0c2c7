"""Text to token ids and back: plain bytes, or a Hugging Face `tokenizer.json`.

The separator is the token that stands before each document of a stream (see `shards.py`). Text never becomes the
separator by accident: the byte tokenizer has an id of its own for it, and a `tokenizer.json` is told to read its
special tokens, where they occur in text, as ordinary text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.spec.errors import BadInput, suggestion
from shardwright.spec.model import ModelSpec
from shardwright.spec.run import DataSpec

USUAL_SEPARATORS = (
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|end▁of▁sentence|>",
    "[SEP]",
)
"""End-of-text tokens of published tokenizers, in the order in which they are looked for."""


class Tokenizer(Protocol):
    """What the rest of the house needs of a tokenizer. All of them can be pickled, so workers can have them."""

    @property
    def name(self) -> str:
        """What a person would call it."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are, the separator among them: the largest id plus one."""

    @property
    def separator(self) -> int:
        """Id of the token that stands before each document."""

    @property
    def fingerprint(self) -> str:
        """The same for the same mapping from text to ids, on every machine."""

    def encode(self, text: str) -> NDArray[Any]:
        """Ids of a text, without a separator."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; a separator becomes a line break."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token; id 256 is the separator."""

    name = "bytes"
    vocabulary = 257
    separator = 256
    fingerprint = hashlib.blake2b(b"shardwright bytes 1", digest_size=16).hexdigest()

    def encode(self, text: str) -> NDArray[Any]:
        """The bytes of the text."""
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of bytes; those that are not UTF-8, as a model may write them, become U+FFFD."""
        return bytes(10 if token >= 256 else token for token in map(int, ids)).decode(errors="replace")


class JsonTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` package."""

    def __init__(self, path: Path, separator: str | None = None) -> None:
        try:
            import tokenizers
        except ImportError:
            raise BadInput(
                "data.tokenizer",
                str(path),
                rule="needs the package tokenizers, which is not installed",
                fix="pip install 'shardwright[tokenizers]', or use \"bytes\"",
            ) from None
        self._arguments = (path, separator)
        content = path.read_bytes()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the package raises plain Exception
            raise BadInput("data.tokenizer", str(path), rule=f"cannot be read as a tokenizer.json: {error}") from None
        # Text that happens to contain "<|endoftext|>" must not end a document, nor set any other switch.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.name = path.parent.name if path.name == "tokenizer.json" else path.stem
        self.vocabulary = max(ids.values()) + 1
        self.separator = _separator(path, ids, separator)
        digest = hashlib.blake2b(content, digest_size=16)
        digest.update(str(self.separator).encode())
        self.fingerprint = digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        # The package's own pickling forgets `encode_special_tokens`.
        return (JsonTokenizer, self._arguments)

    def encode(self, text: str) -> NDArray[Any]:
        """Ids of a text, without any token that the tokenizer would add of itself."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, documents parted by line breaks."""
        documents: list[list[int]] = [[]]
        for token in map(int, ids):
            if token == self.separator:
                documents.append([])
            else:
                documents[-1].append(token)
        return "\n".join(self._tokenizer.decode(tokens, skip_special_tokens=False) for tokens in documents)


def tokenizer_for(spec: DataSpec) -> Tokenizer:
    """The tokenizer that a run's data names."""
    if spec.tokenizer == "bytes":
        if spec.separator is not None:
            raise BadInput(
                "data.separator",
                spec.separator,
                rule="the byte tokenizer has a separator of its own",
                fix="Leave data.separator out",
            )
        return ByteTokenizer()
    path = Path(spec.tokenizer).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise BadInput(
            "data.tokenizer",
            spec.tokenizer,
            rule=f"there is no file {path}",
            fix='Use "bytes", or the path of a tokenizer.json or of the folder that holds it',
        )
    return JsonTokenizer(path, spec.separator)


def check_vocabulary(tokenizer: Tokenizer, model: ModelSpec) -> None:
    """Refuse a model with fewer rows in its embedding than the tokenizer has ids."""
    if tokenizer.vocabulary > model.vocabulary:
        raise BadInput(
            "model.vocabulary",
            model.vocabulary,
            rule=f"is smaller than the {tokenizer.vocabulary} ids of the tokenizer {tokenizer.name}",
            fix=f"Set model.vocabulary to {tokenizer.vocabulary} or more, or use another data.tokenizer",
        )


def _separator(path: Path, ids: dict[str, int], wanted: str | None) -> int:
    """The id of the separator: as asked for, as configured beside the tokenizer, or one of the usual names."""
    if wanted is not None:
        if wanted not in ids:
            near = suggestion(wanted, [token for token in ids if token.startswith("<")] or list(USUAL_SEPARATORS))
            raise BadInput("data.separator", wanted, rule=f"is not a token of {path}", fix=near)
        return ids[wanted]
    for name in (_configured_separator(path), *USUAL_SEPARATORS):
        if name is not None and name in ids:
            return ids[name]
    raise BadInput(
        "data.separator",
        rule=f"is missing, and {path} has none of the usual end-of-text tokens",
        fix="Name the token that stands between documents, as data.separator = …",
    )


def _configured_separator(path: Path) -> str | None:
    """`eos_token` of the tokenizer_config.json beside a tokenizer, where there is one."""
    beside = path.with_name("tokenizer_config.json")
    if not beside.is_file():
        return None
    try:
        token = json.loads(beside.read_bytes()).get("eos_token")
    except (ValueError, AttributeError):
        raise BadInput("data.tokenizer", str(beside), rule="is not a JSON object") from None
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
