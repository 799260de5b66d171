"""`packed_trainer` against sequences alone: weights, metrics, resumption, masked tokens."""

import os
import shutil
import traceback
from unittest import mock

import numpy as np
import pytest

import packing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packing.testing import isolation  # noqa: E402
from packing.torch import MaskingCollator, PackedCollator, packed_trainer  # noqa: E402

pytestmark = pytest.mark.extra("torch", "transformers", "accelerate")

LONGEST = 16
SIZES = {
  "vocab_size": 31,
  "hidden_size": 12,
  "intermediate_size": 10,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "max_position_embeddings": LONGEST,
}
NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)


def make(kind="ForSequenceClassification", **fields):
  torch.manual_seed(0)
  config = transformers.BertConfig(**SIZES | {"num_labels": 3} | NO_DROPOUT | fields)
  model = getattr(transformers, f"Bert{kind}")(config)
  for parameter in model.parameters():
    if parameter.ndim > 1:
      torch.nn.init.normal_(parameter, std=0.3)
  return model


def examples(number, longest=12, kind="class"):
  rng = np.random.default_rng(number)
  found = []
  for i in range(number):
    ids = rng.integers(4, 31, rng.integers(2, longest + 1)).tolist()
    labels = {
      "class": {"label": -100 if i == 4 else int(ids[0] + ids[-1]) % 3},
      "number": {"label": float(ids[0] - ids[-1]) / 10},
      "several": {"labels": [float(x > 15) for x in ids[:1] * 2 + ids[-1:]]},
      "tokens": {"labels": [x if x % 3 else -100 for x in ids]},
    }
    found.append({"input_ids": ids} | labels[kind])
  return found


