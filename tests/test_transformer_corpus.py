"""The corpus: its entropy by formula, by a dense sum and by counting; and bad texts."""

import dataclasses
import hashlib
import importlib.util
import os
import resource
import signal
import sys

import numpy as np
import pytest

from apexbench.errors import UserError
from apexbench.transformer.corpus import (
    HELD_OUT,
    LAMBDA,
    TRAIN,
    MarkovCorpus,
    Tokenizer,
    corpus_for,
    fingerprint,
)
from apexbench.transformer.models import PRESETS
from conftest import require

TINY = PRESETS["tiny"]


def transition(corpus):
    """P(j | i) as a dense matrix."""
    size = len(corpus.unigrams)
    matrix = np.tile((1 - LAMBDA) * corpus.unigrams, (size, 1))
    current, following, probability = corpus.overlaps
    matrix[current, following] = probability
    return matrix


def test_unigrams_are_zipf_and_stationary():
    corpus = MarkovCorpus(50)
    matrix = transition(corpus)
    assert np.allclose(matrix.sum(axis=1), 1)
    assert np.allclose(corpus.unigrams @ matrix, corpus.unigrams)
    ranked = np.sort(corpus.unigrams)[::-1]
    assert np.allclose(ranked * np.arange(1, 51), ranked[0])


def test_entropy_formula_is_the_dense_sum():
    corpus = MarkovCorpus(50)
    matrix = transition(corpus)
    dense = -(corpus.unigrams[:, None] * matrix * np.log(matrix)).sum()
    assert corpus.entropy == pytest.approx(dense, rel=1e-12)
    assert corpus.entropy < corpus.unigram_entropy - 0.5


def test_the_stream_follows_the_formula():
    corpus = MarkovCorpus(16)
    tokens = corpus.sequences(TRAIN, 1, 0, count=2000, length=101)
    counts = np.zeros((16, 16))
    np.add.at(counts, (tokens[:, :-1].ravel(), tokens[:, 1:].ravel()), 1)
    joint = counts / counts.sum()
    empirical = -(joint * np.log(joint / joint.sum(axis=1, keepdims=True))).sum()
    assert empirical == pytest.approx(corpus.entropy, abs=0.01)
    assert joint.sum(axis=1) == pytest.approx(corpus.unigrams, abs=0.005)


def test_order_depends_on_seed_split_and_block_alone():
    draw = MarkovCorpus(256).sequences
    first = draw(TRAIN, 1, 0, 4, 65)
    assert (first == draw(TRAIN, 1, 0, 4, 65)).all()
    for other in ((TRAIN, 2, 0), (TRAIN, 1, 1), (HELD_OUT, 1, 0)):
        assert (first != draw(*other, 4, 65)).any()
    assert first.max() < 256


def test_text_is_read_by_bytes_and_split(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a" * 9000 + "b" * 1000, encoding="utf-8")
    corpus = corpus_for(path, TINY)
    assert (corpus.sequences(TRAIN, 0, 0, 50, 65) == ord("a")).all()
    assert (corpus.sequences(HELD_OUT, 0, 0, 50, 65) == ord("b")).all()
    assert corpus.entropy is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe" * 9000, "not UTF-8"),
        (b"short", "needs at least 5200"),
    ],
)
def test_bad_texts_are_one_sentence(tmp_path, content, expected):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=expected):
        corpus_for(path, TINY)


def large(path):
    with path.open("wb") as file:
        file.truncate(20 << 30)  # sparse: it takes no room


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (os.mkfifo, "is not a regular file: name a text file"),
        (os.mkdir, "is not a regular file: name a text file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file: name a text file"),
        (lambda path: path.symlink_to(path), "cannot be read .*: name a text file"),
        (large, r"has 20\.0 GiB, and a text may have 1 GiB: give a part of it"),
    ],
    ids=("pipe", "folder", "device", "loop", "large"),
)
def test_what_is_no_text_is_one_sentence_within_a_second(tmp_path, make, expected):
    make(tmp_path / "text.txt")

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, resource.RLIM_INFINITY))
    signal.alarm(1)
    try:
        for read in (fingerprint, lambda path: corpus_for(path, TINY)):
            with pytest.raises(UserError, match=expected):
                read(tmp_path / "text.txt")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)


def test_a_text_is_known_by_its_content(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc")
    assert fingerprint(path) == hashlib.sha256(b"abc").hexdigest()
    path.write_text("abd")
    os.utime(path, ns=(1, 1))
    assert fingerprint(path) == hashlib.sha256(b"abd").hexdigest()


def test_small_vocabulary_cannot_take_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("x" * 9000)
    with pytest.raises(UserError, match="vocabulary of 256"):
        corpus_for(path, dataclasses.replace(TINY, vocabulary=100))


@pytest.fixture
def pairs(monkeypatch):
    """tiktoken itself, its one encoding made here: bytes, and pairs of letters as one token."""
    require(importlib.util.find_spec("tiktoken"), "tiktoken reads texts as tokens")
    import tiktoken

    ranks = {bytes([value]): value for value in range(256)}
    ranks |= {bytes([97 + i, 97 + j]): 256 + 26 * i + j for i in range(26) for j in range(26)}
    encoding = tiktoken.Encoding(
        "pairs", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 932}
    )
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["gpt2", "pairs"])
    monkeypatch.setattr(tiktoken, "get_encoding", {"pairs": encoding}.__getitem__)
    return encoding


LARGE = dataclasses.replace(TINY, vocabulary=1024)


def test_text_is_read_through_tiktoken(tmp_path, pairs):
    path = tmp_path / "text.txt"
    path.write_text("abcd<|endoftext|>é " * 2000, encoding="utf-8")
    corpus = corpus_for(path, LARGE, "pairs")
    tokens = corpus.sequences(TRAIN, 0, 0, 4, 65)
    assert 256 <= tokens.max() < 932  # pairs, but no special token
    words = Tokenizer("pairs")
    assert words.vocabulary == 933
    assert words.encode("abcd").tolist() == [256 + 1, 256 + 26 * 2 + 3]
    assert Tokenizer("bytes").encode("é").tolist() == [0xC3, 0xA9]


@pytest.mark.parametrize(
    ("text", "tokenizer", "model", "expected"),
    [
        ("ab " * 9000, "pairs", TINY, "is read as pairs and needs a vocabulary of 933"),
        ("ab " * 900, "pairs", LARGE, "has 1800 tokens of pairs, but .* needs at least 5200"),
        ("ab " * 9000, "pair", LARGE, "tokenizer is 'pair'; did you mean 'pairs'"),
        ("ab " * 9000, "gpt2", LARGE, "could not load 'gpt2' .KeyError.: connect once"),
    ],
)
def test_what_tiktoken_cannot_do_is_one_sentence(tmp_path, pairs, text, tokenizer, model, expected):
    path = tmp_path / "text.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=expected):
        corpus_for(path, model, tokenizer)


def test_without_tiktoken_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UserError, match="needs tiktoken: python -m pip install tiktoken, or set"):
        Tokenizer("gpt2")
    assert Tokenizer("bytes").vocabulary == 256
