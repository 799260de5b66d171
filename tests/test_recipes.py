"""The recipes of docs/how_to_pack.md: for tf.data, every token once in rows of one shape;
for the Trainer of transformers, the parameters that sequences alone would give.

They are skipped without TensorFlow, or PyTorch, transformers and accelerate. In an
environment without JAX: pytest --noconftest tests/test_recipes.py
"""

import io
import itertools
import json
import pathlib
import runpy

import numpy as np
import pytest

import packing

RECIPE = pathlib.Path(__file__).parents[1] / "docs" / "recipes" / "tf_data.py"
ROW = 17
LENGTHS = np.random.default_rng(0).integers(1, ROW + 1, 61)
# Of all their tokens no two are equal, and none is 0.
TOKENS = np.arange(1, LENGTHS.sum() + 1, dtype=np.int32)
SEQUENCES = np.split(TOKENS, np.cumsum(LENGTHS)[:-1])
PLAN = packing.pack(
  packing.Histogram.from_lengths(LENGTHS, max_sequence_length=ROW), max_sequences_per_pack=3
)


def check(batches):
  """Rows of [B, S] are the packs of epoch 1, in any order; each sequence is in one."""
  packs = [pack.tolist() for pack in PLAN.assign(LENGTHS, seed=1)]
  assert sorted(itertools.chain(*packs)) == list(range(len(SEQUENCES)))
  expected = []
  for pack in packs:
    ids = [token for i in pack for token in SEQUENCES[i].tolist()]
    segments = [number for number, i in enumerate(pack, 1) for _ in SEQUENCES[i]]
    positions = [position for i in pack for position in range(LENGTHS[i])]
    expected.append([x + [0] * (ROW - len(x)) for x in (ids, segments, positions)])
  fields = ("input_ids", "segment_ids", "position_ids")
  found = [np.concatenate([np.asarray(b[name]) for b in batches]) for name in fields]
  assert all(np.issubdtype(field.dtype, np.integer) for field in found)
  assert sorted(np.stack(found, axis=1).tolist()) == sorted(expected)


@pytest.mark.extra("tensorflow")
def test_tf_data():
  tf = pytest.importorskip("tensorflow", reason='pip install ".[recipes]" installs it')
  packed_rows = runpy.run_path(str(RECIPE))["packed_rows"]
  ragged = tf.RaggedTensor.from_row_lengths(TOKENS, LENGTHS)
  rows = packed_rows(ragged, PLAN, epoch=1).shuffle(100, seed=0).batch(5)
  assert rows.element_spec["input_ids"].shape.as_list() == [None, ROW]
  check(list(rows.as_numpy_iterator()))
  with_gaps = packing.pack(LENGTHS, max_sequence_length=ROW, separator_tokens=1)
  with pytest.raises(ValueError, match="has gaps between sequences"):
    packed_rows(ragged, with_gaps, epoch=0)


# Of both trainers: nothing but training.
OPTIONS = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}


