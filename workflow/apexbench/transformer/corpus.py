"""What the models learn from: a source of known entropy, or the user's own text. No torch here.

The source is a Markov chain whose unigrams follow Zipf's law exactly. Each token owns an arc of a
circle of length 1, as long as its probability z, in a seeded order. With probability LAMBDA the
next token is drawn from where the current token's arc falls after a rotation; otherwise it is
drawn from z afresh. A rotation preserves lengths, so z is the chain's stationary distribution, and

    P(j | i) = LAMBDA · |(arc i + ROTATION) ∩ arc j| / z_i + (1 - LAMBDA) · z_j.

Only about 2·V pairs overlap, so the entropy rate, which no model's mean loss can beat, is a finite
sum; and a model that knows only the unigrams stays at the far higher entropy of z.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apexbench.errors import UserError
from apexbench.transformer.models import ModelConfig, nearest

LAMBDA = 0.9
ROTATION = (5**0.5 - 1) / 2
SOURCE_SEED = 2017
TRAIN, HELD_OUT = 0, 1
LEAST_SEQUENCES = 80
HELD_OUT_PART = 10
BYTES = 256
BYTE_TOKENS = "bytes"
MOST_BYTES = 1 << 30
"""Of a text: it is held in memory, some copies at once, by Snakemake and each measuring process."""

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Corpus(ABC):
    """A stream of sequences that depends on the seed alone: never on the device or the recipe."""

    entropy: float | None = None
    """The loss floor in nats a token, where one is known."""

    @abstractmethod
    def sequences(self, split: int, seed: int, index: int, count: int, length: int) -> Tokens:
        """Block ``index`` of a split: ``count`` sequences of ``length`` tokens, (count, length)."""


def _surprise(probability: Floats) -> Floats:
    """-p log p in nats."""
    return -probability * np.log(probability)


class MarkovCorpus(Corpus):
    """The chain of this module over ``vocabulary`` tokens."""

    def __init__(self, vocabulary: int):
        zipf = 1.0 / np.arange(1, vocabulary + 1)
        order = np.random.default_rng(SOURCE_SEED).permutation(vocabulary)
        self.unigrams: Floats = (zipf / zipf.sum())[order]
        self.ends: Floats = np.cumsum(self.unigrams)
        self.ends[-1] = 1.0
        self.starts: Floats = np.concatenate(([0.0], self.ends[:-1]))

    def _at(self, points: Floats) -> Tokens:
        """Tokens whose arcs hold these points of [0, 1)."""
        return np.searchsorted(self.ends, points, side="right").clip(max=len(self.ends) - 1)

    @cached_property
    def overlaps(self) -> tuple[Tokens, Tokens, Floats]:
        """Every pair (i, j) whose rotated arc i meets arc j, and P(j | i)."""
        cuts = np.unique(np.concatenate(([0.0], self.ends, (self.ends + ROTATION) % 1.0)))
        cuts = cuts[cuts <= 1.0]
        lengths, middles = np.diff(cuts), (cuts[1:] + cuts[:-1]) / 2
        current, following = self._at((middles - ROTATION) % 1.0), self._at(middles)
        pairs, inverse = np.unique(current * len(self.ends) + following, return_inverse=True)
        shared = np.bincount(inverse, weights=lengths)
        current, following = pairs // len(self.ends), pairs % len(self.ends)
        probability = LAMBDA * shared / self.unigrams[current]
        return current, following, probability + (1 - LAMBDA) * self.unigrams[following]

    @cached_property
    def entropy(self) -> float:  # type: ignore[override]
        """Entropy rate in nats a token: Σ_i z_i H(P(· | i)), over the overlaps and the rest."""
        current, following, probability = self.overlaps
        rest = _surprise((1 - LAMBDA) * self.unigrams)
        difference = _surprise(probability) - rest[following]
        return float(rest.sum() + (self.unigrams[current] * difference).sum())

    @property
    def unigram_entropy(self) -> float:
        """Entropy in nats of the unigrams: the loss of a model that ignores the context."""
        return float(_surprise(self.unigrams).sum())

    def sequences(self, split: int, seed: int, index: int, count: int, length: int) -> Tokens:
        random = np.random.default_rng([seed, split, index])
        result = np.empty((length, count), dtype=np.int64)
        result[0] = self._at(random.random(count))
        for step in range(1, length):
            before = result[step - 1]
            inside = self.starts[before] + random.random(count) * self.unigrams[before]
            points = np.where(
                random.random(count) < LAMBDA, (inside + ROTATION) % 1.0, random.random(count)
            )
            result[step] = self._at(points)
        return np.ascontiguousarray(result.T)


class Tokenizer:
    """How a text becomes tokens: its bytes, or an encoding of tiktoken by name.

    Raises UserError where tiktoken is not installed, does not know the name, or cannot fetch it.
    """

    def __init__(self, name: str, key: str = "tokenizer"):
        self.name, self._encoding = name, None if name == BYTE_TOKENS else _encoding(name, key)

    @property
    def vocabulary(self) -> int:
        """Tokens that a text may hold."""
        return BYTES if self._encoding is None else int(self._encoding.n_vocab)

    def encode(self, text: str) -> npt.NDArray[Any]:
        """Tokens of a text; what looks like a special token is ordinary text."""
        if self._encoding is None:
            return np.frombuffer(text.encode(), dtype=np.uint8)
        return np.asarray(self._encoding.encode_ordinary(text), dtype=np.int32)


def _encoding(name: str, key: str) -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise UserError(
            f"{key} is '{name}', which needs tiktoken: python -m pip install tiktoken, or set "
            f"{key}: {BYTE_TOKENS}."
        ) from error
    if name not in tiktoken.list_encoding_names():
        names = [BYTE_TOKENS, *tiktoken.list_encoding_names()]
        raise UserError(f"{key} is '{name}'; {nearest(name, names)}")
    try:
        return tiktoken.get_encoding(name)
    except Exception as error:  # its download raises what its HTTP library does
        raise UserError(
            f"{key}: tiktoken could not load '{name}' ({type(error).__name__}): connect once, "
            f"set TIKTOKEN_CACHE_DIR to a folder that holds it, or set {key}: {BYTE_TOKENS}."
        ) from error


def checked(path: Path) -> os.stat_result:
    """What the file system says of a text; UserError where it is no file, or too large a one."""
    remedy = "name a text file, or null for the generated corpus"
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"corpus: {path} cannot be read ({error.strerror}): {remedy}.") from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"corpus: {path} is not a regular file: {remedy}.")
    if status.st_size > MOST_BYTES:
        raise UserError(
            f"corpus: {path} has {status.st_size / 2**30:.1f} GiB, and a text may have "
            f"{MOST_BYTES / 2**30:g} GiB: give a part of it."
        )
    return status


def fingerprint(path: Path) -> str:
    """The SHA-256 of a text in hexadecimal; UserError as :func:`checked`."""
    return _hash(path, checked(path).st_mtime_ns)


@functools.cache
def _hash(path: Path, changed: int) -> str:
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(
            f"corpus: {path} cannot be read ({error.strerror}): make it readable, or name another "
            "text file."
        ) from error


def read_text(path: Path) -> str:
    """The text; UserError if the file cannot be read (see :func:`checked`) or is not UTF-8."""
    checked(path)
    try:
        with _opened(path) as file:
            return file.read(MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"corpus: {path} is not UTF-8 (byte {error.start}): convert it, for instance with "
            f"iconv -f latin1 -t utf-8."
        ) from error


@functools.cache
def _tokens(path: Path, tokenizer: str, changed: int) -> npt.NDArray[Any]:
    """Tokens of a text, once for all models that train on it; ``changed`` is when it was."""
    return Tokenizer(tokenizer).encode(read_text(path))


class TextCorpus(Corpus):
    """A UTF-8 text: random crops, the last tenth held out.

    Raises UserError, before anything is measured, if the file is missing, a pipe or a device, above
    1 GiB, not UTF-8 or too short for 80 sequences of the model's, or if the model's vocabulary
    cannot hold the tokenizer's.
    """

    def __init__(self, path: str | Path, model: ModelConfig, tokenizer: str = BYTE_TOKENS):
        words, path = Tokenizer(tokenizer), Path(path)
        tokens = _tokens(path, tokenizer, checked(path).st_mtime_ns)
        if model.vocabulary < words.vocabulary:
            how = "byte by byte" if tokenizer == BYTE_TOKENS else f"as {tokenizer}"
            raise UserError(
                f"corpus: {path} is read {how} and needs a vocabulary of {words.vocabulary}, but "
                f"the model '{model.name}' has {model.vocabulary}: use a model of your own with "
                f"vocabulary: {words.vocabulary}."
            )
        least = LEAST_SEQUENCES * (model.sequence + 1)
        if len(tokens) < least:
            unit = "bytes" if tokenizer == BYTE_TOKENS else f"tokens of {tokenizer}"
            raise UserError(
                f"corpus: {path} has {len(tokens)} {unit}, but the model '{model.name}' with "
                f"sequences of {model.sequence} needs at least {least}: give a longer text or set "
                "a shorter sequence."
            )
        cut = len(tokens) - len(tokens) // HELD_OUT_PART
        self.splits = {TRAIN: tokens[:cut], HELD_OUT: tokens[cut:]}

    def sequences(self, split: int, seed: int, index: int, count: int, length: int) -> Tokens:
        tokens = self.splits[split]
        random = np.random.default_rng([seed, split, index])
        starts = random.integers(0, len(tokens) - length + 1, size=count)
        return np.asarray(tokens[starts[:, None] + np.arange(length)], dtype=np.int64)


def corpus_for(path: str | Path | None, model: ModelConfig, tokenizer: str = BYTE_TOKENS) -> Corpus:
    """The user's text, or the generated corpus; UserError as :class:`TextCorpus`."""
    if path is None:
        return MarkovCorpus(model.vocabulary)
    return TextCorpus(path, model, tokenizer)
