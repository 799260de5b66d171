import numpy as np

from pipeline.wordpiece import SPECIAL_TOKENS, make_tokenizer, train_vocabulary


def random_texts(seed: int) -> list[str]:
  """Words of equally likely letters: almost every merge is a tie."""
  rng = np.random.default_rng(seed)
  letters = np.array(list("abcdefghijklmnop"))
  return ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(97)]


def test_equal_corpora_give_equal_vocabularies_however_many_ties_there_are():
  for seed in range(5):
    texts = random_texts(seed)
    first = train_vocabulary(texts, vocab_size=120)
    assert len(first) == 120
    assert first[:5] == list(SPECIAL_TOKENS)
    for _ in range(5):
      assert train_vocabulary(iter(texts), vocab_size=120) == first


def test_a_trained_vocabulary_splits_every_word_of_its_corpus():
  texts = random_texts(7)
  tokenizer = make_tokenizer(train_vocabulary(texts, vocab_size=120))
  for text in texts:
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    assert "".join(token.removeprefix("##") for token in tokens) == text