@pytest.mark.extra("torch", "transformers", "accelerate")
@pytest.mark.parametrize(
  ("architecture", "sizes", "accumulate"),
  [
    ("BertForMaskedLM", "SIZES", 2),
    ("ModernBertForMaskedLM", "MODERN_SIZES", 1),
    ("GPT2LMHeadModel", "GPT2_SIZES", 2),
  ],
)
def test_the_trainer_learns_what_it_would_of_sequences_alone(
  tmp_path, architecture, sizes, accumulate
):
  """Two epochs of one step each."""
  import torch
  import transformers

  from packing.torch import packed_trainer
  from tests.model import reference

  dropout = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop")
  none = dict.fromkeys((*dropout, "embd_pdrop", "resid_pdrop"), 0.0)
  fields = getattr(reference, sizes)["odd"] | none
  packed, alone, start = (reference.make(architecture, **fields) for _ in range(3))
  causal = architecture == reference.GPT2
  examples = []
  for ids in SEQUENCES[:31]:
    ids = (1 + ids[:7] % 28).tolist()
    labels = ids if causal else [x if i % 3 == 0 else -100 for i, x in enumerate(ids)]
    examples.append({"input_ids": ids, "labels": labels})
  rows = packing.pack(
    [len(x["labels"]) for x in examples], max_sequence_length=16
  ).num_packs
  assert rows < len(examples) / 2

  options = {"output_dir": str(tmp_path), "learning_rate": 0.1, "optim": "sgd"}
  options |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "num_train_epochs": 2}
  options |= {"gradient_accumulation_steps": accumulate}
  options |= {"per_device_train_batch_size": -(-rows // accumulate)} | OPTIONS
  trainer = packed_trainer(
    packed,
    examples,
    args=transformers.TrainingArguments(**options),
    max_sequence_length=16,
  )
  before = [pack.tolist() for pack in trainer.train_dataset.assignment]
  trainer.train()
  assert trainer.state.global_step == 2
  assert before != [pack.tolist() for pack in trainer.train_dataset.assignment]

  optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
  for _ in range(2):
    losses = []
    for example in examples:
      ids, labels = (torch.tensor([example[x]]) for x in ("input_ids", "labels"))
      logits = alone(input_ids=ids).logits[0]
      logits, labels = (logits[:-1], labels[0, 1:]) if causal else (logits, labels[0])
      loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
      losses.append(loss[labels != -100])
    optimizer.zero_grad()
    torch.cat(losses).mean().backward()
    optimizer.step()
  for name, expected in alone.state_dict().items():
    torch.testing.assert_close(packed.state_dict()[name], expected, rtol=1e-4, atol=1e-5)
    moved = bool((expected != start.state_dict()[name]).any())
    assert moved or "bias" in name or "embed" in name or "wpe" in name, name


def letters_tokenizer(folder):
  """A tokenizer with a word for each of eight letters."""
  import transformers

  vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
  (folder / "vocab.txt").write_text("\n".join(vocabulary))
  return transformers.BertTokenizerFast(str(folder / "vocab.txt"))


@pytest.mark.extra("torch", "transformers", "accelerate", "datasets")
def test_the_recipe_of_the_trainer_classifies_texts_and_predicts_tokens(tmp_path):
  import datasets
  import torch

  from tests.model import reference

  rng = np.random.default_rng(0)
  texts = [" ".join(rng.choice([*"abcdefgh"], n)) for n in rng.integers(1, 14, 60)]
  records = [{"text": text, "label": int(text[0] in "abc")} for text in texts]
  data = datasets.Dataset.from_list(records)
  train, test = data.select(range(40)), data.select(range(40, 60))
  tokenizer = letters_tokenizer(tmp_path)
  recipe = runpy.run_path(str(RECIPE.with_name("hugging_face_trainer.py")))
  options = {"output_dir": str(tmp_path), "longest": 16, "learning_rate": 0.01} | OPTIONS
  model = reference.make("BertForSequenceClassification", **reference.SIZES["odd"])
  trainer = recipe["classifier"](model, tokenizer, train, test, **options)
  trainer.train()
  found = trainer.evaluate()
  with torch.no_grad():
    right = [
      int(model(**tokenizer(x["text"], return_tensors="pt")).logits.argmax()) == x["label"]
      for x in test
    ]
  assert found["eval_accuracy"] == pytest.approx(np.mean(right))
  assert 0 < sum(right) < len(right)
  model = reference.make("BertForMaskedLM", **reference.SIZES["odd"])
  examples = [tokenizer(text) for text in texts]
  options |= {"logging_steps": 1, "num_train_epochs": 8}
  trainer = recipe["masked_language_model"](model, tokenizer, examples, **options)
  trainer.train()
  losses = [x["loss"] for x in trainer.state.log_history if "loss" in x]
  assert np.mean(losses[-8:]) < np.mean(losses[:8])


def causal_model():
  import torch
  import transformers

  sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24}
  sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
  torch.manual_seed(0)
  config = transformers.LlamaConfig(**sizes, max_position_embeddings=32)
  return transformers.LlamaForCausalLM(config)


def with_prompts(number: int):
  """Causal examples; the labels of their prompts, of all of one, are -100."""
  rng = np.random.default_rng(0)
  examples = []
  for i in range(number):
    ids = rng.integers(1, 31, rng.integers(6, 10)).tolist()
    prompt = len(ids) if i == 3 else i % 6
    examples.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
  return examples


def step_in_rank(rank, ranks, folder, number):
  """Runs the recipe in one of several processes, and saves what it finds."""
  import torch

  from packing.torch import PackedCollator

  torch.set_num_threads(1)
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
  )
  model, calls = causal_model(), []
  model.register_forward_hook(lambda *_: calls.append(1))
  collator = PackedCollator.for_model(model.config, row_length=10)  # one in each pack
  recipe = runpy.run_path(str(RECIPE.with_name("packed_steps.py")))
  recipe["backward"](model, collator, with_prompts(number))
  grads = {name: x.grad for name, x in model.named_parameters()}
  torch.save((len(calls), grads), folder / f"{rank}.pt")
  torch.distributed.destroy_process_group()


