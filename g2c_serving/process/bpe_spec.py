"""What a tokenizer.json says, as far as it is BPE: its tokens' bytes, and what is not text in it.

A byte-level file writes the 256 bytes as 256 printable characters, as GPT-2 does. A SentencePiece
file writes a blank as U+2581 and has tokens <0x00> to <0xFF> for what its alphabet lacks.

Left out: truncation and padding, which belong to batches of equal length, and dropout, which
belongs to training.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from g2c_serving.json_files import read_json, read_object, read_text

BLANK = "\u2581"  # SentencePiece's
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
END_OF_TEXT = "<|endoftext|>"
MOST_IDS = 2**24  # many times what any tokenizer has


def byte_of_character() -> dict[str, int]:
    """GPT-2's table, from byte 0 to 255: printable characters of Latin-1 stand for themselves, the
    other bytes are numbered from U+0100 on."""
    others = iter(range(256, 512))
    return {chr(b if b in PRINTABLE else next(others)): b for b in range(256)}


class BpeSpec:
    """The content of a tokenizer.json, cut to the ids below `vocab_size`. ValueError for what is
    neither byte-level BPE nor BPE with byte fallback.

    reserved        the ids that no text can give, by name
    opening         names of the tokens that the file puts before a text
    missing_bytes   bytes that no token spells: text with them cannot be encoded
    blank_at_start  whether a blank is written before a text's beginning, but not before a later
                    part; strips_blank: whether `decode` takes it away again
    """

    def __init__(self, spec: Mapping[str, Any], vocab_size: int | None = None) -> None:
        if not isinstance(spec, Mapping) or not isinstance(spec.get("model"), Mapping):
            raise ValueError("it has no `model`")
        self.spec, self.model = spec, spec["model"]
        if self.model.get("type", "BPE") != "BPE" or not isinstance(self.model["vocab"], dict):
            raise ValueError(f"its model is {self.model.get('type')!r}, we read BPE")
        kinds = [part["type"] for part in _parts(spec)]
        self.is_byte_level = "ByteLevel" in kinds
        if not self.is_byte_level and not self.model.get("byte_fallback"):
            raise ValueError(
                "it is neither byte-level nor has it byte fallback: it would lose text"
            )
        for name in ("end_of_word_suffix", "continuing_subword_prefix"):
            if affix := self.model.get(name):
                raise ValueError(f"it has {name}={affix!r}: it would lose text")
        added = spec.get("added_tokens") or []
        _check_ids([*self.model["vocab"].items(), *((t["content"], t["id"]) for t in added)])
        size = 1 + max([*self.model["vocab"].values(), *(token["id"] for token in added)])
        self.vocab_size = size if vocab_size is None else vocab_size
        self._sort(added)
        self.opening = [name for name in _opening(spec) if name in self.reserved]
        schemes = {part.get("prepend_scheme") for part in _parts(spec)}
        self.blank_at_start = "first" in schemes
        self.strips_blank = not self.is_byte_level and bool(
            {"Strip", "Metaspace"} & {part["type"] for part in _parts(spec, ["decoder"])}
        )

    def _sort(self, added: list[Mapping[str, Any]]) -> None:
        """Added tokens are reserved unless they are blank; the rest of the vocabulary is text."""
        mine = [token for token in added if token["id"] < self.vocab_size]
        self.blanks = [t for t in mine if not t["special"] and not t["content"].strip()]
        self.reserved = {t["content"]: t["id"] for t in mine if t not in self.blanks}
        self.vocab = {
            token: i
            for token, i in self.model["vocab"].items()
            if i < self.vocab_size and token not in self.reserved
        }
        self.missing_bytes: set[int] = set()
        if self.is_byte_level:
            table = byte_of_character()
            self.missing_bytes = {
                b for character, b in table.items() if character not in self.vocab
            }
        elif lacking := [b for b in range(256) if f"<0x{b:02X}>" not in self.vocab]:
            raise ValueError(f"its byte fallback lacks <0x{lacking[0]:02X}>: it would lose text")

    def token_bytes(self) -> list[bytes]:
        """The bytes of each id; of a reserved one its name."""
        table = byte_of_character()
        found = [b""] * self.vocab_size
        for token, i in self.vocab.items():
            found[i] = self._bytes_of(token, table)
        for token in self.blanks:
            found[token["id"]] = token["content"].encode()
        for name, i in self.reserved.items():
            found[i] = name.encode()
        return found

    def _bytes_of(self, token: str, table: Mapping[str, int]) -> bytes:
        if self.is_byte_level:
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in token)
        if match := BYTE.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(BLANK, " ").encode()

    def ordinary(self, at_start: bool = True) -> dict[str, Any]:
        """The file without its reserved tokens, so that no text can give one: for a text that
        stands at the start, or after another part."""
        spec = copy.copy(dict(self.spec))
        merges = [pair for pair in map(_pair, self.model["merges"]) if self._holds(pair)]
        vocab = self.vocab | {t["content"]: t["id"] for t in self.blanks}  # or they get other ids
        model = {**self.model, "vocab": vocab, "merges": merges, "dropout": None}
        if model.get("unk_token") not in self.vocab:
            model["unk_token"] = None
        spec |= {"model": model, "added_tokens": self.blanks, "post_processor": None}
        spec |= {"truncation": None, "padding": None}
        if not at_start:
            spec["pre_tokenizer"] = _without_blank(spec["pre_tokenizer"])
        return spec

    def _holds(self, pair: list[str]) -> bool:
        return all(token in self.vocab for token in (*pair, "".join(pair)))


def from_vocab_files(folder: Path) -> dict[str, Any]:
    """The content of a tokenizer.json out of GPT-2's older files, vocab.json and merges.txt."""
    config = _read_json(folder / "tokenizer_config.json")
    kind = config.get("tokenizer_class", "GPT2Tokenizer")
    if not kind.startswith("GPT2"):
        raise ValueError(
            f"tokenizer_config.json says {kind}, and only GPT-2's way to split text is known "
            "without a tokenizer.json: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes one"
        )
    vocab = read_json(folder / "vocab.json")
    lines = read_text(folder / "merges.txt").split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    named = _read_json(folder / "special_tokens_map.json")
    names = {name for value in named.values() for name in _names(value)}
    ids = {END_OF_TEXT: vocab.get(END_OF_TEXT)} | {name: vocab.get(name) for name in names}
    ids |= _read_json(folder / "added_tokens.json")
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "added_tokens": [_added(name, i) for name, i in ids.items() if i is not None],
        "normalizer": None,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