def arguments(folder, **options):
  plain = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
  plain |= {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"}
  plain |= {"max_grad_norm": 0.0, "num_train_epochs": 2}
  return transformers.TrainingArguments(output_dir=str(folder), **plain | options)


def trained(model, data, folder, **options):
  trainer = packed_trainer(
    model, data, args=arguments(folder, **options), max_sequence_length=LONGEST
  )
  trainer.train()
  return trainer


def assert_same_weights(found, expected):
  for name, x in expected.state_dict().items():
    torch.testing.assert_close(found.state_dict()[name], x, rtol=1e-4, atol=1e-5)


def alone(model, data, steps):
  """One step on all examples at a time, each of them alone."""
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  found = []
  for _ in range(steps):
    losses = []
    for example in data:
      labels = torch.tensor([example.get("label", example.get("labels"))])
      loss = model(input_ids=torch.tensor([example["input_ids"]]), labels=labels).loss
      number = int((labels != -100).sum()) if labels.ndim == 2 else int(labels[0] != -100)
      if labels.is_floating_point():
        number = 1
      if number:
        losses.append((loss * number, number))
    loss = sum(x for x, _ in losses) / sum(number for _, number in losses)
    found.append(float(loss.detach()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
  return found


@pytest.mark.parametrize(
  ("kind", "problem"),
  [
    ("ForSequenceClassification", "class"),
    ("ForSequenceClassification", "number"),
    ("ForSequenceClassification", "several"),
    ("ForMaskedLM", "tokens"),
  ],
)
def test_accumulation_changes_nothing_and_weights_are_those_of_sequences_alone(
  kind, problem, tmp_path
):
  """BERT's own losses ignore `num_items_in_batch`; the last micro-batch is shorter."""
  data = examples(17, kind=problem)
  fields = {"num_labels": 1 if problem == "number" else 3}
  start, expected, *found = (make(kind, **fields) for _ in range(4))
  losses = alone(expected, data, steps=2)
  rows = packing.pack([len(x["input_ids"]) for x in data], max_sequence_length=LONGEST)
  assert rows.num_packs % 3 == 2
  for model, accumulate in zip(found, (1, -(-rows.num_packs // 3)), strict=True):
    size = rows.num_packs if accumulate == 1 else 3
    trainer = trained(
      model,
      data,
      tmp_path,
      per_device_train_batch_size=size,
      gradient_accumulation_steps=accumulate,
      logging_steps=1,
    )
    assert trainer.state.global_step == 2
    history = [x["loss"] for x in trainer.state.log_history if "loss" in x]
    assert [float(x) for x in history] == pytest.approx(losses, rel=1e-3)
    assert_same_weights(model, expected)
  for name, x in start.state_dict().items():
    if name.startswith(("classifier", "cls.predictions.transform")):
      assert not torch.equal(x, expected.state_dict()[name]), name


# ---- evaluation ----------------------------------------------------------------------


def measure(found):
  """A metric that depends on the order of examples."""
  weights = np.arange(1, len(found.label_ids) + 1)
  right = found.predictions.argmax(-1) == found.label_ids
  return {"right": float((weights * right).sum()), "number": len(right)}


def test_metrics_are_those_of_unpacked_examples_in_their_order(tmp_path):
  """The texts of the evaluation are shorter, so more of them share a row."""
  train, test = examples(9), examples(40, longest=4)
  model = make()
  with torch.no_grad():
    logits = torch.cat([model.eval()(torch.tensor([x["input_ids"]])).logits for x in test])
  labels = np.array([x["label"] for x in test])
  loss = float(torch.nn.functional.cross_entropy(logits, torch.tensor(labels)))
  trainer = packed_trainer(
    model,
    train,
    {"short": test, "long": train},
    args=arguments(tmp_path, per_device_eval_batch_size=3),
    max_sequence_length=LONGEST,
    compute_metrics=measure,
  )
  depths = [
    x.plan.packing_depth for x in (trainer.train_dataset, *trainer.eval_dataset.values())
  ]
  assert depths[1] > depths[0]
  found = trainer.evaluate()
  assert found["eval_long_number"] == 9
  plain = type("Found", (), {"predictions": logits.numpy(), "label_ids": labels})
  for one, name in ((found, "eval_short"), (trainer.evaluate(test), "eval")):
    assert one[f"{name}_number"] == 40
    assert one[f"{name}_right"] == measure(plain)["right"]
    assert one[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)
  predicted = trainer.predict(test)
  np.testing.assert_allclose(predicted.predictions, logits, atol=1e-5)
  np.testing.assert_array_equal(predicted.label_ids, labels)
  unlabelled = trainer.predict([{"input_ids": x["input_ids"]} for x in test])
  np.testing.assert_allclose(unlabelled.predictions, logits, atol=1e-5)
  assert unlabelled.label_ids is None
  assert trainer.compute_metrics is measure
  assert trainer.data_collator.collator.max_sequences == depths[0]


def test_answers_by_token_are_those_of_each_example(tmp_path):
  data, model = examples(11, kind="tokens"), make("ForMaskedLM")
  trainer = packed_trainer(
    model,
    None,
    args=arguments(tmp_path, per_device_eval_batch_size=2),
    max_sequence_length=LONGEST,
    preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
  )
  found = trainer.predict(data)
  total = number = 0
  for ids, labels, example in zip(found.predictions, found.label_ids, data, strict=True):
    n = len(example["input_ids"])
    with torch.no_grad():
      out = model(
        input_ids=torch.tensor([example["input_ids"]]),
        labels=torch.tensor([example["labels"]]),
      )
    assert ids[:n].tolist() == out.logits[0].argmax(-1).tolist()
    assert labels[:n].tolist() == example["labels"]
    assert {*ids[n:].tolist(), *labels[n:].tolist()} <= {-100}
    own = sum(x != -100 for x in example["labels"])
    total, number = total + float(out.loss) * own if own else total, number + own
  assert found.metrics["test_loss"] == pytest.approx(total / number, rel=1e-5)


def test_a_dataset_is_trained_on_in_bfloat16_without_its_other_columns(tmp_path):
  datasets = pytest.importorskip("datasets")
  data = examples(9)
  other = [x | {"text": "a", "idx": i} for i, x in enumerate(data)]
  options = {"per_device_train_batch_size": 9, "num_train_epochs": 1, "logging_steps": 1}
  losses = []
  for given, bf16 in ((data, False), (datasets.Dataset.from_list(other), True)):
    trainer = trained(make(), given, tmp_path, bf16=bf16, **options)
    losses.append(float(trainer.state.log_history[0]["loss"]))
  assert losses[1] == pytest.approx(losses[0], rel=0.02)
  assert losses[1] != losses[0]


# ---- several processes ---------------------------------------------------------------

PROBLEMS = {
  "class": "ForSequenceClassification",
  "number": "ForSequenceClassification",
  "several": "ForSequenceClassification",
  "tokens": "ForMaskedLM",
  "masked": "ForMaskedLM",
}
OF_RANKS = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
EVALUATED = ("eval_loss", "eval_sum", "eval_number")


def of_problem(problem, number, longest=12):
  if problem == "masked":
    return [{"input_ids": x["input_ids"]} for x in examples(number, longest)]
  return examples(number, longest, problem)


def in_order(found):
  """Depends on the order of examples, for labels of each kind."""
  weights = np.arange(1, len(found.label_ids) + 1)
  own = found.predictions.reshape(len(weights), -1).sum(-1)
  return {"sum": float((weights * own).sum()), "number": len(weights)}


def trained_and_evaluated(problem, folder, **options):
  """Weights, losses of the steps and metrics; the last batch has one row."""
  trainer = packed_trainer(
    make(PROBLEMS[problem], num_labels=1 if problem == "number" else 3),
    of_problem(problem, 12),
    of_problem(problem, 14, longest=7),
    args=arguments(folder, logging_steps=1, **options),
    max_sequence_length=LONGEST,
    masking=masking(folder, mlm_probability=0.4) if problem == "masked" else None,
    compute_metrics=in_order,
    preprocess_logits_for_metrics=last_logit,
  )
  assert [len(trainer.train_dataset), len(trainer.eval_dataset)] == [5, 5]
  trainer.train()
  losses = [float(x["loss"]) for x in trainer.state.log_history if "loss" in x]
  found = trainer.evaluate()
  return trainer.model.state_dict(), losses, [found[name] for name in EVALUATED]


def last_logit(logits, labels):
  return logits[..., -1]


def in_rank(rank, ranks, folder, cases):
  """Trains in one of several processes, and saves what each case finds."""
  torch.set_num_threads(1)
  torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
  )
  os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
  os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}  # asked for, not used
  for number, (problem, options) in enumerate(cases):
    found = trained_and_evaluated(problem, folder, **options)
    torch.save(found, folder / f"{number}-{rank}.pt")
  with pytest.raises(packing.InputError, match="averages the means of processes"):
    trained_and_evaluated("class", folder, average_tokens_across_devices=False)
  torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_weights_and_metrics_of_one(tmp_path):
  """Also where the last batch has fewer rows than processes, so that one has dummies."""
  cases = [(problem, OF_RANKS) for problem in PROBLEMS]
  cases += [("class", OF_RANKS | {"gradient_accumulation_steps": 2})]
  cases += [("class", OF_RANKS | {"dataloader_drop_last": True})]
  torch.multiprocessing.spawn(in_rank, (2, tmp_path, cases), nprocs=2, join=True)
  for number, (problem, options) in enumerate(cases):
    options |= {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 3}
    weights, losses, metrics = trained_and_evaluated(problem, tmp_path, **options)
    for rank in range(2):
      found = torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=False)
      for name, x in weights.items():
        torch.testing.assert_close(found[0][name], x, rtol=1e-5, atol=1e-6)
      assert found[1] == pytest.approx(losses, rel=1e-5)
      assert found[2] == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_dummies_have_no_labels(problem, tmp_path):
  model = make(PROBLEMS[problem], num_labels=1 if problem == "number" else 3)
  data = of_problem(problem, 9)
  trainer = packed_trainer(
    model,
    data,
    args=arguments(tmp_path),
    max_sequence_length=LONGEST,
    masking=masking(tmp_path, mlm_probability=1.0) if problem == "masked" else None,
  )
  packs = trainer.train_dataset
  real, dummy = packs.__getitems__([0, len(packs)])
  assert [*dummy] == [*real]
  batch = trainer.data_collator([real, dummy])
  alone = trainer.data_collator([real])
  counted = trainer._get_num_items_in_batch
  assert int(counted([batch], "cpu")) == int(counted([alone], "cpu")) > 0
  empty = trainer.data_collator([dummy])
  assert int(counted([empty], "cpu")) == 0
  assert float(trainer.compute_loss(model, empty).detach()) == 0
  loss = trainer.compute_loss(model, empty, num_items_in_batch=torch.tensor(0))
  loss.backward()  # of a step in which no process has a label
  assert float(loss.detach()) == 0
  assert all(not x.grad.any() for x in model.parameters() if x.grad is not None)


def test_evaluating_the_training_examples_keeps_the_epoch_of_training(tmp_path):
  trainer = packed_trainer(
    make(), examples(9), args=arguments(tmp_path), max_sequence_length=LONGEST
  )
  trainer.train_dataset.set_epoch(1)
  assert np.isfinite(trainer.evaluate(trainer.train_dataset)["eval_loss"])
  assert trainer.train_dataset.epoch == 1


@pytest.mark.extra("datasets")
def test_all_columns_are_kept_for_a_transform_on_request(tmp_path):
  datasets = pytest.importorskip("datasets")
  data = examples(9)
  texts = datasets.Dataset.from_dict(
    {"text": [" ".join(map(str, x["input_ids"])) for x in data]}
  )

  def tokenized(batch):
    ids = [[int(word) for word in text.split()] for text in batch["text"]]
    return {"input_ids": ids, "label": [len(x) % 3 for x in ids]}

  texts.set_transform(tokenized)
  trainer = trained(make(), texts, tmp_path, remove_unused_columns=False)
  assert trainer.train_dataset.lengths.tolist() == [len(x["input_ids"]) for x in data]


@pytest.mark.extra("datasets")
def test_protected_tokens_of_a_dataset_are_not_masked(tmp_path):
  datasets = pytest.importorskip("datasets")
  data = [x["input_ids"] for x in examples(9)]
  marks = [[int(token % 2) for token in ids] for ids in data]
  trainer = packed_trainer(
    make("ForMaskedLM"),
    datasets.Dataset.from_dict(
      {"input_ids": data, "special_tokens_mask": marks, "name": ["a"] * len(data)}
    ),
    args=arguments(tmp_path),
    max_sequence_length=LONGEST,
    masking=masking(tmp_path, mlm_probability=1.0),
  )
  batch = next(iter(trainer.get_train_dataloader()))
  chosen = batch["labels"][batch["labels"] != -100]
  assert len(chosen)
  assert not (chosen % 2).any()
  assert "name" not in batch


def test_the_collator_of_a_trainer_can_be_tested_for_isolation(tmp_path):
  """Its rows are shorter than the examples of the test, and its tokens are masked."""
  model = make("ForMaskedLM", vocab_size=64)
  data = [{"input_ids": x["input_ids"]} for x in examples(4)]
  trainer = packed_trainer(
    model,
    data,
    args=arguments(tmp_path),
    max_sequence_length=LONGEST,
    masking=masking(tmp_path, mlm_probability=1.0),
  )
  assert trainer.train_dataset.plan.packing_depth < 3
  assert isolation(model, trainer.data_collator).verdict == "isolated"


# ---- resumption ----------------------------------------------------------------------


CONTINUED = [
  (problem, workers, stateful)
  for problem, workers in (("class", 0), ("masked", 0), ("masked", 2))
  for stateful in (False, True)
]


def continue_all(_, folder):
  """Writes for each case what is wrong with it; "" if nothing is."""
  torch.multiprocessing.set_start_method("fork", force=True)  # which is the fastest
  for number, case in enumerate(CONTINUED):
    place = folder / str(number)
    place.mkdir()
    try:
      with mock.patch.object(packing.torch.PackedDataset, "set_epoch", noted):
        continue_from_checkpoints(*case, place)
    except BaseException:  # pytest's own, too
      (folder / f"{number}.txt").write_text(traceback.format_exc())
    else:
      (folder / f"{number}.txt").write_text("")


epochs: list[int] = []  # that were set
set_epoch = packing.torch.PackedDataset.set_epoch


def noted(self, epoch):
  epochs.append(epoch)
  set_epoch(self, epoch)


def continue_from_checkpoints(problem, workers, stateful, folder):
  """From the middle of the second epoch and from its end, with dropout."""
  data = of_problem(problem, 15)
  options = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1}
  options |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
  options |= {"dataloader_num_workers": workers}
  stop: list[int] = []

  class Stop(transformers.TrainerCallback):  # type: ignore[name-defined]
    def on_step_end(self, args, state, control, **_):
      control.should_training_stop = state.global_step in stop

  def run(start=None):
    torch.manual_seed(1)
    model = make(PROBLEMS[problem], hidden_dropout_prob=0.1)
    trainer = packed_trainer(
      model,
      data,
      args=arguments(folder, **options),
      max_sequence_length=LONGEST,
      masking=masking(folder) if problem == "masked" else None,
      callbacks=[Stop()],
    )
    trainer.accelerator.dataloader_config.use_stateful_dataloader = stateful
    kind = trainer.get_train_dataloader().base_dataloader
    assert ("Stateful" in type(kind).__name__) == stateful
    epochs.clear()
    trainer.train(resume_from_checkpoint=start)
    return trainer, sorted({*epochs})

  whole, made = run()
  steps = whole.state.max_steps // 3
  assert steps >= 2
  assert made == [0, 1, 2]
  for step, expected in ((steps + 1, [1, 2]), (2 * steps, [2])):
    shutil.rmtree(folder / f"checkpoint-{step}")
    stop[:] = [step]
    assert run()[0].state.global_step == step  # with its checkpoint
    stop.clear()
    resumed, made = run(str(folder / f"checkpoint-{step}"))
    assert made == expected
    for name, x in whole.model.state_dict().items():
      assert torch.equal(resumed.model.state_dict()[name], x), name


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
  """Makes all cases in a process without JAX's threads, which do not survive a fork."""
  folder = tmp_path_factory.mktemp("continued")
  torch.multiprocessing.spawn(continue_all, (folder,), nprocs=1)
  return folder


@pytest.mark.parametrize("number", range(len(CONTINUED)), ids=map(str, CONTINUED))
def test_a_run_continues_from_any_checkpoint_with_the_same_weights(number, continued):
  if CONTINUED[number][-1]:
    pytest.importorskip("torchdata.stateful_dataloader")
  assert (continued / f"{number}.txt").read_text() == ""


# ---- masked tokens -------------------------------------------------------------------


def masking(tmp_path, **options):
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(26))]
  (tmp_path / "vocab.txt").write_text("\n".join(words))
  tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
  return transformers.DataCollatorForLanguageModeling(tokenizer, **options)


