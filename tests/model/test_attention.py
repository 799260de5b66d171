import numpy as np
import pytest

from model.attention import packed_attention_mask, padding_attention_mask


def test_the_masks_equal_a_triple_loop():
  segment_ids = np.array([[1, 1, 2, 3, 3, 3, 0], [1, 2, 2, 2, 0, 0, 0], [0] * 7])
  packed = np.asarray(packed_attention_mask(segment_ids))
  padding = np.broadcast_to(padding_attention_mask(segment_ids), packed.shape)
  for row, ids in enumerate(segment_ids):
    for query in range(7):
      for key in range(7):
        assert packed[row, 0, query, key] == (ids[query] == ids[key] != 0)
        assert padding[row, 0, query, key] == (ids[key] != 0)


def test_segment_ids_of_another_rank_are_refused():
  with pytest.raises(ValueError, match=r"shape \[B, S\], found \(3,\)"):
    packed_attention_mask(np.array([1, 1, 2]))