def _check_ids(tokens: Iterable[tuple[str, Any]]) -> None:
    names: dict[int, str] = {}
    for name, i in tokens:
        if type(i) is not int or not 0 <= i < MOST_IDS:
            raise ValueError(f"its token {name!r} has the id {i!r}, expected 0 to {MOST_IDS - 1}")
        if names.setdefault(i, name) != name:
            raise ValueError(f"its tokens {names[i]!r} and {name!r} both have the id {i}")


def _added(name: str, token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": name, "special": True, **flags}


def _names(value: Any) -> list[str]:
    """special_tokens_map.json has a name, a dict with one, or a list of those."""
    if isinstance(value, list):
        return [name for one in value for name in _names(one)]
    return [value["content"] if isinstance(value, dict) else value]


def _read_json(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _pair(merge: Any) -> list[str]:
    """A merge is two strings, in older files one with a blank between them."""
    return merge.split(" ") if isinstance(merge, str) else list(merge)


def _parts(
    spec: Mapping[str, Any], of: Iterable[str] = ("normalizer", "pre_tokenizer", "decoder")
) -> Iterator[dict[str, Any]]:
    """The steps of a file before and after its model; a sequence gives its members."""
    for name in of:
        part = spec.get(name) or {}
        members = ("normalizers", "pretokenizers", "decoders")
        yield from next((part[m] for m in members if m in part), [part] if part else [])


def _opening(spec: Mapping[str, Any]) -> Iterator[str]:
    """Names of the tokens that the post-processor puts before a text."""
    processor = spec.get("post_processor") or {}
    for one in processor.get("processors", [processor]):
        for piece in one.get("single", []):
            if "Sequence" in piece:
                break
            yield piece["SpecialToken"]["id"]


def _without_blank(pre_tokenizer: Any) -> Any:
    """The same steps, with nothing written before a text."""
    changed = copy.deepcopy(pre_tokenizer)
    for part in _parts({"pre_tokenizer": changed}):
        if "prepend_scheme" in part:
            part["prepend_scheme"] = "never"
    return changed