def test_tokens_of_rows_are_masked_except_special_ones(tmp_path):
  rng = np.random.default_rng(0)
  pack = [{"input_ids": [2, *rng.integers(5, 31, 120).tolist(), 3]} for _ in range(4)]
  plain = PackedCollator(row_length=520, max_sequences=4)
  collator = MaskingCollator(plain, masking(tmp_path, seed=0))
  batch, unmasked = collator([pack] * 3), plain([pack] * 3)
  ids, chosen = unmasked["input_ids"], batch["labels"] != -100
  assert torch.equal(batch["labels"][chosen], ids[chosen])
  assert torch.equal(batch["input_ids"][~chosen], ids[~chosen])
  assert not (chosen & (ids < 5)).any()
  share = chosen.float().mean() * ids.numel() / (ids >= 5).sum()
  assert 0.12 < share < 0.18
  assert 0.7 < (batch["input_ids"][chosen] == 4).float().mean() < 0.9
  assert torch.equal(batch["attention_mask"], unmasked["attention_mask"])
  again = MaskingCollator(plain, masking(tmp_path, seed=0))([pack] * 3)
  assert torch.equal(again["labels"], batch["labels"])


def test_tokens_that_the_examples_protect_are_not_masked(tmp_path):
  ids = list(range(5, 31))
  protected = [int(i % 2) for i in ids]
  pack = [{"input_ids": ids, "special_tokens_mask": protected}]
  collator = MaskingCollator(
    PackedCollator(row_length=26), masking(tmp_path, mlm_probability=1.0)
  )
  batch = collator([pack])
  assert (batch["labels"][0] == -100).int().tolist() == protected
  assert "special_tokens_mask" not in batch


