"""Derivatives by JAX or PyTorch, depending on which the tested function is written in.

A library is used only if the program has imported it already: without that, the function
cannot be written in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from packing.testing.probe import Arrays, as_array, dtype_name, is_floating

Outputs = dict[str, Any]
# Outputs by name and a batch -> the weights of their sum, arrays of the same shapes.
Weigh = Callable[[Outputs, Arrays], dict[str, np.ndarray]]


class Linear(NamedTuple):
  """The floating outputs of a function of embeddings, and their derivatives.

  Attributes:
    outputs: the outputs by name, or their shapes and dtypes.
    pull: weights of each output -> float64[B, S], the largest absolute derivative of the
      weighted sum with respect to each token's embedding.
  """

  outputs: Outputs
  pull: Callable[[list[np.ndarray]], np.ndarray]


def linearize(run: Callable[[Any], Outputs], embeddings: Any) -> Linear:
  """The derivatives of a function of embeddings float[B, S, D].

  Raises:
    ValueError: the function is not written in JAX or PyTorch, or fails.
  """
  reasons = ["Expected a function of JAX or PyTorch to differentiate."]
  for loaded, make in (("jax", _linearize_jax), ("torch", _linearize_torch)):
    if loaded in sys.modules:
      try:
        return make(run, embeddings)
      except Exception as error:  # of any kind, such as a tracer passed to NumPy
        reasons.append(f"With {loaded}: {type(error).__name__}: {error}")
  raise ValueError("\n".join(reasons))


def _linearize_jax(run, embeddings) -> Linear:
  import jax
  import jax.numpy as jnp

  embeddings, names = jnp.asarray(embeddings), list[str]()

  def floating(x):
    outputs = {name: value for name, value in run(x).items() if is_floating(value)}
    names[:] = outputs  # in the order of computation; JAX would sort them
    return list(outputs.values())

  @jax.jit
  def pull(embeddings, weights):
    gradients = jax.vjp(floating, embeddings)[1](weights)[0]
    return jnp.abs(gradients).max(axis=-1)  # [B, S]

  shapes = jax.eval_shape(floating, embeddings)

  def back(weights: list[np.ndarray]) -> np.ndarray:
    typed = [jnp.asarray(w, x.dtype) for w, x in zip(weights, shapes, strict=True)]
    return np.asarray(pull(embeddings, typed), np.float64)

  return Linear(dict(zip(names, shapes, strict=True)), back)


def _linearize_torch(run, embeddings) -> Linear:
  import torch

  leaf = torch.as_tensor(embeddings).clone().requires_grad_()
  with torch.enable_grad():
    outputs = {k: x for k, x in run(leaf).items() if is_floating(x)}
  if outputs and not any(getattr(x, "requires_grad", False) for x in outputs.values()):
    raise ValueError("no output requires a gradient")

  def back(weights: list[np.ndarray]) -> np.ndarray:
    pairs = [
      (x, torch.as_tensor(weight).to(x))
      for x, weight in zip(outputs.values(), weights, strict=True)
      if x.requires_grad
    ]
    values, cotangents = zip(*pairs, strict=True)
    (gradient,) = torch.autograd.grad(
      values, leaf, cotangents, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return gradient.abs().amax(dim=-1).double().cpu().numpy()

  return Linear(outputs, back)


def outputs_and_gradients(
  apply: Callable[[Any, Arrays], Outputs], params: Any, weigh: Weigh
) -> Callable[[Arrays], tuple[Outputs, list[np.ndarray]]]:
  """A function from a batch to its outputs and the gradients of their weighted sum.

  Args:
    apply: params and a batch -> outputs by name.
    params: a tree of JAX arrays, or a dict or list of PyTorch tensors.
    weigh: computes the weights from the outputs or their shapes.
  """
  tensors = list(params.values() if isinstance(params, Mapping) else _items(params))
  torch = sys.modules.get("torch")
  if torch and tensors and all(isinstance(x, torch.Tensor) for x in tensors):
    return _gradients_torch(apply, params, tensors, weigh)
  if "jax" in sys.modules:
    return _gradients_jax(apply, params, weigh)
  raise ValueError(
    f"params is {type(params).__name__}; expected JAX arrays, or a dict or list of tensors "
    "of PyTorch, with the library imported: import jax, or import torch."
  )


def _items(params: Any) -> Iterable[Any]:
  return params if isinstance(params, list | tuple) else [params]


def _gradients_jax(apply, params, weigh: Weigh):
  import jax

  names: list[str] = []

  def total(params, batch, weights):
    outputs = apply(params, batch)
    names[:] = outputs
    value = sum((outputs[name] * weights[name]).sum(dtype=float) for name in weights)
    return value, list(outputs.values())

  compiled = jax.jit(jax.grad(total, has_aux=True, allow_int=True))

  def run(batch):
    shapes = jax.eval_shape(apply, params, batch)
    weights = weigh(shapes, batch)
    weights = {name: w.astype(shapes[name].dtype) for name, w in weights.items()}
    # By default, accelerators compute products of float32 with fewer bits, and then equal
    # sums in another order differ by more than the tolerance. Kernels may refuse "highest"
    # for bfloat16.
    half = any(dtype_name(x) in ("bfloat16", "float16") for x in shapes.values())
    with jax.default_matmul_precision(None if half else "highest"):
      gradients, values = compiled(params, batch, weights)
    floating = [x for x in jax.tree.leaves(gradients) if x.dtype != jax.dtypes.float0]
    return dict(zip(names, values, strict=True)), list(map(np.asarray, floating))

  return run


def _gradients_torch(apply, params, tensors, weigh: Weigh):
  import torch

  leaves = [x for x in tensors if x.requires_grad]
  if not leaves:
    raise ValueError("Expected a tensor in params that requires a gradient, found none.")

  def run(batch):
    with torch.enable_grad():
      outputs = apply(params, batch)
      weights = weigh(outputs, batch)
      parts = [(outputs[k] * torch.as_tensor(w).to(outputs[k])) for k, w in weights.items()]
      total = torch.stack([part.double().sum() for part in parts]).sum()
      gradients = torch.autograd.grad(
        total, leaves, allow_unused=True, materialize_grads=True
      )
    return outputs, [as_array("gradients", x) for x in gradients]

  return run
