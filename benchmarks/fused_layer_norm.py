"""Bias, residual sum and LayerNorm in one kernel, and their gradients in another.

The kernels are Pallas's, for GPUs by Triton. They read and write each array of tokens once,
in the dtype of the model, and compute in float32. On CPUs they are interpreted, for tests.
JAX 0.12 calls this use of Triton deprecated: if the kernels are kept, they go to Pallas's
Mosaic GPU.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

ROWS = 8  # tokens that a program computes at once
BLOCKS = 8  # groups of ROWS tokens that one program of the backward pass handles in turn


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def residual_layer_norm(product, bias, residual, scale, offset, epsilon: float):
  """LayerNorm(residual + product + bias).

  Args:
    product: [N, D], of a linear layer without its bias; N is a multiple of
      `ROWS` x `BLOCKS`.
    bias: float32[D], of that layer.
    residual: [N, D].
    scale, offset: float32[D], of the LayerNorm.
    epsilon: of the LayerNorm.

  Returns:
    [N, D], in the dtype of `product`.
  """
  return _forward(product, bias, residual, scale, offset, epsilon)[0]


def _forward(product, bias, residual, scale, offset, epsilon: float):
  tokens, width = product.shape
  rows, vector, number = _specs(ROWS, width)
  shape = functools.partial(jax.ShapeDtypeStruct, (tokens, width))
  per_token = jax.ShapeDtypeStruct((tokens,), jnp.float32)
  output, total, mean, deviation = _call(
    functools.partial(_forward_kernel, width=width, epsilon=epsilon),
    grid=(tokens // ROWS,),
    in_specs=[rows, vector, rows, vector, vector],
    out_specs=[rows, rows, number, number],
    out_shape=[shape(product.dtype), shape(product.dtype), per_token, per_token],
  )(product, bias, residual, scale, offset)
  return output, (total, mean, deviation, scale)


def _forward_kernel(
  product, bias, residual, scale, offset, output, total, mean, deviation, *, width, epsilon
):
  inside = jnp.arange(_padded(width)) < width
  load = functools.partial(_load, inside=inside)
  added = load(product) + load(bias)[None] + load(residual)
  added = added.astype(total.dtype)
  centred = added.astype(jnp.float32)
  means = centred.sum(axis=1) / width
  centred = jnp.where(inside[None], centred - means[:, None], 0.0)
  deviations = jax.lax.rsqrt((centred * centred).sum(axis=1) / width + epsilon)
  normal = centred * deviations[:, None]
  result = normal * load(scale)[None] + load(offset)[None]
  triton.store(total, added, mask=inside[None])
  triton.store(output, result.astype(output.dtype), mask=inside[None])
  mean[...], deviation[...] = means, deviations


def _backward(epsilon: float, saved, gradient):
  del epsilon
  total, mean, deviation, scale = saved
  tokens, width = total.shape
  at_once = ROWS * BLOCKS
  rows, vector, number = _specs(at_once, width)
  programs = tokens // at_once
  part = pl.BlockSpec((1, _padded(width)), lambda i: (i, 0))
  parts = jax.ShapeDtypeStruct((programs, width), jnp.float32)
  of_total, of_scale, of_offset, of_bias = _call(
    functools.partial(_backward_kernel, width=width),
    grid=(programs,),
    in_specs=[rows, rows, number, number, vector],
    out_specs=[rows, part, part, part],
    out_shape=[jax.ShapeDtypeStruct(total.shape, total.dtype), parts, parts, parts],
  )(gradient, total, mean, deviation, scale)
  of_scale, of_offset, of_bias = (x.sum(axis=0) for x in (of_scale, of_offset, of_bias))
  return of_total, of_bias, of_total, of_scale, of_offset


def _backward_kernel(
  gradient, total, mean, deviation, scale, of_total, of_scale, of_offset, of_bias, *, width
):
  inside = jnp.arange(_padded(width)) < width
  scales = _load(scale, inside)

  def block(number, sums):
    rows = pl.ds(number * ROWS, ROWS)
    upstream = _load(gradient.at[rows, :], inside)
    means, deviations = (triton.load(x.at[rows])[:, None] for x in (mean, deviation))
    centred = _load(total.at[rows, :], inside) - means
    normal = jnp.where(inside[None], centred * deviations, 0.0)
    scaled = upstream * scales[None]
    along = (scaled * normal).sum(axis=1, keepdims=True) / width
    straight = scaled.sum(axis=1, keepdims=True) / width
    here = jnp.where(inside[None], deviations * (scaled - straight - normal * along), 0.0)
    triton.store(of_total.at[rows, :], here.astype(of_total.dtype), mask=inside[None])
    of_scale, of_offset, of_bias = sums
    return (
      of_scale + (upstream * normal).sum(axis=0),
      of_offset + upstream.sum(axis=0),
      of_bias + here.sum(axis=0),
    )

  zeros = jnp.zeros(_padded(width), jnp.float32)
  sums = jax.lax.fori_loop(0, BLOCKS, block, (zeros, zeros, zeros))
  for ref, each in zip((of_scale, of_offset, of_bias), sums, strict=True):
    triton.store(ref, each[None], mask=inside[None])


residual_layer_norm.defvjp(_forward, _backward)


def _specs(rows: int, width: int) -> tuple[pl.BlockSpec, pl.BlockSpec, pl.BlockSpec]:
  """Of `rows` tokens, of a vector [D], and of a number for each of these tokens."""
  return (
    pl.BlockSpec((rows, _padded(width)), lambda i: (i, 0)),
    pl.BlockSpec((_padded(width),), lambda i: (0,)),
    pl.BlockSpec((rows,), lambda i: (i,)),
  )


def _padded(width: int) -> int:
  """The next power of 2, as Triton needs it."""
  return 1 << (width - 1).bit_length()


def _load(ref, inside) -> jax.Array:
  """In float32, with zeros outside."""
  mask = inside if len(ref.shape) == 1 else inside[None]
  return triton.load(ref, mask=mask, other=0.0).astype(jnp.float32)


def _call(kernel, **options):
  if jax.default_backend() == "cpu":
    return pl.pallas_call(kernel, interpret=True, **options)
  parameters = triton.CompilerParams(num_warps=8, num_stages=1)
  return pl.pallas_call(kernel, compiler_params=parameters, **options)
