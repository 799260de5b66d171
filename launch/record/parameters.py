"""The digest and the size of a tree of parameters."""

from __future__ import annotations

import hashlib

import jax
import numpy as np


def parameters_digest(params) -> str:
  """SHA-256 over all parameters, so that two runs can be compared by one number.

  Arrays are in the order of `jax.tree_util.tree_flatten_with_path` (dictionary keys
  sorted); of each array, the path, dtype, shape and bytes in C order are hashed.

  Example:
    >>> parameters_digest({"a": np.zeros(2, np.float32)})[:8]
    'ed5129a5'
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
    array = np.asarray(leaf)
    digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def count_parameters(params) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(params))
