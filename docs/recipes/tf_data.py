"""Packed rows as a tf.data.Dataset."""

import tensorflow as tf

import packing


def packed_rows(
  sequences: tf.RaggedTensor, plan: packing.Plan, *, epoch: int
) -> tf.data.Dataset:
  assignment = plan.assign(sequences.row_lengths().numpy(), seed=epoch)
  packs = tf.RaggedTensor.from_row_splits(assignment.sequence_ids, assignment.offsets)

  def row(pack):
    tokens = tf.gather(sequences, pack)
    fields = {
      "input_ids": tokens.values,
      "segment_ids": tf.cast(tokens.value_rowids(), tokens.dtype) + 1,
      "position_ids": tf.cast(tf.ragged.range(tokens.row_lengths()).values, tokens.dtype),
    }
    fill = [[0, plan.row_length - tf.size(tokens.values)]]
    rows = {name: tf.pad(x, fill) for name, x in fields.items()}
    return {name: tf.ensure_shape(x, [plan.row_length]) for name, x in rows.items()}

  return tf.data.Dataset.from_tensor_slices(packs).map(row)