@pytest.mark.extra("torch", "transformers")
@pytest.mark.parametrize(("ranks", "number"), [(2, 3), (2, 4), (3, 2)])
def test_ranks_with_different_numbers_of_packs_have_the_gradient_of_all(
  ranks, number, tmp_path
):
  torch = pytest.importorskip("torch")
  torch.multiprocessing.spawn(
    step_in_rank, (ranks, tmp_path, number), nprocs=ranks, join=True
  )
  alone = causal_model()
  losses = []
  for example in with_prompts(number):
    logits = alone(input_ids=torch.tensor([example["input_ids"]])).logits[0, :-1]
    labels = torch.tensor(example["labels"][1:])
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    losses.append(loss[labels != -100])
  torch.cat(losses).mean().backward()
  calls = []
  for rank in range(ranks):
    count, grads = torch.load(tmp_path / f"{rank}.pt")
    calls.append(count)
    for name, x in alone.named_parameters():
      torch.testing.assert_close(grads[name], x.grad, rtol=1e-5, atol=1e-7)
  assert len(set(calls)) > 1  # as DistributedDataParallel would not have it


def with_advantages(number: int):
  """Samples of prompts, each of which has two; some of their ratios are clipped."""
  import torch

  rng, model, samples = np.random.default_rng(1), causal_model(), []
  for example in with_prompts(number):
    ids = example["input_ids"]
    with torch.no_grad():
      logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    old = [0.0, *logits[range(len(ids) - 1), ids[1:]].tolist()]
    advantages = rng.normal(size=len(ids)).tolist()
    old = (np.array(old) + rng.normal(0, 0.3, len(ids))).tolist()
    samples.append(example | {"advantages": advantages, "old_log_probs": old})
  return samples


LENGTHS_OF_RANKS = [9, 8, 7, 6, 5, 5, 4, 4], [3, 3, 2, 2, 1, 1, 1, 1]


