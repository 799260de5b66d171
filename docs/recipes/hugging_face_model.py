"""A Hugging Face BERT in PyTorch as a function from a packed batch to its layers."""

import torch
import transformers


def layers(model: transformers.BertModel, *, whole_row: bool = False):
  def apply(batch):
    segments = torch.as_tensor(batch["segment_ids"])
    allowed = (segments[:, :, None] == segments[:, None, :]) | whole_row
    forbidden = torch.finfo(torch.float32).min
    fields = ("input_ids", "token_type_ids", "position_ids")
    with torch.no_grad():
      found = model(
        **{name: torch.as_tensor(batch[name]) for name in fields},
        attention_mask=torch.where(allowed, 0.0, forbidden)[:, None],  # [B, 1, S, S]
        output_hidden_states=True,
      )
    return {f"layer {n}": x.numpy() for n, x in enumerate(found.hidden_states)}

  return apply


def layers_alone(model: transformers.BertModel):
  def reference(sequence):
    ids = torch.as_tensor([sequence["input_ids"]])
    with torch.no_grad():
      found = model(input_ids=ids, output_hidden_states=True)
    return {f"layer {n}": x[0].numpy() for n, x in enumerate(found.hidden_states)}

  return reference
