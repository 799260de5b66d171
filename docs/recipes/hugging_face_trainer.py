"""Fine-tunes a classifier of texts on packed rows in the Trainer of transformers."""

from transformers import DataCollatorForLanguageModeling, TrainingArguments

from packing.torch import packed_trainer


def accuracy(found):
  """As without packing: one prediction and one label for each text, in their order."""
  return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def classifier(model, tokenizer, train, test, *, longest: int = 512, **options):
  """A trainer of a ...ForSequenceClassification; datasets have columns text and label."""

  def tokenized(texts):
    return texts.map(lambda x: tokenizer(x["text"], truncation=True, max_length=longest))

  return packed_trainer(
    model,
    tokenized(train),
    tokenized(test),
    args=TrainingArguments(**options),
    max_sequence_length=longest,
    compute_metrics=accuracy,
  )


def masked_language_model(model, tokenizer, examples, *, longest: int = 512, **options):
  """A trainer of a ...ForMaskedLM, which masks other tokens in each epoch."""
  return packed_trainer(
    model,
    examples,
    args=TrainingArguments(**options),
    max_sequence_length=longest,
    masking=DataCollatorForLanguageModeling(tokenizer),
  )