def policy_in_rank(rank, ranks, folder, number):
  """The recipe's step and plan in one of several processes."""
  import torch

  from packing.torch import PackedCollator

  torch.set_num_threads(1)
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
  )
  backward, recipe = (
    runpy.run_path(str(RECIPE.with_name(name)))
    for name in ("packed_steps.py", "packed_policy.py")
  )
  model, samples, shared = causal_model(), with_advantages(number), []
  collator = PackedCollator.for_model(model.config, row_length=20)

  def loss(model, batch):
    shared.append(batch["position_ids"].eq(0).sum(-1).max() > 2)
    return recipe["policy_loss"](model, batch)

  found = backward["backward"](
    model,
    collator,
    samples,
    loss=loss,
    groups=[i // 2 for i in range(number)],
    together="device",
  )
  plans = [
    recipe["micro_batches"](
      LENGTHS_OF_RANKS[rank], 10, ranks=torch.distributed.group.WORLD, **options
    )
    for options in ({}, {"groups": [0, 1, 2, 3, 4, 4, 5, 5]}, {"least": 7, "multiple": 4})
  ]
  grads = {name: x.grad for name, x in model.named_parameters()}
  torch.save((found, grads, plans, bool(any(shared))), folder / f"{rank}.pt")
  torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.extra("torch", "transformers")
def test_a_policy_step_has_the_loss_and_gradient_of_samples_alone(tmp_path):
  torch = pytest.importorskip("torch")
  number = 10
  torch.multiprocessing.spawn(policy_in_rank, (2, tmp_path, number), nprocs=2, join=True)
  alone, losses, clipped = causal_model(), [], 0
  for sample in with_advantages(number):
    logits = alone(input_ids=torch.tensor([sample["input_ids"]])).logits[0, :-1]
    log_probs = logits.log_softmax(-1)
    for i, label in enumerate(sample["labels"][1:], 1):
      if label == -100:
        continue
      ratio = (log_probs[i - 1, label] - sample["old_log_probs"][i]).exp()
      gains = [x * sample["advantages"][i] for x in (ratio, ratio.clamp(0.8, 1.2))]
      losses.append(-min(gains))
      clipped += bool(gains[1] < gains[0])
  assert 5 < clipped < len(losses) - 5
  loss = torch.stack(losses).mean()
  loss.backward()
  found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
  for one, grads, _, is_packed in found:
    assert is_packed
    assert one == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, x in alone.named_parameters():
      torch.testing.assert_close(grads[name], x.grad, rtol=1e-5, atol=1e-7)
  for plans in zip(*(x[2] for x in found), strict=True):
    assert len(plans[0]) == len(plans[1])
    for lengths, plan in zip(LENGTHS_OF_RANKS, plans, strict=True):
      assert sorted(itertools.chain(*plan)) == [*range(8)]
      assert max(sum(lengths[i] for i in own) for own in plan) <= 10
  assert [len(plan) for plan in found[0][2]] == [6, 6, 8]
  assert all((4 in own) == (5 in own) for own in found[0][2][1])


@pytest.mark.extra("torch", "verl", "tensordict")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("group", [1, 4])
def test_verl_gets_its_micro_batches(is_nested, group):
  import torch
  from tensordict import TensorDict
  from verl.utils import seqlen_balancing

  lengths = np.random.default_rng(group).integers(100, 2000, 64)
  ids = [torch.full((n,), i) for i, n in enumerate(lengths)]
  if is_nested:
    fields = {"input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged)}
  else:
    fields = {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, True)}
    fields["attention_mask"] = (
      torch.arange(fields["input_ids"].shape[1]) < torch.tensor(lengths)[:, None]
    ).long()
  batch = TensorDict(fields, batch_size=[64])
  recipe = runpy.run_path(str(RECIPE.with_name("packed_policy.py")))
  theirs, ours = (
    function(batch, 8192, force_group_size=group)
    for function in (
      seqlen_balancing.rearrange_micro_batches,
      recipe["rearrange_micro_batches"],
    )
  )
  assert len(ours[0]) == len(ours[1]) <= len(theirs[0])
  assert sorted(itertools.chain(*ours[1])) == [*range(64)]
  for made, own in zip(*ours, strict=True):
    assert sum(lengths[own]) <= 8192
    assert [int(x[0]) for x in made["input_ids"].unbind()] == own
    assert all((i // group * group in own) for i in own)


def ddp_in_rank(rank, ranks, folder):
  """The recipe in one of several processes."""
  import torch

  torch.set_num_threads(1)
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
  )
  recipe = runpy.run_path(str(RECIPE.with_name("packed_ddp.py")))
  model = causal_model()
  loader = recipe["loader_of"](with_prompts(24), model.config, row_length=20, rows=3)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
  packs = []
  for epoch in range(2):  # of each epoch and rank, in their order
    loader.dataset.set_epoch(epoch)
    loader.sampler.set_epoch(epoch)
    packs.append([loader.dataset.assignment[i].tolist() for i in loader.sampler])
  recipe["train"](model, loader, optimizer, epochs=2)
  torch.save((packs, model.state_dict()), folder / f"{rank}.pt")
  torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.extra("torch", "transformers")
def test_two_processes_of_ddp_have_the_weights_of_sequences_alone(tmp_path):
  """The rows of two ranks have different numbers of targets."""
  torch = pytest.importorskip("torch")
  torch.multiprocessing.spawn(ddp_in_rank, (2, tmp_path), nprocs=2, join=True)
  (first, weights), (second, others) = (
    torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)
  )
  alone, examples, steps = causal_model(), with_prompts(24), 0
  optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
  for ours, theirs in zip(first, second, strict=True):
    assert len(ours) == len(theirs)
    assert not {*itertools.chain(*ours)} & {*itertools.chain(*theirs)}
    for start in range(0, len(ours), 3):
      losses = []
      for i in itertools.chain(*ours[start : start + 3], *theirs[start : start + 3]):
        logits = alone(input_ids=torch.tensor([examples[i]["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(examples[i]["labels"][1:])
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        losses.append(loss[labels != -100])
      optimizer.zero_grad()
      torch.cat(losses).mean().backward()
      optimizer.step()
      steps += 1
  assert steps >= 4
  assert first[0] != first[1]
  for name, x in alone.state_dict().items():
    for found in (weights, others):
      torch.testing.assert_close(found[name], x, rtol=1e-5, atol=1e-6)


def words_tokenizer():
  """A tokenizer of a causal model, with a word for each of eight letters."""
  import tokenizers
  import transformers

  words = ["<unk>", "<end>", "<pad>", *"abcdefgh"]
  model = tokenizers.models.WordLevel({x: i for i, x in enumerate(words)}, "<unk>")
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<pad>"
  )


@pytest.mark.extra("torch", "transformers", "accelerate", "datasets", "trl")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("has_prompts", [False, True])
def test_trl_learns_what_it_would_of_padded_sequences_and_of_each_alone(
  has_prompts, tmp_path
):
  """Two epochs of one step each; with prompts, only completions have labels."""
  import datasets
  import torch
  from trl import SFTConfig, SFTTrainer

  rng = np.random.default_rng(0)
  texts = [" ".join(rng.choice([*"abcdefgh"], n)) for n in rng.integers(4, 14, 23)]
  records = [{"text": text} for text in texts]
  if has_prompts:
    records = [
      {"prompt": x[:n], "completion": x[n:]}
      for n, x in zip(rng.integers(1, 3, 23) * 2, texts, strict=True)
    ]
  data, tokenizer = datasets.Dataset.from_list(records), words_tokenizer()
  recipe = runpy.run_path(str(RECIPE.with_name("trl_sft.py")))

  def run(make, size, **given):
    options = {"output_dir": str(tmp_path), "max_length": 32, "optim": "sgd"} | OPTIONS
    options |= {"learning_rate": 0.5, "lr_scheduler_type": "constant", "logging_steps": 1}
    options |= {"max_grad_norm": 0.0, "num_train_epochs": 2, "bf16": False}
    options |= {"per_device_train_batch_size": size, "gradient_checkpointing": False}
    trainer = make(causal_model(), SFTConfig(**options), **given)
    dataset = trainer.train_dataset
    trainer.train()
    losses = [float(x["loss"]) for x in trainer.state.log_history if "loss" in x]
    return trainer, dataset, losses

  padded, prepared, losses = run(
    SFTTrainer, 23, train_dataset=data, processing_class=tokenizer
  )
  packed, packs, found = run(recipe["packed_sft"], 12, examples=data, tokenizer=tokenizer)
  assert len(packs) <= 12
  assert packs.epoch == 1
  assert len(found) == 2
  assert found == pytest.approx(losses, abs=1e-3)
  for name, x in padded.model.state_dict().items():
    torch.testing.assert_close(packed.model.state_dict()[name], x, rtol=1e-5, atol=1e-6)
  alone = causal_model()
  optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
  targets = [x for labels in prepared["labels"] for x in labels[1:] if x != -100]
  assert (len(targets) < sum(map(len, prepared["labels"])) - 23) == has_prompts
  for _ in range(2):
    losses = []
    for example in prepared:
      logits = alone(input_ids=torch.tensor([example["input_ids"]])).logits[0, :-1]
      labels = torch.tensor(example["labels"][1:])
      loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
      losses.append(loss[labels != -100])
    optimizer.zero_grad()
    torch.cat(losses).mean().backward()
    optimizer.step()
  for name, x in alone.state_dict().items():
    torch.testing.assert_close(packed.model.state_dict()[name], x, rtol=1e-5, atol=1e-6)


@pytest.mark.extra("torch", "sentence_transformers", "accelerate")
@pytest.mark.parametrize("family", ["Bert", "XLMRoberta", "ModernBert"])
def test_the_trainer_of_sentence_transformers_has_the_losses_of_padded_batches(
  family, tmp_path
):
  import datasets
  import sentence_transformers
  from sentence_transformers.sentence_transformer import losses

  from tests.model import reference

  letters = [*"abcdefgh"]
  sizes = reference.MODERN_SIZES if family == "ModernBert" else reference.SIZES
  fields = sizes["odd"] | {"pad_token_id": int(family == "XLMRoberta")}
  config = getattr(reference.transformers, f"{family}Config")(**fields)
  for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
    setattr(config, name, 0.0)
  reference.torch.manual_seed(0)
  model = getattr(reference.transformers, f"{family}Model")(config)
  model.save_pretrained(tmp_path / "model")
  vocabulary = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
  vocabulary.insert(config.pad_token_id, "[PAD]")
  (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
  tokenizer = reference.transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
  tokenizer.save_pretrained(tmp_path / "model")
  rng = np.random.default_rng(0)
  text = [" ".join(rng.choice(letters, n)) for n in rng.integers(1, 14, 48)]
  data = datasets.Dataset.from_dict({"anchor": text[:24], "positive": text[24:]})
  recipe = runpy.run_path(str(RECIPE.with_name("sentence_transformers_trainer.py")))

  def packed_columns(model):
    return recipe["PackedColumns"](model.tokenizer, model[0].auto_model.config)

  options = {"output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 6}
  options |= {"learning_rate": 1e-3, "logging_steps": 1} | OPTIONS
  found = []
  for packed in (False, True):
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    trainer = sentence_transformers.SentenceTransformerTrainer(
      model=model,
      args=sentence_transformers.SentenceTransformerTrainingArguments(**options),
      train_dataset=data,
      loss=losses.MultipleNegativesRankingLoss(model),
      data_collator=packed_columns(model) if packed else None,
    )
    trainer.train()
    history = trainer.state.log_history
    found.append([float(entry["loss"]) for entry in history if "loss" in entry])
  padded, ours = found
  assert len(ours) == 12  # three epochs
  assert ours == pytest.approx(padded, rel=1e-4)
  assert padded[-1] < padded[0]
  with pytest.raises(ValueError, match="Give one dataset"):
    packed_columns(model)([{"dataset_name": "one", "anchor": "a"}])


def test_capitals_are_tags(monkeypatch, capsys):
  text = "Ada's McDonald ate NASA's  3 pies. So. It was - in iOS! Not a tag of 2B: X\n"
  monkeypatch.setattr("sys.stdin", io.StringIO(text))
  runpy.run_path(str(RECIPE.with_name("capitals.py")))
  first, *others = map(json.loads, capsys.readouterr().out.splitlines())
  assert first["tokens"] == ["ada's", "mcdonald", "ate", "nasa's", "3", "pies."]
  assert first["tags"] == ["Capitalised", "Mixed", "lower", "Mixed", "lower", "lower"]
  assert [len(one["tags"]) for one in others] == [4, 6]
  assert others[1]["tags"][-2:] == ["Capitalised", "Capitalised"]
