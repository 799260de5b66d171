"""The certificate of a plan: nothing was lost, and how far it is from the minimum."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Certificate:
  """What went into a plan, what came out, and the proven minimum.

  Attributes:
    histogram_sha256: identifies the histogram; see `Histogram.sha256`.
    num_sequences_in, num_tokens_in: counted in the histogram.
    num_sequences_out, num_tokens_out: counted in the packs.
    lower_bound: the packs that any plan under the same limits needs at least.
    bound_proof: "simple" if tokens, depth or long sequences prove the bound; "weights"
      if the weights stored with the plan do.
    gap: packs above the bound.
    num_padding_tokens: includes separators and the gaps of `length_multiple`.
    efficiency: real tokens / all tokens, a fraction.
    packs_by_depth: the number of packs for each number of sequences in them.

  The other attributes are those of the plan.
  """

  algorithm: str
  row_length: int
  max_sequences_per_pack: int
  length_multiple: int
  separator_tokens: int
  histogram_sha256: str
  num_sequences_in: int
  num_sequences_out: int
  num_tokens_in: int
  num_tokens_out: int
  num_strategies: int
  num_packs: int
  lower_bound: int
  bound_proof: str
  gap: int
  num_padding_tokens: int
  efficiency: float
  packing_factor: float
  packs_by_depth: dict[int, int]

  @property
  def optimal(self) -> bool:
    """Whether the plan is proven to have the fewest packs possible."""
    return self.gap == 0

  def as_dict(self) -> dict:
    return dataclasses.asdict(self) | {"optimal": self.optimal}

  def __str__(self) -> str:
    depth = self.max_sequences_per_pack
    limit = "no depth limit" if depth == self.row_length else f"depth at most {depth}"
    how = {
      "simple": "by tokens, depth or long sequences",
      "weights": "by the weights stored with the plan",
    }[self.bound_proof]
    lines = [
      f"{self.algorithm}, rows of {self.row_length} tokens, {limit}",
      f"sequences {self.num_sequences_in:>20,} in = {self.num_sequences_out:,} out",
      f"tokens    {self.num_tokens_in:>20,} in = {self.num_tokens_out:,} out",
      f"packs     {self.num_packs:>20,} of {self.num_strategies:,} kinds; "
      f"{verdict(self.gap)}",
      f"minimum   {self.lower_bound:>20,} proven {how}",
      f"padding   {self.num_padding_tokens:>20,} tokens",
      f"efficiency{self.efficiency:>20.6f} real tokens / all tokens",
      f"factor    {self.packing_factor:>20.6f} sequences a pack",
    ]
    lines += [
      f"depth {number:<4}{packs:>20,} packs"
      for number, packs in self.packs_by_depth.items()
    ]
    lines.append(f"histogram sha256 {self.histogram_sha256}")
    return "\n".join(lines)


def verdict(gap: int) -> str:
  """How far a plan is from the proven minimum, in words."""
  return f"{gap:,} above the proven minimum" if gap else "proven minimal"
