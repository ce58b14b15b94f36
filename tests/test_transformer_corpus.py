"""The corpus: its entropy by formula, by a dense sum and by counting; and bad texts."""

import numpy as np
import pytest

from apexbench.errors import UserError
from apexbench.transformer.corpus import HELD_OUT, LAMBDA, TRAIN, MarkovCorpus, corpus_for
from apexbench.transformer.models import PRESETS

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


def test_small_vocabulary_cannot_take_bytes(tmp_path):
    import dataclasses

    path = tmp_path / "text.txt"
    path.write_text("x" * 9000)
    with pytest.raises(UserError, match="vocabulary of 256"):
        corpus_for(path, dataclasses.replace(TINY, vocabulary=100))
