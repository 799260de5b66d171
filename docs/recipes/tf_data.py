"""Packed rows as a tf.data.Dataset."""

import tensorflow as tf

import packing

NAMES = ("input_ids", "segment_ids", "position_ids")


def packed_rows(sequences: tf.RaggedTensor, plan: packing.Plan, *, epoch: int):
  if plan.spacing != {"length_multiple": 1, "separator_tokens": 0}:
    raise ValueError(f"The plan has gaps between sequences: {plan.spacing}.")
  packs = plan.assign(sequences.row_lengths().numpy(), seed=epoch)
  packs = tf.RaggedTensor.from_row_splits(packs.sequence_ids, packs.offsets)

  def row(pack):
    tokens = tf.gather(sequences, pack)
    segments, positions = tokens.value_rowids() + 1, tf.ragged.range(tokens.row_lengths())
    fields = [tf.cast(x, tf.int32) for x in (tokens.values, segments, positions.values)]
    fields = tf.unstack(tf.ragged.stack(fields).to_tensor(shape=[3, plan.row_length]))
    return dict(zip(NAMES, fields, strict=True))

  return tf.data.Dataset.from_tensor_slices(packs).map(row)