def test_a_masked_language_model_trains_and_is_evaluated(tmp_path):
  data = [{"input_ids": x["input_ids"]} for x in examples(15)]
  trainer = packed_trainer(
    make("ForMaskedLM"),
    data,
    data,
    args=arguments(tmp_path, per_device_train_batch_size=2, num_train_epochs=1),
    max_sequence_length=LONGEST,
    masking=masking(tmp_path, mlm_probability=0.4),
  )
  before = trainer.model.cls.predictions.bias.clone()
  trainer.train()
  assert not torch.equal(before, trainer.model.cls.predictions.bias)
  assert np.isfinite(trainer.evaluate()["eval_loss"])


def test_what_masks_no_tokens_of_rows_is_refused(tmp_path):
  collator = PackedCollator(row_length=8)
  for wrong in (masking(tmp_path, mlm=False), transformers.default_data_collator):
    with pytest.raises(
      packing.InputError, match="expected DataCollatorForLanguageModeling"
    ):
      MaskingCollator(collator, wrong)
  words = masking(tmp_path)
  words.whole_word_mask = True
  with pytest.raises(packing.InputError, match="whole_word_mask needs padded"):
    MaskingCollator(collator, words)


# ---- refusals ------------------------------------------------------------------------


def test_what_would_not_equal_sequences_alone_is_refused(tmp_path):
  def refused(message, model, data, **options):
    def train():
      args = arguments(tmp_path, **options)
      packed_trainer(model, data, args=args, max_sequence_length=12).train()

    with pytest.raises(packing.InputError, match=message):
      train()

  data = examples(5)
  bare = [{"input_ids": x["input_ids"]} for x in data]
  refused("has the labels .*next_sentence_label", make("ForPreTraining"), data)
  refused("Examples have no labels; .*masking=", make("ForMaskedLM"), bare)
  refused("Examples have no labels", make(), bare)
  refused("are a generator, which has no length", make(), (x for x in data))
  refused("^Example 0 has no input_ids", make(), [{"label": 1}])
  refused(
    r"lengths\[0\] is 13; expected 1 to max_sequence_length=12",
    make(),
    [{"input_ids": [5] * 13}],
  )
  refused("sorts single ex", make(), data, train_sampling_strategy="group_by_length")
  refused("show rows to compute_metrics", make(), data, eval_do_concat_batches=False)
  with pytest.raises(packing.InputError, match="Give evaluation=examples"):
    packed_trainer(
      make(), data, args=arguments(tmp_path), max_sequence_length=12
    ).evaluate()


def test_gpus_of_one_process_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(transformers.TrainingArguments, "n_gpu", 2)
  with pytest.raises(packing.InputError, match="torchrun"):
    packed_trainer(
      make(), examples(5), args=arguments(tmp_path), max_sequence_length=LONGEST
    )


def test_metrics_of_other_shapes_are_refused(tmp_path):
  trainer = packed_trainer(
    make(),
    None,
    args=arguments(tmp_path),
    max_sequence_length=LONGEST,
    preprocess_logits_for_metrics=lambda logits, labels: logits.flatten(),
  )
  with pytest.raises(packing.InputError, match="keep the first two axes"):
    trainer.predict(examples(9))
